"""What several test modules need."""

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # tests import tiny_envs by name

# A CI that starts the tests in the background or under nohup leaves these ignored, and every child would inherit that.
for number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
