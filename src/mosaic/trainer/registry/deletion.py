"""Deletion of a run: its files first, then its rows; undeletable files are named, and the deletion can be retried."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mosaic.contract.errors import StorageError
from mosaic.contract.fields import RUN_ROW
from mosaic.contract.identity import is_running, start_ticks
from mosaic.contract.paths import RunPaths
from mosaic.trainer.registry import metrics_store

# An error names this many files, and the number of the others.
NAMED = 3


def remove_files(paths: RunPaths) -> None:
    """Remove a run's folder and configs; raise StorageError with the files that remain.

    A folder that is a symbolic link is not followed: the link is removed, its target stays.
    """
    left: list[tuple[Path, OSError]] = []
    folder = paths.folder
    if folder.is_symlink():
        _try(folder.unlink, folder, left)
    elif os.path.ismount(folder):
        left.append((folder, OSError(0, "it is a mount point")))
    elif folder.exists():
        shutil.rmtree(folder, onerror=lambda _, path, info: left.append((Path(path), info[1])))  # type: ignore[arg-type]
    for file in (paths.config_file, *paths.configs_folder.glob(f"worker-{paths.run_id}-*.json")):
        _try(file.unlink, file, left)
    # A folder that is not empty only remains because of its content.
    told = [(path, error) for path, error in left if not isinstance(error, FileNotFoundError)]
    if not told:
        return
    named = ", ".join(f"{path} ({error.strerror or error})" for path, error in told[:NAMED])
    more = f" and {len(told) - NAMED} more" if len(told) > NAMED else ""
    raise StorageError(
        f"run {paths.run_id} cannot be deleted: the disk keeps {named}{more}; unmount or unlock it, then delete again"
    )


def remove_rows(connection: sqlite3.Connection, number: int) -> None:
    """Remove all rows of a run."""
    metrics_store.forget(connection, number)
    for table, column in (("artifacts", "run"), ("payloads", "run"), ("runs", "id")):
        connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (number,))


def living_worker(row: sqlite3.Row, paths: RunPaths) -> int:
    """Return the pid of the worker that a row names or that holds the run's lock, 0 if none lives."""
    named = [row[name] for name in ("pid", "start_ticks", "boot_id")]
    if all(RUN_ROW[name].fits(row[name]) for name in ("pid", "start_ticks", "boot_id")) and is_running(*named):
        return int(row["pid"])
    return lock_holder(paths)


def lock_holder(paths: RunPaths) -> int:
    """Return the pid of the shell that holds a run's lock, 0 if nothing holds it."""
    try:
        descriptor = os.open(paths.lock, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with contextlib.suppress(OSError, ValueError):
            pid = int(os.pread(descriptor, 32, 0))
            return pid if start_ticks(pid) is not None else 0
    except OSError:
        pass  # a file system without locks
    finally:
        os.close(descriptor)
    return 0


def _try(remove: Callable[[], Any], path: Path, left: list[tuple[Path, OSError]]) -> None:
    try:
        remove()
    except OSError as error:
        left.append((path, error))
