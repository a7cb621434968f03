"""mosaic rebuild: the registry's rows recreated from the run folders, by the daemon or without one."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.commands.connection import connect
from mosaic.commands.printing import add_json, print_json, say, waiting
from mosaic.contract import variables
from mosaic.contract.channel import daemon_card, read_card
from mosaic.contract.errors import ConfigError
from mosaic.contract.paths import RunPaths, resolve_home

if TYPE_CHECKING:
    from mosaic.trainer.run import Rebuilt


def add_to(commands: Any) -> None:
    """Declare the command."""
    one = commands.add_parser(
        "rebuild",
        help="recreate the registry's rows from the run folders",
        description="Give every run folder without a row one: names, settings, states, curves. Runs with a readable "
        "row are left alone. A run without its accepted config is marked as imported.",
    )
    add_json(one)
    one.set_defaults(command=rebuild)


def rebuild(args: argparse.Namespace) -> int:
    """Rebuild through the running daemon, or in this process if no daemon holds the home."""
    home = resolve_home()
    if os.environ.get(variables.MOSAIC_TARGET) or read_card(daemon_card(home)):
        with connect() as client, waiting("the daemon reads the run folders"):
            found = client.rebuild()
        lines = [f"rebuilt {run_id}" for run_id in found.rebuilt]
        lines += [f"skipped {name}: {why}" for name, why in found.skipped.items()]
        for line in () if args.json else lines:
            print(line)
    elif not RunPaths("any", home).folder.parent.is_dir():
        raise ConfigError(f"nothing to rebuild: {home} has no run folders; name their home with MOSAIC_HOME")
    else:
        found = _here(home, quiet=args.json)
    counts = f"{len(found.rebuilt)} rebuilt, {len(found.skipped)} skipped, {found.known} had a row"
    if args.json:
        print_json({"rebuilt": found.rebuilt, "skipped": found.skipped, "known": found.known})
    else:
        print(counts)
    return 0


def _here(home: Path, *, quiet: bool) -> Rebuilt:
    from mosaic.contract.happenings import Happenings
    from mosaic.trainer.daemon import take_lock
    from mosaic.trainer.registry.database import set_aside_damaged
    from mosaic.trainer.registry.folders import database_file
    from mosaic.trainer.registry.rebuild import Rebuild
    from mosaic.trainer.registry.registry import Registry
    from mosaic.trainer.scheduling.gpu import Machine
    from mosaic.trainer.scheduling.submission import Submissions, Vault

    lock = take_lock(home)
    try:
        if aside := set_aside_damaged(database_file(home)):
            say(f"the damaged registry is kept as {aside}")
        happenings, registry = Happenings(home / "var" / "logs" / "trainer_daemon.log"), Registry(home)
        try:
            submissions = Submissions(registry, Vault(), happenings, Machine())
            return Rebuild(registry, submissions, happenings).run(
                (lambda text: None) if quiet else lambda text: print(text, flush=True)
            )
        finally:
            registry.close()
            happenings.close()
    finally:
        os.close(lock)
