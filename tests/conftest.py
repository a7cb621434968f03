"""What several test modules need."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # tests import tiny_envs by name
