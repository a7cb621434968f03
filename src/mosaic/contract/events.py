"""Lifecycle and telemetry events as JSON lines: encode, decode, replay, append."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from mosaic.contract.errors import EventError, MosaicError, nearest, shown, storage_error
from mosaic.contract.paths import check_run_id

EVENT_KINDS = frozenset(
    "run_started heartbeat run_completed run_failed episode step metrics stage phase checkpoint resumed paused "
    "continued eval_batch warning".split()
)
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""The spelling in our JSON lines of the floats that JSON lacks."""

_KEYS = ("event", "run_id", "seq", "timestamp", "payload")
_JSON = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS
_BLOCK = 65536


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a worker's run; `seq` counts from 0 without gaps, `timestamp` is in unix seconds."""

    event: str
    run_id: str
    seq: int
    timestamp: float
    payload: dict[str, Any]


def resumed_total(payload: Mapping[str, Any]) -> int | None:
    """Return the total_timesteps that a `resumed` event changed, None if it is unchanged.

    Only the algorithm knows it for sure: a run that still trains may save another checkpoint before it is read.
    """
    changed = payload.get("changed")
    pair = changed.get("total_timesteps") if isinstance(changed, Mapping) else None
    return pair[1] if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], int) else None


def encode(event: Event) -> bytes:
    """Return the event as one line; non-finite floats of its payload are spelled as in NOT_FINITE."""
    return to_line(
        {
            "event": event.event,
            "run_id": event.run_id,
            "seq": event.seq,
            "timestamp": event.timestamp,
            "payload": event.payload,
        }
    )


def decode(line: bytes | str) -> Event:
    """Read one line strictly; the payload's "NaN" and similar stay strings (a message may contain them too)."""
    found = from_line(line)
    if set(found) != set(_KEYS):
        missing = ", ".join(key for key in _KEYS if key not in found)
        unknown = ", ".join(shown(key) for key in found if key not in _KEYS)
        problem = f"lacks {missing}" if missing else f"has the unknown key {unknown}"
        raise EventError(f"an event {problem}; its keys are {', '.join(_KEYS)}")
    _check_kind(found["event"])
    _check_run_id(found["run_id"])
    if type(found["seq"]) is not int or found["seq"] < 0:
        raise EventError(f"an event's seq is a whole number from 0, not {shown(found['seq'])}")
    if type(found["timestamp"]) not in (int, float):
        raise EventError(f"an event's timestamp is a number of unix seconds, not {shown(found['timestamp'])}")
    if type(found["payload"]) is not dict:
        raise EventError(f"an event's payload is an object, not {shown(found['payload'])}")
    return Event(**found)


def replay(path: Path, from_seq: int = 0) -> Iterator[Event]:
    """Yield the events from `from_seq` on; stop at an incomplete line (still being written, or cut)."""
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        return
    with file:
        for number, line in enumerate(file):
            if not line.endswith(b"\n"):
                return
            try:
                event = decode(line)
            except EventError as error:
                raise EventError(f"{path}, line {number + 1}: {error}") from None
            if event.seq != number:
                raise EventError(f"{path}, line {number + 1}: seq is {event.seq} where {number} is next")
            if event.seq >= from_seq:
                yield event


def last_seq(path: Path) -> int:
    """Return the seq of the last whole line, -1 if none exists; reads the end of the file only."""
    last = _last_event(path)
    return -1 if last is None else last.seq


def cut_torn_tail(path: Path) -> int:
    """Cut the bytes after the last whole line of any JSON-lines file and return their number.

    Call it before appending to a file whose last writer may have been killed, or two lines become one.
    """
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise storage_error(path, error) from None
    try:
        return _cut_torn_tail(descriptor)
    except OSError as error:
        raise storage_error(path, error) from None
    finally:
        os.close(descriptor)


