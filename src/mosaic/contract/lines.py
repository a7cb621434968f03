"""Lines of a growing file, each within a cap: a longer line is skipped in constant memory, and its size is reported."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# The beginning of the one warning that a run gets for dropped lines.
ROW_DROPPED = "a metrics row was dropped"
EVENT_DROPPED = "an event was dropped"
BATCH_BYTES = 1 << 20
_BLOCK = 1 << 18
# The most bytes that one call searches for the end of a line over its cap: a call must return soon.
_SEARCH_BYTES = 64 << 20


@dataclass
class Lines:
    """Whole lines of a file from an offset on, and the offset for the next call."""

    end: int
    """offset behind the last line that was read or dropped"""
    lines: list[bytes] = field(default_factory=list)
    """without their newline"""
    ends: list[int] = field(default_factory=list)
    """offset behind each line"""
    dropped: list[int] = field(default_factory=list)
    """sizes of the lines over the cap"""
    searched: int = 0
    """an unfinished line over the cap reaches at least this far; pass it to the next call"""
    more: bool = False
    """the file may hold more"""


def over(size: int, most: int) -> str:
    """Return why a line of this size is dropped."""
    return f"it has {size:,} bytes, at most {most:,} are accepted; log less at once"


def read_lines(path: Path, offset: int, most: int, *, limit: int = BATCH_BYTES, searched: int = 0) -> Lines:
    """Return about `limit` bytes of whole lines of at most `most` bytes; raise OSError if it is not a plain file."""
    limit = max(limit, most + 1)
    found = Lines(offset)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return found
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a plain file", str(path))
        known = searched if offset < searched <= status.st_size else 0
        stop = max(offset, known) + _SEARCH_BYTES
        while len(data := os.pread(descriptor, limit, found.end)) == limit and b"\n" not in data:
            position = max(known, found.end + limit)
            end = _end_of_line(descriptor, position, stop)
            if end < 0:
                found.searched = max(position, min(stop, status.st_size))
                found.more = found.searched >= stop
                return found
            found.dropped.append(end - 1 - found.end)
            found.end = end
    finally:
        os.close(descriptor)
    found.more = len(data) == limit
    for line in data.split(b"\n")[:-1]:
        found.end += len(line) + 1
        if len(line) > most:
            found.dropped.append(len(line))
        else:
            found.lines.append(line)
            found.ends.append(found.end)
    return found


def lines_of(path: Path, offset: int, most: int) -> Iterator[tuple[bytes, int]]:
    """Yield each whole line within the cap from `offset` on, with the offset behind it."""
    found = Lines(offset, more=True)
    while found.more:
        found = read_lines(path, found.end, most, searched=found.searched)
        yield from zip(found.lines, found.ends, strict=True)


def _end_of_line(descriptor: int, position: int, stop: int) -> int:
    """Return the offset behind the next newline, -1 if none is found before `stop`."""
    while position < stop and (data := os.pread(descriptor, _BLOCK, position)):
        newline = data.find(b"\n")
        if newline >= 0:
            return position + newline + 1
        position += len(data)
    return -1
