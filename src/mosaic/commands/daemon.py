"""mosaic daemon: the trainer daemon in the foreground."""

from __future__ import annotations

import argparse
from typing import Any


def add_to(commands: Any) -> None:
    """Declare the commands."""
    # The same flags as `python -m mosaic.trainer.daemon`, which is loaded only to run; a test compares them.
    one = commands.add_parser("daemon", help="the trainer daemon in the foreground, with all its settings")
    add = one.add_argument
    add("--home", metavar="DIR", help="folder that holds var/ (default: MOSAIC_HOME, else the current directory)")
    add("--listen", metavar="HOST:PORT", help="where to listen (127.0.0.1:50055); port 0: any")
    add("--tls-cert", metavar="FILE", help="certificate (PEM): needed to listen beyond this machine")
    add("--tls-key", metavar="FILE", help="its private key (PEM)")
    add("--insecure-listen", action="store_true", help="listen beyond this machine without TLS")
    add("--slots", metavar="N", help="CPU slots, one per run unless it asks for more (default: the number of cores)")
    one.set_defaults(command=serve)


def serve(args: argparse.Namespace) -> int:
    """The daemon, as its own module would start it."""
    from mosaic.trainer.daemon import main

    given = {"--home": args.home, "--listen": args.listen, "--tls-cert": args.tls_cert, "--tls-key": args.tls_key}
    words = [word for flag, value in {**given, "--slots": args.slots}.items() if value for word in (flag, value)]
    return main([*words, *(["--insecure-listen"] if args.insecure_listen else [])])
