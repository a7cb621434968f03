"""mosaic watch and snapshot: the live view of a run's agent."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mosaic.commands.connection import connect
from mosaic.commands.naming import add_run, find_run
from mosaic.commands.printing import add_json, print_json, stall_mark
from mosaic.contract.errors import MosaicError, NoDaemonError, UnknownRunError


def add_to(commands: Any) -> None:
    """Declare the commands."""
    one = commands.add_parser("watch", help="watch a run's agent in this terminal (Ctrl-C leaves, the run goes on)")
    add_run(one)
    one.set_defaults(command=watch_run)

    two = commands.add_parser("snapshot", help="save the picture of a run's agent")
    add_run(two)
    two.add_argument("target", metavar="OUT.png", type=Path, help="the file to write")
    add_json(two)
    two.set_defaults(command=save_snapshot)


def watch_run(args: argparse.Namespace) -> int:
    """Show a run's live view; return 0 when the user leaves it."""
    from mosaic.watch import watch

    try:
        run_id = _named(args.run)
        return watch(run_id, goes_on=lambda: _goes_on(run_id), mark=lambda: _mark(run_id))
    except KeyboardInterrupt:
        return 0


def save_snapshot(args: argparse.Namespace) -> int:
    """Write one frame of a run's live view."""
    from mosaic.watch import snapshot

    run_id = _named(args.run)
    shown = snapshot(run_id, args.target, goes_on=lambda: _goes_on(run_id))
    print_json({"file": str(args.target), "shows": shown.partition(": ")[2]}) if args.json else print(shown)
    return 0


def _named(name: str) -> str:
    """Return the run's id; an id unknown to the daemon (a worker started by hand) is returned unchanged."""
    try:
        with connect() as client:
            return find_run(client, name)
    except (NoDaemonError, UnknownRunError):
        return name


def _mark(run_id: str) -> str:
    try:
        with connect() as client:
            return stall_mark(client.get_run(run_id))
    except MosaicError:
        return ""


def _goes_on(run_id: str) -> bool:
    """Return True if a daemon has the run queued, live or to be restarted."""
    try:
        with connect() as client:
            return not client.get_run(run_id).ended
    except (NoDaemonError, UnknownRunError):
        return False
