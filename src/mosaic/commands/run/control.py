"""mosaic pause, continue, cancel and delete: control of runs."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mosaic.commands.connection import connect
from mosaic.commands.naming import add_run, find_runs
from mosaic.commands.printing import add_json, print_json, say, short_id, size, waiting
from mosaic.commands.run.submission import document

if TYPE_CHECKING:
    from mosaic.trainer.rpc.client import Client
    from mosaic.trainer.run import Run

POLL_SECONDS = 0.2


def add_to(commands: Any) -> None:
    """Declare the commands."""
    one = commands.add_parser("pause", help="let a run stand still; it keeps its memory and its place")
    two = commands.add_parser("continue", help="let a paused run go on")
    three = commands.add_parser("cancel", help="end a run: gently, by force after its grace period")
    three.add_argument("--grace", type=float, metavar="SECONDS", help="how long it may take (its own: 120)")
    for parser, command in ((one, pause), (two, go_on), (three, cancel)):
        add_run(parser, several=True)
        parser.add_argument("--no-wait", action="store_true", help="ask, and return before it has happened")
        add_json(parser)
        parser.set_defaults(command=command)

    four = commands.add_parser("delete", help="delete runs that have ended: folder, configs, registry")
    add_run(four, several=True)
    four.add_argument("--yes", "-y", action="store_true", help="do not ask on a terminal")
    add_json(four)
    four.set_defaults(command=delete)


def pause(args: argparse.Namespace) -> int:
    """Request the pause, and wait until the runs are paused."""
    return _ask(args, lambda client, run_id: client.pause_run(run_id), "PAUSED")


def go_on(args: argparse.Namespace) -> int:
    """Request the continuation, and wait until the runs execute."""
    return _ask(args, lambda client, run_id: client.continue_run(run_id), "EXECUTING")


def cancel(args: argparse.Namespace) -> int:
    """Request the cancellation, and wait until no process of the runs is left."""
    return _ask(args, lambda client, run_id: client.cancel_run(run_id, args.grace), "CANCELLED")


def _ask(args: argparse.Namespace, ask: Callable[[Client, str], Run], wanted: str) -> int:
    """Send a request for each run; return 1 if a run ended in another state first."""
    with connect() as client:
        run_ids = find_runs(client, args.runs)
        runs = [ask(client, run_id) for run_id in run_ids]
        if not args.no_wait:
            try:
                runs = _wait(client, runs, wanted)
            except KeyboardInterrupt:
                say("it has been asked and will do so without this command; look with: mosaic runs")
                return 130
    if args.json:
        print_json(document(runs[0]) if len(runs) == 1 else {"runs": [document(run) for run in runs]})
    else:
        for run in runs:
            asked = f", asked to {run.asked}" if run.asked else ""
            print(f"{run.run_id} is {run.state}{asked} at step {run.step:,}")
    return 0 if args.no_wait or all(str(run.state) == wanted for run in runs) else 1


def _wait(client: Client, runs: Sequence[Run], wanted: str) -> list[Run]:
    """Wait until every run has the wanted state, or has ended."""
    found = {run.run_id: run for run in runs}
    with waiting(f"waiting for {', '.join(short_id(run_id) for run_id in found)} to be {wanted}"):
        while True:
            open_ones = [run for run in found.values() if not (str(run.state) == wanted or run.ended)]
            if not open_ones:
                return list(found.values())
            time.sleep(POLL_SECONDS)
            found |= {run.run_id: client.get_run(run.run_id) for run in open_ones}


def delete(args: argparse.Namespace) -> int:
    """Delete runs, after a confirmation on a terminal; print how much was freed."""
    from pathlib import Path

    from mosaic.contract.paths import RunPaths
    from mosaic.store.stored import url_of

    with connect() as client:
        runs = [client.get_run(run_id) for run_id in find_runs(client, args.runs)]
        sizes = {run.run_id: folder_bytes(Path(run.folder)) for run in runs}
        if not args.yes and sys.stdin.isatty() and not args.json and not _agreed(runs, sizes):
            return 1
        for run in runs:
            copy = url_of(RunPaths(run.run_id, Path(run.folder).parents[3]))
            client.delete_run(run.run_id)
            if not args.json:
                kept = f"; its copy in {copy} stays" if copy else ""
                print(f"deleted {run.run_id} ({run.algo} on {run.env_id}): {size(sizes[run.run_id])} freed{kept}")
    if args.json:
        print_json({"deleted": [run.run_id for run in runs], "bytes": sum(sizes.values())})
    return 0


def _agreed(runs: Sequence[Run], sizes: dict[str, int]) -> bool:
    for run in runs:
        print(f"{run.run_id}  {run.state}  {run.algo} on {run.env_id}, {run.step:,} steps, {size(sizes[run.run_id])}")
    try:
        answer = input(f"Delete {'it' if len(runs) == 1 else f'these {len(runs)} runs'} for good? [y/N] ")
    except EOFError:
        answer = ""
    return answer.strip().lower() in ("y", "yes")


def folder_bytes(folder: Any) -> int:
    """Return the size of a folder's files; one that vanishes meanwhile counts as 0."""
    total = 0
    for file in () if folder.is_symlink() else folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.lstat().st_size if not file.is_dir() else 0
    return total
