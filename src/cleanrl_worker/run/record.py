"""What a run writes down as it goes: its folder, the rows of `metrics.jsonl` with whoever follows them, and notes."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mosaic.contract import companions, metrics, variables
from mosaic.contract.errors import StorageError
from mosaic.contract.events import cut_torn_tail
from mosaic.contract.tensorboard import follow_rows


def make_folder(given: Path | None, env_id: str, exp_name: str, seed: int) -> tuple[str, Path]:
    """A run's name and folder; where none is given, a name that no other run of this second has."""
    unix = int(time.time())
    while True:
        name = f"{file_name(env_id)}__{exp_name}__{seed}__{unix}"
        folder = (given or Path("runs") / name).absolute()
        try:
            folder.mkdir(parents=True, exist_ok=given is not None)
            return name, folder
        except OSError as error:
            if given is not None or not folder.is_dir():
                raise _unwritable(folder, error) from error
        unix += 1


def file_name(text: str) -> str:
    """`ALE/Pong-v5` and `module:Id` name folders too."""
    return text.replace("/", "-").replace(":", "-")


class Record:
    """The rows and notes of one run.

    A shell that hosts the run tails `metrics.jsonl` for TensorBoard and W&B; alone, a thread and a process of our own
    do so, as the run's arguments say.
    """

    def __init__(self, folder: Path, name: str, args: Mapping[str, Any]) -> None:
        self.folder = folder
        # a person's own script that uses our parts is given no folder: the shell knows nothing of the one it makes
        self.hosted = os.environ.get(variables.MOSAIC_SHELL_PID) == str(os.getppid()) and args["run_dir"] is not None
        path = folder / "metrics.jsonl"
        self._closers: list[Callable[[], None]] = []
        try:
            self._rows = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            cut_torn_tail(path)
            offset = os.fstat(self._rows).st_size
            if not self.hosted:
                tensorboard = Path(args["tensorboard_dir"] or folder / "tensorboard")
                self._closers.append(follow_rows(path, offset, tensorboard))
                if args["track"]:
                    self._closers.append(companions.start_tracker(folder, offset, name, args))
        except OSError as error:
            raise _unwritable(folder, error) from error
        except StorageError as error:
            raise SystemExit(str(error)) from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append one row."""
        row = metrics.encode_row(step, time.time(), values)
        try:
            written = os.write(self._rows, row)
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        if written < len(row):  # the next run in this folder cuts the half row off
            raise _unwritable(self.folder, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def tell(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Hand an event to the shell that hosts the run; alone, only what went wrong is shown."""
        if self.hosted:
            with (self.folder / "logs" / "notes.jsonl").open("a") as notes:
                notes.write(json.dumps({"event": kind, "payload": payload}) + "\n")
        elif kind == "warning":
            print(payload["message"], file=sys.stderr)

    def paused_seconds(self) -> float | None:
        """How long the shell has paused the run in all; None where it was continued by somebody else."""
        try:
            return float((self.folder / "logs" / "paused_seconds").read_text())
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """W&B gets a while to send what is left."""
        os.close(self._rows)
        for close in self._closers:
            close()


def _unwritable(folder: Path, error: OSError) -> SystemExit:
    return SystemExit(f"cannot write into the run folder {folder}: {error.strerror}")
