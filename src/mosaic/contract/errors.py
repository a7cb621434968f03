"""The exceptions that cross a border of ours.

MosaicError
├── ConfigError (also ValueError)    a config, payload, parameter or path that is refused
│   ├── RunIdError                   a run id that could leave its folder
│   └── RefusedError                 a submission that the daemon refuses: it creates no run
├── EventError (also ValueError)     a line that is no event and no row of metrics
├── TrainerError                     what a trainer daemon, or the way to it, cannot do
│   ├── NoDaemonError                no daemon answers
│   ├── AccessError                  a token that is missing, wrong or of another run
│   ├── UnknownRunError              a run that the registry does not hold
│   ├── MoveError                    what the run's present state does not allow
│   ├── DamagedError                 the registry's file is damaged, or not ours
│   └── UnavailableError             the registry cannot be read or written for the moment: try again
├── StoreError                       a storage URL whose store does not answer, refuses, or lacks what is asked for
└── WorkerError                      a plug-in or a worker process that does not work
    └── StorageError                 a full disk, an unwritable folder
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path


class MosaicError(Exception):
    """Any error raised on purpose; its text is one line that a person can act on."""


class ConfigError(MosaicError, ValueError):
    """A config, payload, parameter or path that is refused."""


class RunIdError(ConfigError):
    """A run id that must not become part of a path."""


class RefusedError(ConfigError):
    """A submission that the daemon refuses: no row and no folder, only a line in the daemon's log."""


class EventError(MosaicError, ValueError):
    """A line that is not an event, or not a row of metrics."""


class TrainerError(MosaicError):
    """A failure of a trainer daemon, or of the connection to it."""


class NoDaemonError(TrainerError):
    """A daemon that does not answer."""


class AccessError(TrainerError):
    """A token that is missing, wrong, or of another run."""


class UnknownRunError(TrainerError):
    """A run that is not in the registry."""


class MoveError(TrainerError):
    """A command that the run's present state does not allow."""


class DamagedError(TrainerError):
    """A registry file that is damaged, or not ours; its content is recreated from the run folders."""


class UnavailableError(TrainerError):
    """A registry that temporarily cannot be read or written; retry."""


class StoreError(MosaicError):
    """A store (`storage_url`) that does not answer, denies access, or lacks a requested object."""


class WorkerError(MosaicError):
    """A plug-in or a worker process that does not work."""


class StorageError(WorkerError):
    """A disk that is full, or a file or folder that cannot be written."""


def nearest(given: str, choices: Iterable[str]) -> str:
    """Return "; did you mean 'ppo'?" for the choice spelled most like `given`, or "" if none is close."""
    from difflib import get_close_matches

    by_lower = {choice.lower(): choice for choice in choices}
    # difflib's work grows with the square of the length; a text longer than any name is close to none.
    close = get_close_matches(given[:200].lower(), by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""


def shown(value: object, limit: int = 60) -> str:
    """Return `value` as an error message quotes it: its repr, on one line and not longer than `limit`."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def storage_error(path: Path | str, error: OSError) -> StorageError:
    """Return the one-line error for a write to `path` that the system refused."""
    reason = error.strerror or str(error)
    return StorageError(f"cannot write {path}: {reason}; {_REMEDIES.get(error.errno or 0, _OTHER_REMEDY)}")


_OTHER_REMEDY = "check the folder, or choose another with MOSAIC_HOME"
_REMEDIES = {
    errno.ENOSPC: "free some space, or move MOSAIC_HOME to another disk",
    errno.EDQUOT: "your disk quota is used up: free some space, or move MOSAIC_HOME to another disk",
    errno.EROFS: "this file system is read-only: choose another folder with MOSAIC_HOME",
    errno.EACCES: "give yourself write permission, or choose another folder with MOSAIC_HOME",
    errno.EPERM: "give yourself write permission, or choose another folder with MOSAIC_HOME",
}
