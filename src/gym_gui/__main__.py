"""python -m gym_gui [--port N] …: the same as `mosaic up`."""

import sys

from mosaic.cli import main

if __name__ == "__main__":
    sys.exit(main(["up", *sys.argv[1:]]))
