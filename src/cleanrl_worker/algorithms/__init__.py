"""One algorithm a file; `python -m` runs one alone."""

import signal
import sys

from mosaic.contract.stopping import end_at_once

if sys.argv[0] == "-m":  # only while `python -m` looks for the program, before that imports anything
    if {"-h", "--help"}.isdisjoint(sys.orig_argv):
        end_at_once(75, signal.SIGTERM, signal.SIGINT)  # a run that had nothing to save yet: start it again
    else:
        end_at_once(128 + signal.SIGINT, signal.SIGINT)
