"""A run's events by number and by byte: the file that its worker appends to is where they are kept."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from mosaic.wire.errors import EventError
from mosaic.wire.events import Event, decode

_BLOCK = 1 << 18


def read_events(path: Path, from_seq: int, until_seq: int) -> Iterator[Event]:
    """Events with from_seq <= seq < until_seq; lines that are no events are passed over."""
    if from_seq >= until_seq:
        return
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(_offset_of(file.fileno(), from_seq))
        for line in file:
            if not line.endswith(b"\n"):
                return
            event = decoded(line)
            if event is None or event.seq < from_seq:
                continue
            if event.seq >= until_seq:
                return
            yield event


def decoded(line: bytes) -> Event | None:
    """The event, None for a line that is none."""
    try:
        return decode(line)
    except EventError:
        return None


def read_lines(path: Path, offset: int, limit: int) -> tuple[list[bytes], int]:
    """Whole lines from `offset` on, about `limit` bytes of them, and the offset behind them."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return [], offset
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "a plain file is needed", str(path))
        # A line longer than the limit is read whole all the same.
        while True:
            data = os.pread(descriptor, limit, offset)
            end = data.rfind(b"\n") + 1
            if end or len(data) < limit:
                break
            limit *= 2
    finally:
        os.close(descriptor)
    return data[:end].splitlines(keepends=True), offset + end


def _offset_of(descriptor: int, seq: int) -> int:
    """A place at or before the line with this seq: halving the file, since seq counts up along it."""
    low, high = 0, os.fstat(descriptor).st_size
    if seq == 0:
        return 0
    while high - low > _BLOCK:
        middle = (low + high) // 2
        start, found = _first_event_from(descriptor, middle, high)
        if found is None or found >= seq:
            high = middle
        else:
            low = start
    return low


def _first_event_from(descriptor: int, offset: int, end: int) -> tuple[int, int | None]:
    """Start and seq of the first whole line after `offset`."""
    data = os.pread(descriptor, min(_BLOCK, end - offset) + _BLOCK, offset)
    start = data.find(b"\n") + 1
    while start:
        stop = data.find(b"\n", start)
        if stop < 0:
            break
        event = decoded(data[start : stop + 1])
        if event is not None:
            return offset + start, event.seq
        start = stop + 1
    return offset, None