class EventLog:
    """Appends a run's events to a file, whole lines per write; thread-safe and safe between processes.

    A torn tail left by a killed writer is cut first, and `seq` continues from the last whole line.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = Path(path)
        self.run_id = check_run_id(run_id)
        self._lock = threading.Lock()
        self._seq = 0
        self._size = -1  # differs from the file's: the first append, or another process's, makes us read its end
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise storage_error(self.path, error) from None
        try:
            with self._alone():
                pass
        except MosaicError:
            self.close()
            raise

    def append(self, kind: str, payload: dict[str, Any]) -> Event:
        """Write the next event; every reader sees it once this returns."""
        return self.append_all([(kind, payload)])[0][0]

    def append_all(self, told: Sequence[tuple[str, dict[str, Any]]]) -> list[tuple[Event, bytes]]:
        """Write the next events in one write, all or none; return each with its line."""
        for kind, _ in told:
            _check_kind(kind)
        with self._lock:
            if self._file < 0:
                raise EventError(f"{self.path} is closed; no event can be added")
            with self._alone():
                now = time.time()
                events = [
                    Event(kind, self.run_id, seq, now, payload) for seq, (kind, payload) in enumerate(told, self._seq)
                ]
                lines = [encode(event) for event in events]
                data = b"".join(lines)
                self._write(data)
                self._seq += len(lines)
                self._size += len(data)
        return list(zip(events, lines, strict=True))

    def close(self) -> None:
        """Close the file; idempotent."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes' appends apart from ours: the shells of one script share a log."""
        try:
            _lock_file(self._file, fcntl.LOCK_EX)
            try:
                self._catch_up()
                yield
            finally:
                _lock_file(self._file, fcntl.LOCK_UN)
        except OSError as error:
            raise storage_error(self.path, error) from None

    def _catch_up(self) -> None:
        """Find the next seq, unless no other process has written since we last did."""
        if os.fstat(self._file).st_size == self._size:
            return
        _cut_torn_tail(self._file)
        last = _last_event_in(self._file, self.path)
        if last is not None and last.run_id != self.run_id:
            raise EventError(f"{self.path} holds events of run {last.run_id}, not of {self.run_id}")
        self._seq = 0 if last is None else last.seq + 1
        self._size = os.fstat(self._file).st_size

    def _write(self, lines: bytes) -> None:
        """Write all lines, or none if the disk fills up half-way."""
        try:
            written = os.write(self._file, lines)
            while written < len(lines):
                written += os.write(self._file, lines[written:])
        except OSError:
            os.ftruncate(self._file, self._size)
            raise


def to_line(value: Any) -> bytes:
    """Return `value` as one line of JSON, fast for plain values; non-finite numbers are spelled out."""
    try:
        line = orjson.dumps(value, None, _JSON)
        # orjson writes null for a non-finite float: the slow path is needed only if a null occurs.
        if b"null" not in line:
            return line
    except TypeError:
        pass
    try:
        return orjson.dumps(_plain(value), None, _JSON)
    except (TypeError, RecursionError) as error:
        raise EventError(f"this cannot be written as JSON: {error or type(error).__name__}") from None


def from_line(line: bytes | str) -> dict[str, Any]:
    """Read one line of JSON that must be an object."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise EventError(f"not JSON ({error}): {shown(line)}") from None
    if type(found) is not dict:
        raise EventError(f"a JSON object is expected, not {shown(found)}")
    return found


def _check_run_id(run_id: object) -> None:
    try:
        check_run_id(run_id)
    except ValueError as error:
        raise EventError(str(error)) from None


def _lock_file(descriptor: int, operation: int) -> None:
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        # Lustre is often mounted without locks: the usual one shell per run needs none.
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
            raise


def _check_kind(kind: object) -> None:
    if not isinstance(kind, str) or kind not in EVENT_KINDS:
        near = nearest(kind, EVENT_KINDS) if isinstance(kind, str) else ""
        raise EventError(f"unknown event {shown(kind)}{near or '; one of ' + ', '.join(sorted(EVENT_KINDS))}")


def _plain(value: Any) -> Any:
    """Return `value` with the floats, strings and arrays that JSON or UTF-8 lack made writable."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # half a surrogate pair, from an undecodable file name
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else value


def _last_event(path: Path) -> Event | None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return _last_event_in(descriptor, path)
    finally:
        os.close(descriptor)


def _last_event_in(descriptor: int, path: Path) -> Event | None:
    end = end_of_last_line(descriptor, os.fstat(descriptor).st_size)
    if end == 0:
        return None
    start = end_of_last_line(descriptor, end - 1)
    try:
        return decode(os.pread(descriptor, end - start, start))
    except EventError as error:
        raise EventError(f"{path}, last line: {error}") from None


def _cut_torn_tail(descriptor: int) -> int:
    size = os.fstat(descriptor).st_size
    whole = end_of_last_line(descriptor, size)
    if whole < size:
        os.ftruncate(descriptor, whole)
    return size - whole


def end_of_last_line(descriptor: int, size: int) -> int:
    """Return the offset just after the last newline among the first `size` bytes, 0 if none is found."""
    while size > 0:
        start = max(0, size - _BLOCK)
        newline = os.pread(descriptor, size - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        size = start
    return 0
