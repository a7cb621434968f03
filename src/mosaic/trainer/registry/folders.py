"""The run folders of a home, and those without a row in the registry."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Collection, Iterator
from pathlib import Path
from urllib.parse import quote

from mosaic.contract.errors import DamagedError, RunIdError, UnavailableError
from mosaic.contract.paths import RunPaths

# A line names this many ids, and the number of the others.
NAMED = 3


def run_folders(home: Path) -> Iterator[tuple[str, str]]:
    """Yield each entry of the folder of runs with the reason why it is not a run, "" if it is one."""
    with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        os.scandir(RunPaths("any", home).folder.parent) as all,
    ):
        for entry in sorted(all, key=lambda entry: entry.name):
            yield os.fsencode(entry.name).decode(errors="replace"), _why_none(entry, home)


def listed(home: Path) -> set[str]:
    """Return the ids in the registry's file, without a daemon; raise DamagedError or UnavailableError."""
    path = database_file(home)
    if not path.exists():
        return set()
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection:
            connection.text_factory = bytes
            return {
                os.fsdecode(row[0]) for row in connection.execute("SELECT run_id FROM runs") if type(row[0]) is bytes
            }
    except sqlite3.Error as error:
        if "locked" in str(error) or "unable to open" in str(error):
            raise UnavailableError(f"the registry {path} cannot be read now: {error}; try again") from None
        raise DamagedError(
            f"the registry {path} is damaged: {error}; recreate it from the run folders with: mosaic rebuild"
        ) from None


def unlisted(home: Path, known: Collection[str] | None = None) -> list[str]:
    """Return the ids of the run folders without a row in the registry."""
    known = listed(home) if known is None else known
    return [name for name, why in run_folders(home) if not why and name not in known]


def advice(run_ids: Collection[str]) -> str:
    """Return the line that names folders without a row and the remedy, "" if every folder has one."""
    if not run_ids:
        return ""
    named = ", ".join(list(run_ids)[:NAMED]) + (", …" if len(run_ids) > NAMED else "")
    words = "1 run folder has no row" if len(run_ids) == 1 else f"{len(run_ids)} run folders have no row"
    return f"{words} in the registry ({named}); recreate from the folders with: mosaic rebuild"


def database_file(home: Path) -> Path:
    """Return the path of the registry's file."""
    return home / "var" / "trainer" / "mosaic.db"


def _why_none(entry: os.DirEntry[str], home: Path) -> str:
    try:
        paths = RunPaths(entry.name, home)
    except RunIdError:
        return "its name is not a run id"
    if entry.is_symlink():
        return "a symbolic link, which is not followed"
    if not entry.is_dir():
        return "no folder"
    if not any(os.path.lexists(path) for path in (paths.events, paths.metrics, paths.config_file)):
        return "it holds neither events nor metrics, and no config of its id is kept"
    return ""
