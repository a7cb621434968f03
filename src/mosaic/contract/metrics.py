"""Rows of `metrics.jsonl`: encode, decode, tail, and the comparison of two runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mosaic.contract.errors import EventError, shown
from mosaic.contract.events import NOT_FINITE, from_line, to_line
from mosaic.contract.fields import ROW_BYTES, ROW_KEYS
from mosaic.contract.lines import over


def encode_row(step: int, time: float, values: Mapping[str, float]) -> bytes:
    """Return one line of scalars; on the training loop's hot path (about a microsecond)."""
    row = {"step": step, "time": time, **values}
    line = to_line(row)
    if len(row) != len(values) + 2 or (b":null" in line and None in row.values()):
        raise EventError(f"a row's tags may not be 'step' or 'time', nor its values None: {shown(row, 200)}")
    return line


def encode_resumed(step: int) -> bytes:
    """Return the line that invalidates the earlier rows beyond `step`."""
    return to_line({"resumed_from": step})


def decode_row(line: bytes | str) -> dict[str, Any]:
    """Read one line strictly: {"step", "time", tag: number, ...} or {"resumed_from": step}."""
    row = from_line(line)
    for tag, value in row.items():
        if isinstance(value, str) and value in NOT_FINITE:
            row[tag] = NOT_FINITE[value]
        elif not isinstance(value, int | float):
            raise EventError(f"a row's {shown(tag)} is a number, not {shown(value)}")
    mark = "resumed_from" if "resumed_from" in row else "step"
    if type(row.get(mark)) is not int:
        raise EventError(f"a row needs a whole number as its 'step' or 'resumed_from': {shown(line)}")
    if mark == "step" and "time" not in row:
        raise EventError(f"a row lacks 'time': {shown(line)}")
    return row


def capped_row(line: bytes) -> dict[str, Any]:
    """Read one line as `decode_row` does; refuse it beyond the caps of a row."""
    if len(line) > ROW_BYTES + 1:
        raise EventError(over(len(line) - 1, ROW_BYTES))
    row = decode_row(line)
    if len(row) > ROW_KEYS + 2:
        size = f"{len(row):,} keys ({len(line):,} bytes)"
        raise EventError(f"it has {size}, at most {ROW_KEYS:,} keys are accepted; log fewer")
    return row


class Tail:
    """Reads the rows that a file has grown by, up to byte `end`; `offset` is the byte after the last row read."""

    def __init__(self, path: Path, offset: int = 0, end: int | None = None, *, capped: bool = False) -> None:
        """With `capped`, a row over its cap, which the daemon drops, counts as a bad line."""
        self.path = Path(path)
        self.offset = offset
        self._end, self._capped = end, capped

    def read(self) -> list[dict[str, Any]]:
        """Return the new whole rows, [] while the file does not exist.

        A bad line raises EventError once, after the rows before it were returned; the next call continues behind it.
        """
        rows: list[dict[str, Any]] = []
        for line in self._whole_lines():
            try:
                row = decode_row(line) if not self._capped else capped_row(line)
            except EventError as error:
                if rows:
                    return rows
                start = self.offset
                self.offset += len(line)
                raise EventError(f"{self.path}, at byte {start}: {error}") from None
            rows.append(row)
            self.offset += len(line)
        return rows

    def _whole_lines(self) -> Iterator[bytes]:
        try:
            file = open(self.path, "rb")
        except FileNotFoundError:
            return
        with file:
            if file.seek(0, 2) < self.offset:
                raise EventError(f"{self.path} is shorter than the {self.offset} bytes already read; it may only grow")
            position = file.seek(self.offset)
            for line in file:
                position += len(line)
                if not line.endswith(b"\n") or (self._end is not None and position > self._end):
                    return
                yield line


def read_rows(path: Path, end: int | None = None) -> list[dict[str, Any]]:
    """Return the valid rows: a resumption drops the earlier rows beyond the step it resumed from."""
    rows: list[dict[str, Any]] = []
    for row in _strict_rows(path, end):
        if "resumed_from" in row:
            rows = [earlier for earlier in rows if earlier["step"] <= row["resumed_from"]]
        else:
            rows.append(row)
    return rows


def continue_rows(path: Path, parent: Path | None, step: int, length: int | None = None) -> None:
    """Continue the curve in `path` from `step` of the parent's.

    `length` is the size of the parent's file when that step was saved: later bytes are from a resumption from an
    earlier step, and belong to another branch. Rows up to `step` that `path` lacks are appended to it, whether the run
    is new, a killed process copied half of them, or the run had left this branch.
    """
    with path.open("ab") as file:
        if parent is None or not parent.exists():
            file.write(encode_resumed(step) * (file.tell() > 0))
            return
        end = _end_of_line(parent, length)
        if parent.samefile(path) and end >= file.tell():
            file.write(encode_resumed(step) * (file.tell() > 0))
            return
        try:
            wanted = [row for row in read_rows(parent, end) if row["step"] <= step]
        except EventError as error:  # of a folder from elsewhere
            raise SystemExit(f"the curve of the run before cannot be continued: {error}") from None
        if file.tell() > 0:
            has = [row for row in read_rows(path) if row["step"] <= step]
            differ = next((pair for pair in zip_longest(has, wanted) if pair[0] != pair[1]), ())
            kept = min((row["step"] - 1 for row in differ if row), default=step)
            file.write(encode_resumed(kept))
            wanted = [row for row in wanted if row["step"] > kept]
        for row in wanted:
            tags = {tag: value for tag, value in row.items() if tag not in ("step", "time")}
            file.write(encode_row(row["step"], row["time"], tags))


def comparable(path: Path, after: int | None = None, end: int | None = None) -> bytes:
    """Return the bytes that must be equal in two runs of one recipe: the rows without clock measurements.

    Only rows beyond the step `after`, and in the first `end` bytes of the file.
    """
    lines = []
    for row in read_rows(path, end):
        kept = {tag: value for tag, value in row.items() if not _measures_time(tag)}
        if len(kept) > 1 and (after is None or row["step"] > after):  # more than the step
            lines.append(to_line(kept))
    return b"".join(lines)


def is_episode(row: Mapping[str, Any]) -> bool:
    """Return True if a row is the end of an episode."""
    return "charts/episodic_return" in row


def _end_of_line(path: Path, length: int | None) -> int:
    """Return the byte at which a resumption after `length` began another branch; the file's end if none did."""
    size = path.stat().st_size
    with path.open("rb") as file:
        position = file.seek(size if length is None else length)
        for line in file:
            if line.startswith(b'{"resumed_from"'):
                return position
            position += len(line)
    return size


def _strict_rows(path: Path, end: int | None = None) -> Iterator[dict[str, Any]]:
    tail = Tail(path, end=end)
    while rows := tail.read():
        yield from rows


def _measures_time(tag: str) -> bool:
    return tag in ("time", "charts/SPS", "charts/SPS_update") or tag.startswith("perf/")
