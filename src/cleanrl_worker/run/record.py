"""A run's record: its folder, the rows of `metrics.jsonl` with their followers, and notes."""

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
    """Create and return a run's name and folder; without a given folder, the name is unique within this second."""
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
    """Return a text as a file name: `ALE/Pong-v5` and `module:Id` name folders too."""
    return text.replace("/", "-").replace(":", "-")


class Record:
    """The rows and notes of one run.

    A shell that hosts the run tails `metrics.jsonl` for TensorBoard and W&B; without a shell, a thread and a process
    of our own do so, according to the run's arguments.
    """

    def __init__(self, folder: Path, name: str, args: Mapping[str, Any]) -> None:
        self.folder = folder
        # a user's script that uses our parts gets no run_dir: the shell does not know the folder it creates
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
        if written < len(row):  # the next run in this folder removes the partial row
            raise _unwritable(self.folder, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def tell(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Emit an event to the shell that hosts the run; without a shell, only print warnings."""
        if self.hosted:
            with (self.folder / "logs" / "notes.jsonl").open("a") as notes:
                notes.write(json.dumps({"event": kind, "payload": payload}) + "\n")
        elif kind == "warning":
            print(payload["message"], file=sys.stderr)

    def paused_seconds(self) -> float | None:
        """Return the total time the shell has paused the run; None if another process resumed it."""
        try:
            return float((self.folder / "logs" / "paused_seconds").read_text())
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Close the rows and their followers; W&B gets some time to upload the remaining rows."""
        os.close(self._rows)
        for close in self._closers:
            close()


def _unwritable(folder: Path, error: OSError) -> SystemExit:
    return SystemExit(f"cannot write into the run folder {folder}: {error.strerror}")
