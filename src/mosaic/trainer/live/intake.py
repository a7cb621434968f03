"""New events and rows in a run's files, validated and within their caps, and the reasons why others were dropped."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mosaic.contract.errors import EventError, shown
from mosaic.contract.event_reader import checked
from mosaic.contract.events import Event
from mosaic.contract.fields import EVENT_BYTES, ROW, ROW_BYTES, TAG
from mosaic.contract.kinds import FieldError
from mosaic.contract.lines import EVENT_DROPPED, ROW_DROPPED, Lines, over, read_lines
from mosaic.contract.metrics import capped_row
from mosaic.trainer.registry.registry import Registry

# Each deletes points of every series: a run that resumes more often within one look waits for the next one.
MOST_RESUMPTIONS = 16


@dataclass
class Reading:
    """The result of one look at a run's files, and the cursors behind it."""

    run_id: str
    events_offset: int
    metrics_offset: int
    events: list[Event] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """of the events' lines"""
    rows: list[dict[str, Any]] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    """the number of dropped lines by kind, and the reason of the first"""
    bad_lines: int = 0
    full: bool = False
    """there may be more"""
    rowless: bool = False
    """the run writes no rows of metrics: only its episode events report its episodes"""

    def __bool__(self) -> bool:
        return bool(self.events or self.rows or self.bad_lines or self.dropped)

    def drop(self, what: str, why: object) -> None:
        """Count a dropped line."""
        self.bad_lines += 1
        self.dropped.setdefault(what, str(why))


class Intake:
    """Reads the files of live runs from their cursors on; remembers how far lines without an end were searched."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._searched: dict[Path, int] = {}

    def read(self, row: sqlite3.Row) -> Reading:
        """Return a run's new events and rows; raise OSError only for a file that cannot be read."""
        paths = self._registry.paths(row["run_id"])
        reading = Reading(row["run_id"], row["events_offset"], row["metrics_offset"])
        events = self._lines(reading, paths.events, row["events_offset"], EVENT_BYTES, EVENT_DROPPED)
        # After the events: a worker with metrics writes an episode's row before its event.
        reading.rowless = not _holds_bytes(paths.metrics)
        rows = self._lines(reading, paths.metrics, row["metrics_offset"], ROW_BYTES, ROW_DROPPED)
        reading.full = events.more or rows.more
        reading.events_offset = events.end
        expected = row["events_seq"]
        for line in events.lines:
            try:
                event = _event_of(line, row["run_id"], expected)
            except (EventError, FieldError) as error:
                reading.drop(EVENT_DROPPED, error)
                continue
            expected = event.seq + 1
            reading.events.append(event)
            reading.sizes.append(len(line))
        self._take_rows(reading, rows)
        return reading

    def _lines(self, reading: Reading, path: Path, offset: int, most: int, what: str) -> Lines:
        found = read_lines(path, offset, most, searched=self._searched.get(path, 0))
        if found.searched:
            self._searched[path] = found.searched
        else:
            self._searched.pop(path, None)
        for size in found.dropped:
            reading.drop(what, over(size, most))
        return found

    def _take_rows(self, reading: Reading, found: Lines) -> None:
        resumptions = 0
        reading.metrics_offset = found.end
        for line, end in zip(found.lines, found.ends, strict=True):
            try:
                row = row_of(line)
            except (EventError, FieldError) as error:
                reading.drop(ROW_DROPPED, error)
                continue
            reading.rows.append(row)
            resumptions += "resumed_from" in row
            if resumptions == MOST_RESUMPTIONS:
                reading.metrics_offset, reading.full = end, True
                return


def _holds_bytes(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def row_of(line: bytes) -> dict[str, Any]:
    """Return the metrics row of a line; raise EventError or FieldError for anything else."""
    row = capped_row(line)
    ROW.check_fields(row, "row")
    for tag in row:
        TAG.check(tag, "row: a tag")
    return row


def _event_of(line: bytes, run_id: str, expected: int) -> Event:
    event = checked(line)
    if event.run_id != run_id:
        raise EventError(f"it is of run {shown(event.run_id)}; a run's log holds its own events only")
    if event.seq < expected:
        raise EventError(f"its seq is {event.seq} where {expected} is next; count on from the last one")
    return event
