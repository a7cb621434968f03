"""The phases of a script's run, shared by its processes: a JSON line when one starts, another when it ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from mosaic.contract.errors import EventError, storage_error
from mosaic.contract.fields import NOTE_BYTES, parse_object
from mosaic.contract.files import PHASE
from mosaic.contract.metrics import decode_row
from mosaic.contract.paths import RunPaths

COMPLETED, FAILED, REFUSED, STOPPED = "completed", "failed", "refused", "stopped"
_TAIL_BYTES = 65536


@dataclass(frozen=True)
class PhaseRecord:
    """One phase; `outcome` is "" while it runs, or if it was killed before it could report."""

    number: int
    name: str
    algo: str
    env_id: str
    first_step: int
    """the run's step at its start"""
    metrics_offset: int
    """the size of metrics.jsonl at its start"""
    pid: int
    outcome: str = ""
    end_step: int | None = None
    exit_code: int | None = None
    seconds: float = 0.0
    episodes: int = 0
    final_return: float | None = None
    """of the run at its end; `best_return` is over all phases up to it"""
    best_return: float | None = None
    error: str = ""
    """the reason of a failure, in one line"""


def read_phases(paths: RunPaths) -> list[PhaseRecord]:
    """Return the run's phases in the order of their starts; [] if no script ran."""
    try:
        lines = paths.phases.read_bytes().splitlines(keepends=True)
    except OSError:
        return []
    return _records(lines)


def begin_phase(paths: RunPaths, algo: str, env_id: str) -> PhaseRecord:
    """Start a phase with the next number; its curve begins where the last one's ended."""
    with _alone(paths) as descriptor:
        before = _records(os.pread(descriptor, os.fstat(descriptor).st_size, 0).splitlines(keepends=True))
        number = len(before) + 1
        first = (before[-1].first_step, before[-1].metrics_offset) if before else (0, 0)
        step, offset = _stand(paths, *first)
        step = max(step, before[-1].end_step or 0) if before else step  # its last steps may have no row
        plain = "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in env_id)
        record = PhaseRecord(number, f"phase{number}-{plain}", algo, env_id, step, offset, os.getpid())
        _append(descriptor, record)
    return record


def end_phase(paths: RunPaths, record: PhaseRecord) -> None:
    """Record a phase's end; the last line of a number counts."""
    with _alone(paths) as descriptor:
        _append(descriptor, record)


def last_step(paths: RunPaths) -> int | None:
    """Return the step of the newest row of metrics.jsonl, None if it has no rows."""
    try:
        with paths.metrics.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return None
    for line in reversed(lines):
        with contextlib.suppress(EventError):
            if "step" in (row := decode_row(line)) and line.endswith(b"\n"):
                return int(row["step"])
    return None


def is_alive(paths: RunPaths) -> bool:
    """Return True if a process of the run lives: its shells, and a script's host, hold the run's lock."""
    try:
        descriptor = os.open(paths.lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _stand(paths: RunPaths, step: int, offset: int) -> tuple[int, int]:
    """Return the run's step and the size of its curve, read from the start of the previous phase."""
    try:
        file = paths.metrics.open("rb")
    except FileNotFoundError:
        return step, 0
    with file:
        file.seek(offset)
        for line in file:
            offset += len(line)
            try:
                row = decode_row(line)
            except EventError:
                continue
            if "resumed_from" in row:
                step = max(0, min(step, row["resumed_from"]))
            elif not all(tag.startswith("eval/") or tag in ("step", "time") for tag in row):
                step = max(step, row["step"])  # an evaluation's rows count its episodes
    return step, offset


def _records(lines: list[bytes]) -> list[PhaseRecord]:
    found: dict[int, PhaseRecord] = {}
    for line in lines:
        with contextlib.suppress(ValueError, TypeError):  # cut by a kill
            document = parse_object(line, "phase", NOTE_BYTES)
            PHASE.check_fields(document, "")
            record = PhaseRecord(**{name: value for name, value in document.items() if value is not None})
            found[record.number] = record
    return list(found.values())


def _append(descriptor: int, record: PhaseRecord) -> None:
    line: dict[str, Any] = asdict(record)
    size = os.fstat(descriptor).st_size
    torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # its writer was killed
    os.write(descriptor, b"\n" * torn + json.dumps(line).encode() + b"\n")


@contextlib.contextmanager
def _alone(paths: RunPaths) -> Iterator[int]:
    """Open the file, and lock it against the other shells of the script."""
    try:
        descriptor = os.open(paths.phases, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            with contextlib.suppress(OSError):  # a disk without locks: consecutive phases need none
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        raise storage_error(paths.phases, error) from None
