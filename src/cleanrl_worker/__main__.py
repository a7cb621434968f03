"""The command `cleanrl-worker` as `python -m cleanrl_worker …`."""

import sys

from cleanrl_worker.cli import main

if __name__ == "__main__":
    sys.exit(main())
