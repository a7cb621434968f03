"""A run's growing text files for pages: the end of a log and its additions, events by kind."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
from collections import deque
from collections.abc import Collection
from pathlib import Path

from mosaic.contract.errors import MosaicError
from mosaic.contract.event_reader import decoded
from mosaic.contract.events import Event
from mosaic.contract.fields import EVENT_BYTES
from mosaic.contract.lines import lines_of
from mosaic.contract.paths import RunPaths
from mosaic.store.stored import ensure

# As much of a log as a browser scrolls smoothly; the complete log is a download.
LOG_BYTES = 400_000
# Of the events on a page.
MOST_EVENT_BYTES = 4_000_000
# An event's line begins with its kind, so that unwanted ones need no parsing.
_KIND = re.compile(rb'\{"event":\s?"(\w+)"')
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b\x0c\x0e-\x1f]")


def fetch_logs(paths: RunPaths) -> str:
    """Fetch the run's logs from its store; return the reason of a failure, else ""."""
    try:
        ensure(paths.stdout_log, paths.home)
        ensure(paths.logs, paths.home)
    except MosaicError as error:
        return str(error)
    return ""


def logs_of(paths: RunPaths) -> dict[str, Path]:
    """Return a run's existing logs by label, those of the algorithm first."""
    known = {
        "Output": paths.stdout_log,
        "Errors": paths.stderr_log,
        "Worker": paths.worker_stderr_log,
        "Worker's output": paths.worker_stdout_log,
    }
    named = {word: path for word, path in known.items() if path.exists()}
    others = sorted(path for path in paths.logs.glob("*.log") if path not in known.values())
    return {**named, **{path.name: path for path in others}}


class LogTail:
    """A log from near its end on; `read` returns the additions, in whole characters."""

    def __init__(self, path: Path, most_bytes: int = LOG_BYTES) -> None:
        self.path, self._most = path, most_bytes
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.cut = False

    def read(self) -> str:
        """Return the additions; at first the end of the file, from a complete line on."""
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self._offset:  # a new attempt truncated the file
                    self._offset = 0
                skip = size - self._offset > self._most
                file.seek(size - self._most if skip else self._offset)
                data = file.read(min(size - self._offset, self._most))
        except OSError:
            return ""
        self._offset = size
        if skip:
            self.cut = True
            data = data[data.find(b"\n") + 1 :]
        return readable(self._decoder.decode(data))


def readable(text: str) -> str:
    """Remove terminal control codes; keep the last state of a redrawn line."""
    text = text.replace("\r\n", "\n")
    lines = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
    return _CONTROL.sub("", "\n".join(lines))


def last_words(paths: RunPaths, lines: int = 20) -> str:
    """Return the end of a failed run's stderr: the algorithm's, else the worker's."""
    for path in (paths.stderr_log, paths.worker_stderr_log):
        found = [line for line in LogTail(path, 20_000).read().splitlines() if line.strip()]
        if found:
            return "\n".join(found[-lines:])
    return ""


class EventTail:
    """The newest events of some kinds and their additions, with a count of every kind."""

    def __init__(self, path: Path, kinds: Collection[str], most: int = 500) -> None:
        self._path, self._kinds, self._most = path, {kind.encode() for kind in kinds}, most
        self._offset = 0
        self.counts: dict[str, int] = {}

    def read(self) -> list[Event]:
        """Return the new events, oldest first; a partial line is left for the next read."""
        found: deque[bytes] = deque(maxlen=self._most)
        size = 0
        with contextlib.suppress(OSError):
            for line, end in lines_of(self._path, self._offset, EVENT_BYTES):
                self._offset = end
                match = _KIND.match(line)
                kind = match[1] if match else b"?"
                self.counts[kind.decode()] = self.counts.get(kind.decode(), 0) + 1
                if kind in self._kinds:
                    size += len(line) - (len(found[0]) if len(found) == self._most else 0)
                    found.append(line)
                while size > MOST_EVENT_BYTES:
                    size -= len(found.popleft())
        # The daemon logs the others as telemetry.bad_line.
        return [event for line in found if (event := decoded(line)) is not None]
