"""mosaic daemon: the trainer daemon in the foreground."""

from __future__ import annotations

import argparse
from typing import Any

from mosaic.commands.connection import interruptible


def add_to(commands: Any) -> None:
    """Declare the commands."""
    # The same flags as `python -m mosaic.trainer.daemon`, which is imported only to run; a test compares them.
    one = commands.add_parser("daemon", help="the trainer daemon in the foreground, with all its settings")
    add = one.add_argument
    add("--home", metavar="DIR", help="folder that holds var/ (default: MOSAIC_HOME, else the current directory)")
    add("--listen", metavar="HOST:PORT", help="where to listen (127.0.0.1:50055); port 0: any")
    add("--tls-cert", metavar="FILE", help="certificate (PEM): needed to listen beyond this machine")
    add("--tls-key", metavar="FILE", help="its private key (PEM)")
    add("--insecure-listen", action="store_true", help="listen beyond this machine without TLS")
    add("--slots", metavar="N", help="CPU slots, one per run unless it asks for more (default: the number of cores)")
    add("--eval-slots", metavar="N", help="evaluations that run at once, beside the CPU slots (default: 1)")
    add("--executor", metavar="NAME", help="where runs run that do not say: local, ray or slurm (local)")
    add("--ray-address", metavar="URL", help="dashboard of a Ray cluster (default: a private one on this machine)")
    add("--advertise", metavar="HOST:PORT", help="where a cluster's nodes reach this daemon (default: as --listen)")
    add("--scratch", metavar="DIR", help="nodes keep runs in this folder of theirs, even where they see the home")
    add("--node-python", metavar="PATH", help="the interpreter on the nodes (default: this one's path)")
    one.set_defaults(command=serve)


def serve(args: argparse.Namespace) -> int:
    """Run the daemon as its own module does."""
    with interruptible():
        from mosaic.trainer.daemon import main

    given = {"--home": args.home, "--listen": args.listen, "--tls-cert": args.tls_cert, "--tls-key": args.tls_key}
    given |= {
        "--slots": args.slots,
        "--eval-slots": args.eval_slots,
        "--executor": args.executor,
        "--ray-address": args.ray_address,
    }
    given |= {"--advertise": args.advertise, "--scratch": args.scratch, "--node-python": args.node_python}
    words = [word for flag, value in given.items() if value for word in (flag, value)]
    return main([*words, *(["--insecure-listen"] if args.insecure_listen else [])])
