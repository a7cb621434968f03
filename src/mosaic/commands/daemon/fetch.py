"""mosaic fetch: a run's files from its store into its folder; also the files that other commands need."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.commands.connection import connect
from mosaic.commands.naming import add_run, find_run
from mosaic.commands.printing import add_json, print_json, shortest, size, waiting
from mosaic.contract.checkpoints import find_all
from mosaic.contract.errors import ConfigError, NoDaemonError, UnknownRunError
from mosaic.contract.paths import RunPaths, check_run_id, resolve_home
from mosaic.store.stored import StoredRun, ensure, url_of

if TYPE_CHECKING:
    from mosaic.trainer.run import Run


def add_to(commands: Any) -> None:
    """Declare the command."""
    one = commands.add_parser("fetch", help="bring a run's files here from the store that it keeps a copy in")
    add_run(one)
    one.add_argument(
        "--from", dest="url", metavar="URL", default="", help="the store (file://, s3://, …), if unknown here"
    )
    one.add_argument("--all", action="store_true", help="every checkpoint, not only the newest")
    add_json(one)
    one.set_defaults(command=fetch)


def fetch(args: argparse.Namespace) -> int:
    """Fetch the newest checkpoint and every file; local files are never overwritten."""
    paths = _paths(args.run, args.url)
    url = args.url or url_of(paths)
    if not url:
        raise ConfigError(
            f"run {paths.run_id} keeps no copy that is known here; name its store: "
            f"mosaic fetch {paths.run_id} --from s3://bucket/folder"
        )
    stored = StoredRun(paths, url)
    if stored.manifest() is None:
        raise ConfigError(f"{stored.url} has no run {paths.run_id}")
    came = [0]
    with waiting(f"fetching {paths.run_id} from {stored.url}") as tell:

        def progress(done: int, total: int) -> None:
            came[0] = max(came[0], done)
            tell(f"fetching {paths.run_id} from {stored.url}: {size(done)} of {size(total)}")

        stored.fetch_newest_checkpoint(progress)
        stored.fetch(progress=progress, all_saved=args.all)
    steps = [int(path.name) for path in find_all(paths.checkpoints)]
    if args.json:
        print_json({"run_id": paths.run_id, "folder": str(paths.folder), "url": stored.url, "checkpoints": steps})
        return 0
    saved = f"checkpoints of step {', '.join(f'{step:,}' for step in steps)}" if steps else "no checkpoint"
    print(f"{paths.run_id} is in {shortest(paths.folder)}, with {saved} ({size(came[0])} fetched)")
    return 0


def fetch_for(run: Run, relative: str = "") -> None:
    """Fetch a run's newest checkpoint, or a file, if only its store has it and its folder is on this machine."""
    folder = Path(run.folder)
    home = folder.parents[3]
    if not home.is_dir():  # a daemon on another machine fetches by itself
        return
    with waiting(f"looking into the store of {run.run_id}") as tell:
        ensure(folder / relative, home, progress=lambda done, total: tell(f"fetching: {size(done)} of {size(total)}"))


def _paths(name: str, url: str) -> RunPaths:
    """Return the paths of a daemon's run; with a store given, of any complete id."""
    try:
        with connect() as client:
            run = client.get_run(find_run(client, name))
            home = Path(run.folder).parents[3]
            # The daemon may be on another machine; its home is then not a folder here.
            return RunPaths(run.run_id, home if home.is_dir() else resolve_home())
    except (NoDaemonError, UnknownRunError):
        if not url:
            raise
        return RunPaths(check_run_id(name), resolve_home())
