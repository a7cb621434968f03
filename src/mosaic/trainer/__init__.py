"""The trainer daemon: manages runs that outlive their submitter."""

import signal
import sys

from mosaic.contract.stopping import end_at_once

if sys.argv[0] == "-m":  # only while `python -m` looks for the program, before that imports anything
    if "mosaic.trainer.executors.node" in sys.orig_argv:
        end_at_once(75, signal.SIGTERM, signal.SIGINT)  # an attempt that has not begun: restart it
    else:
        end_at_once(128 + signal.SIGINT, signal.SIGINT)
