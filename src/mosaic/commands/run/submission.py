"""The common part of train, resume, eval and script: submit, report the accepted runs, follow if requested."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mosaic.commands.printing import print_json, say, short_id, shortest, waiting
from mosaic.contract.errors import RefusedError
from mosaic.contract.paths import resolve_home

if TYPE_CHECKING:
    from mosaic.trainer.rpc.client import Client
    from mosaic.trainer.run import Run

ONLY_IN_FULL = ("payload", "last_values", "artifacts", "curve")


def add_follow(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the time after the submission."""
    parser.add_argument(
        "--follow", "-f", action="store_true", help="show the run until it ends; Ctrl-C leaves it going"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document as soon as the run is accepted; a view that was asked for goes to stderr",
    )


def submit(client: Client, payloads: Sequence[Mapping[str, Any]], args: argparse.Namespace) -> int:
    """Submit one or several runs; return 0, or the exit code of following them."""
    runs: list[Run] = []
    try:
        with waiting("the daemon lets the worker check the configuration") as say_so_far:
            for payload in payloads:
                runs.append(client.submit_run(payload, priority=args.priority))
                say_so_far(f"submitted {len(runs)} of {len(payloads)} runs")
    except RefusedError:
        if runs:
            say(f"{len(runs)} of {len(payloads)} runs had been accepted before: {', '.join(r.run_id for r in runs)}")
        raise
    if args.json:
        print_json(document(runs[0]) if len(payloads) == 1 else {"runs": [document(run) for run in runs]})
    else:
        announce(client, runs, following=args.follow)
    if not args.follow:
        return 0
    from mosaic.commands.run.follow import follow

    return follow(client, runs, to_stderr=args.json)


def document(run: Run) -> dict[str, Any]:
    """Return a run as JSON, without the fields that only `show` prints."""
    return {key: value for key, value in run.to_json().items() if key not in ONLY_IN_FULL}


def announce(client: Client, runs: Sequence[Run], *, following: bool) -> None:
    """Print the accepted runs, and the commands to continue with."""
    for run in runs:
        seed = "" if run.seed is None else f", seed {run.seed}"
        what = run.algo if not run.env_id else f"{run.algo} on {run.env_id}"
        waiting = f", {run.queue_position} ahead of it in the queue" if run.queue_position > 0 else ""
        print(f"accepted {run.run_id}: {what}{seed}{waiting}")
        for warning in run.warnings:
            say(f"warning: {warning}")
    home = client.address.home
    if home and home != str(resolve_home()):
        say(f"the runs lie in {shortest(home)}/var, the home of the daemon that took them")
    sys.stdout.flush()
    if following or not sys.stdout.isatty():
        return
    name = short_id(runs[0].run_id)
    print(f"  watch it: mosaic show -f {name}    its log: mosaic logs -f {name}    all runs: mosaic runs")
