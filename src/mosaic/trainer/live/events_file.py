"""A run's events by number and by byte, from the file that its worker appends to and that stores them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from mosaic.contract.event_reader import decoded
from mosaic.contract.events import Event
from mosaic.contract.fields import EVENT_BYTES
from mosaic.contract.lines import lines_of

_BLOCK = 1 << 18


def read_events(path: Path, run_id: str, from_seq: int, until_seq: int) -> Iterator[Event]:
    """Yield a run's events with from_seq <= seq < until_seq in order, without the lines that the relay drops."""
    if from_seq >= until_seq:
        return
    try:
        start = _offset_of(path, from_seq)
        for line, _ in lines_of(path, start, EVENT_BYTES):
            event = decoded(line)
            if event is None or event.seq < from_seq or event.run_id != run_id:
                continue
            if event.seq >= until_seq:
                return
            yield event
            from_seq = event.seq + 1
    except OSError:
        return


def last_events(path: Path, end: int, most_bytes: int = 1 << 20) -> Iterator[Event]:
    """Yield the events in the last `most_bytes` before the offset `end`."""
    try:
        for line, behind in lines_of(path, max(0, end - most_bytes), EVENT_BYTES):
            if behind > end:
                return
            if (event := decoded(line)) is not None:
                yield event
    except OSError:
        return


def _offset_of(path: Path, seq: int) -> int:
    """Return an offset at or before the line with this seq, by bisection: seq increases along the file."""
    if seq == 0:
        return 0
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        low, high = 0, os.fstat(descriptor).st_size
        while high - low > _BLOCK:
            middle = (low + high) // 2
            start, found = _first_event_from(descriptor, middle, high)
            if found is None or found >= seq:
                high = middle
            else:
                low = start
        return low
    finally:
        os.close(descriptor)


def _first_event_from(descriptor: int, offset: int, end: int) -> tuple[int, int | None]:
    """Return start and seq of the first whole line after `offset`, if it lies within two blocks."""
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
