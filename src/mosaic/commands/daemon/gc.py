"""mosaic gc: removal of unused files and shared memory; only a list unless --yes is given."""

from __future__ import annotations

import argparse
import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.commands.connection import connect, local_home
from mosaic.commands.printing import add_json, ago, print_json, say, size, waiting
from mosaic.commands.run.control import folder_bytes
from mosaic.contract.checkpoints import PINNED, drop_segments, find_all, prune, unused_segments
from mosaic.contract.errors import ConfigError, MosaicError
from mosaic.contract.paths import RunPaths

if TYPE_CHECKING:
    from mosaic.trainer.rpc.client import Client
    from mosaic.trainer.run import Run

KINDS = {
    "rings": "shared memory of live views whose run was killed",
    "configs": "config files whose run is gone",
    "checkpoints": "checkpoints of ended runs, beyond the newest and the pinned",
    "runs": "ended runs that are older than --older-than",
}
UNITS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_CONFIG = re.compile(r"(?:config|worker)-(?P<run>[A-Za-z0-9_-]+?)(?:-\d+|-policy)?\.json")
# A dry run, or an atomic write, lasts seconds; an older file was left by a killed process.
LEFT_OVER = 3600.0


@dataclass(frozen=True)
class Waste:
    """An unused item; `remove` deletes it."""

    kind: str
    what: str
    count: int
    remove: Callable[[], object]


def add_to(commands: Any) -> None:
    """Declare the command."""
    one = commands.add_parser(
        "gc",
        help="free disk: dead live views, orphaned configs, old checkpoints, old runs; with --yes",
        description="Kinds: " + "; ".join(f"{name}: {text}" for name, text in KINDS.items()) + ".",
    )
    one.add_argument("--older-than", metavar="30d", help="also runs that ended longer ago: 12h, 30d, 8w")
    one.add_argument("--only", action="append", choices=list(KINDS), help="only this kind; may be repeated")
    one.add_argument("--yes", "-y", action="store_true", help="remove it; without this it is only listed")
    add_json(one)
    one.set_defaults(command=collect)


def collect(args: argparse.Namespace) -> int:
    """List what can be removed, or remove it; return 1 if something could not be removed."""
    oldest = None if args.older_than is None else time.time() - parse_age(args.older_than)
    kinds = args.only or list(KINDS)
    from mosaic.trainer.registry.folders import advice, unlisted

    with connect() as client:
        home = local_home(client, client.health(), "run mosaic gc")
        with waiting(f"looking through {home / 'var'}"):
            found = [waste for waste in find(client, home, oldest) if waste.kind in kinds]
            orphans = unlisted(home)
        freed, failed = 0, 0
        for waste in found:
            if args.yes:
                try:
                    waste.remove()
                except (MosaicError, OSError) as error:
                    say(f"{waste.what} stays: {error}")
                    failed += 1
                    continue
            freed += waste.count
            if not args.json:
                done = "removed" if args.yes else "would remove"
                print(f"{done}  {waste.kind:<11}  {size(waste.count):>8}  {waste.what}")
    if args.json:
        items = [{"kind": waste.kind, "what": waste.what, "bytes": waste.count} for waste in found]
        print_json({"removed": args.yes, "bytes": freed, "items": items, "without_row": orphans})
    elif not found:
        print("nothing to remove" + ("" if oldest is not None else "; for old runs add: --older-than 30d"))
    elif args.yes:
        print(f"{size(freed)} freed")
    else:
        print(f"{size(freed)} would be freed; do it with: mosaic gc --yes" + _repeated(args))
    if orphans and not args.json:
        say(advice(orphans))
    return 1 if failed else 0


def _repeated(args: argparse.Namespace) -> str:
    """Return the flags that the user gave, for the suggested command."""
    older = f" --older-than {args.older_than}" if args.older_than else ""
    return older + "".join(f" --only {kind}" for kind in args.only or ())


def parse_age(text: str) -> float:
    """Convert `30d`, `12h` or `8w` to seconds."""
    if not re.fullmatch(r"\d+[hdw]", text):
        raise ConfigError(f"--older-than takes a number with h, d or w, such as 30d; not {text!r}")
    return int(text[:-1]) * UNITS[text[-1]]


def find(client: Client, home: Path, oldest: float | None) -> Iterator[Waste]:
    """Yield everything that can be removed, the least valuable first."""
    runs = {run.run_id: run for run in _all_runs(client)}
    yield from _rings()
    yield from _configs(home, runs)
    old = [run for run in runs.values() if run.ended and oldest is not None and run.ended_at < oldest]
    for run in runs.values():
        if run.ended and run not in old:
            yield from _checkpoints(run)
    for run in sorted(old, key=lambda run: run.ended_at):
        text = f"{run.run_id} ({run.algo} on {run.env_id}, {run.state} {ago(run.ended_at)})"
        yield Waste("runs", text, folder_bytes(Path(run.folder)), partial(client.delete_run, run.run_id))


def _all_runs(client: Client) -> Iterator[Run]:
    page = ""
    while True:
        answer = client.list_runs(page_size=1000, page=page)
        yield from answer.runs
        page = answer.next_page
        if not page:
            return


def _rings() -> Iterator[Waste]:
    from mosaic.contract.frames import dead_rings, end

    for path in dead_rings():
        yield Waste("rings", str(path), path.stat().st_size, partial(end, path.name))


def _configs(home: Path, runs: dict[str, Run]) -> Iterator[Waste]:
    """Yield config files of runs that neither the registry nor the disk has, and a killed daemon's partial files."""
    folder = RunPaths("any", home).configs_folder
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            status = file.stat()
            named = _CONFIG.fullmatch(file.name)
            if named:
                run_id = named["run"]
                orphan = run_id not in runs and not RunPaths(run_id, home).folder.exists()
            else:
                orphan = file.name.startswith(".") and time.time() - status.st_mtime > LEFT_OVER
            if orphan:
                yield Waste("configs", str(file.relative_to(home)), status.st_size, file.unlink)


def _checkpoints(run: Run) -> Iterator[Waste]:
    folder = Path(run.folder) / "checkpoints"
    direct = [path for path in find_all(folder) if path.parent == folder]
    going = [path for path in direct[1:] if not (path / PINNED).exists()]
    segments = unused_segments(folder, [path for path in direct if path not in going])
    count = sum(map(folder_bytes, going)) + sum(file.stat().st_size for file in segments)
    if going:
        steps = ", ".join(path.name for path in reversed(going))
        # Without a budget, the newest checkpoint and the pinned ones stay.
        yield Waste("checkpoints", f"{run.run_id}: steps {steps}", count, lambda: prune(folder, 0))
    elif segments:
        text = f"{run.run_id}: replay segments that no checkpoint needs"
        yield Waste("checkpoints", text, count, lambda: drop_segments(folder))
