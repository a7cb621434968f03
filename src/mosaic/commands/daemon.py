"""mosaic up, down and daemon: the daemon's own life."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from typing import Any

from mosaic.commands.connection import connect, free_target, local_home, start_daemon
from mosaic.commands.printing import add_json, print_json, say, waiting
from mosaic.wire.errors import ConfigError, NoDaemonError, TrainerError
from mosaic.wire.paths import resolve_home

END_SECONDS = 30.0


def add_to(commands: Any) -> None:
    """Declare the commands."""
    one = commands.add_parser("up", help="start the trainer daemon of this home")
    one.add_argument(
        "--listen", metavar="HOST:PORT", help="where to listen (127.0.0.1:50055, or any port if that is taken)"
    )
    one.add_argument("--detach", "-d", action="store_true", help="return once it answers; it goes on in the background")
    add_json(one)
    one.set_defaults(command=up)

    two = commands.add_parser("down", help="end the trainer daemon; runs go on")
    add_json(two)
    two.set_defaults(command=down)

    # The same flags as `python -m mosaic.trainer.daemon`, which is loaded only to run; a test compares them.
    three = commands.add_parser("daemon", help="the trainer daemon in the foreground, with all its settings")
    add = three.add_argument
    add("--home", metavar="DIR", help="folder that holds var/ (default: MOSAIC_HOME, else the current directory)")
    add("--listen", metavar="HOST:PORT", help="where to listen (127.0.0.1:50055); port 0: any")
    add("--tls-cert", metavar="FILE", help="certificate (PEM): needed to listen beyond this machine")
    add("--tls-key", metavar="FILE", help="its private key (PEM)")
    add("--insecure-listen", action="store_true", help="listen beyond this machine without TLS")
    add("--slots", metavar="N", help="CPU slots, one per run unless it asks for more (default: the number of cores)")
    three.set_defaults(command=serve)


def up(args: argparse.Namespace) -> int:
    """Be the daemon of this home until SIGTERM or Ctrl-C, or start one in the background."""
    from mosaic.trainer.client import Client
    from mosaic.trainer.daemon import main

    home = resolve_home()
    with contextlib.suppress(NoDaemonError), Client(home=home) as client:
        health = client.health()
        if health["home"] == str(home):
            return _report(
                args, health, f"a trainer daemon already serves {home} on {health['target']}; end it: mosaic down"
            )
    if args.detach:
        if not args.json:
            say(f"starting the trainer daemon of {home} …")
        start_daemon(home, args.listen)
        with Client(home=home) as client:
            health = client.health()
        return _report(args, health, f"the trainer daemon listens on {health['target']}; end it with: mosaic down")
    if args.json:
        raise ConfigError("--json goes with --detach: a daemon in the foreground has no end to report")
    say("Ctrl-C or SIGTERM ends the daemon, runs go on. There is no web interface in this version.")
    code = main(["--home", str(home), "--listen", args.listen or free_target()])
    if code == 0:
        say("the daemon has ended; what runs goes on, and the next daemon of this home takes it over")
    return code


def _report(args: argparse.Namespace, health: dict[str, Any], text: str) -> int:
    print_json(health) if args.json else print(text)
    return 0


def down(args: argparse.Namespace) -> int:
    """Ask the daemon to end and wait until it has."""
    with connect() as client:
        health = client.health()
        home = local_home(client, health, "end it")
    going = sum(count for state, count in health["runs"].items() if state not in ("COMPLETED", "FAILED", "CANCELLED"))
    pid = int(health["pid"])
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + END_SECONDS
    with waiting(f"waiting for the daemon (pid {pid}) to end"):
        while _lives(pid):
            if time.monotonic() > end:
                raise TrainerError(f"the daemon (pid {pid}) still runs after {END_SECONDS:.0f} s; see {home}/var/logs")
            time.sleep(0.05)
    if args.json:
        print_json({"home": str(home), "pid": pid, "runs_going_on": going})
    else:
        print(f"the daemon of {home} has ended" + (f"; {going} run(s) go on or wait" if going else ""))
    return 0


def _lives(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def serve(args: argparse.Namespace) -> int:
    """The daemon, as its own module would start it."""
    from mosaic.trainer.daemon import main

    given = {"--home": args.home, "--listen": args.listen, "--tls-cert": args.tls_cert, "--tls-key": args.tls_key}
    words = [word for flag, value in {**given, "--slots": args.slots}.items() if value for word in (flag, value)]
    return main([*words, *(["--insecure-listen"] if args.insecure_listen else [])])
