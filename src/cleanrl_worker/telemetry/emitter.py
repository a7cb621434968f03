"""The outputs of a shell: lifecycle events, and rows of metrics as events and TensorBoard scalars."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from cleanrl_worker.telemetry.stdout_pipe import Outlet
from mosaic.contract.errors import EventError, StorageError, storage_error
from mosaic.contract.events import Event, encode
from mosaic.contract.files import HUB, read_note
from mosaic.contract.lines import ROW_DROPPED
from mosaic.contract.metrics import Tail, encode_row, is_episode
from mosaic.contract.returns import EPISODE_LENGTHS, EPISODE_RETURNS, MEAN_RETURN, RunReturn
from mosaic.contract.tensorboard import Scalar, ScalarReader, ScalarWriter, resumed_writer

if TYPE_CHECKING:
    from mosaic.contract.events import EventLog
    from mosaic.contract.paths import RunPaths

Emit = Callable[[str, dict[str, Any]], object]

RETURN, LENGTH, SPS, STAGE = EPISODE_RETURNS[0], EPISODE_LENGTHS[0], "charts/SPS", "curriculum/stage"
_HEADLINE = frozenset({RETURN, MEAN_RETURN, SPS, STAGE})


class LifecycleEmitter:
    """An emitter of a run's events: to the log first, then to stdout, whose reader may be slow, stuck or gone."""

    HELD = 1000

    def __init__(self, log: EventLog | None = None, stream: TextIO | None = None) -> None:
        self._log = log
        self._seq = 0
        self._held: list[tuple[str, str, dict[str, Any]]] = []
        self._outlet = Outlet(sys.stdout if stream is None else stream)

    def run_started(self, run_id: str, payload: dict[str, Any]) -> Event:
        """Emit that the algorithm's process has started."""
        return self.emit("run_started", run_id, payload)

    def heartbeat(self, run_id: str, payload: dict[str, Any]) -> Event:
        """Emit that the run is alive, with its progress and throughput."""
        return self.emit("heartbeat", run_id, payload)

    def run_completed(self, run_id: str, payload: dict[str, Any]) -> Event:
        """Emit that the algorithm ended successfully."""
        return self.emit("run_completed", run_id, payload)

    def run_failed(self, run_id: str, payload: dict[str, Any]) -> bool:
        """Emit that the algorithm failed; return False if only stdout got the event because the log's disk is full."""
        return self.emit_or_say("run_failed", run_id, payload)

    def emit_or_say(self, kind: str, run_id: str, payload: dict[str, Any]) -> bool:
        """Emit an event; if the log's disk is full, write only to stdout and return False."""
        try:
            self.emit(kind, run_id, payload)
        except StorageError:
            self._held.clear()
            self._outlet.put([encode(Event(kind, run_id, self._seq, time.time(), payload))])
            return False
        return True

    def emit(self, kind: str, run_id: str, payload: dict[str, Any]) -> Event:
        """Emit any kind of contract.events.EVENT_KINDS, after the buffered events."""
        self._hold(kind, run_id, payload)
        return self.flush()[-1]

    def hold(self, kind: str, run_id: str, payload: dict[str, Any]) -> None:
        """Buffer an event for the next flush: written alone it costs 25 µs, in a batch 4."""
        self._hold(kind, run_id, payload)
        if len(self._held) >= self.HELD:
            self.flush()

    def flush(self) -> list[Event]:
        """Write the buffered events in order; if the disk is full, keep them buffered."""
        if not self._held:
            return []
        held, self._held = self._held, []
        if self._log is None:
            now = time.time()
            events = [Event(kind, run_id, seq, now, told) for seq, (kind, run_id, told) in enumerate(held, self._seq)]
            written = [(event, encode(event)) for event in events]
        else:
            try:
                written = self._log.append_all([(kind, payload) for kind, _, payload in held])
            except StorageError:
                self._held = held
                raise
        self._seq = written[-1][0].seq + 1
        self._outlet.put([line for _, line in written])
        return [event for event, _ in written]

    def _hold(self, kind: str, run_id: str, payload: dict[str, Any]) -> None:
        if self._log is not None and run_id != self._log.run_id:
            raise EventError(f"this log is of run {self._log.run_id}, not of {run_id}")
        self._held.append((kind, run_id, payload))

    def close(self) -> None:
        """Wait briefly for stdout's reader to drain the rest, then close the log."""
        self._outlet.close()
        if self._log is not None:
            self._log.close()


class RunProgress:
    """The headline numbers of a run so far; a phase's steps continue its script's."""

    def __init__(self, first_step: int = 0) -> None:
        self.step = self._first_step = first_step
        self.returns = RunReturn()
        self.reported_sps: float | None = None
        self._stage: float | None = None

    @property
    def last_return(self) -> float | None:
        return self.returns.last

    def steps_per_second(self, seconds: float) -> float | None:
        """Return the throughput that the algorithm reports, else steps over seconds of training."""
        if self.reported_sps is not None:
            return self.reported_sps
        done = self.step - self._first_step
        return round(done / seconds, 1) if done and seconds > 0 else None

    def summary(self, seconds: float) -> dict[str, Any]:
        """Return the manifest's summary of a run after this training time."""
        return {
            "final_return": self.returns.value,
            "best_return": self.returns.best,
            "episodes": self.returns.episodes,
            "steps": self.step,
            "seconds": round(seconds, 3),
            "sps": self.steps_per_second(seconds),
        }

    def take(self, row: dict[str, Any]) -> None:
        """Update the numbers from one row of metrics."""
        self.step = max(self.step, row["step"])
        self.reported_sps = row.get(SPS, self.reported_sps)
        if row.get(STAGE, self._stage) != self._stage:
            if self._stage is not None:
                self.returns.restart()
            self._stage = row[STAGE]
        if is_episode(row):
            self.returns.add_episode(row[RETURN])
        if MEAN_RETURN in row:
            self.returns.add_mean(row[MEAN_RETURN])

    def count_again(self, rows: Iterable[dict[str, Any]]) -> None:
        """Recompute the returns from these rows: a resumption dropped others, or continues an earlier attempt's."""
        step, self.returns, self._stage = self.step, RunReturn(), None
        for row in rows:
            self.take(row)
        self.step = step


class MetricsRelay:
    """A follower of metrics.jsonl from its current end: rows become events and, if enabled, TensorBoard scalars."""

    def __init__(
        self,
        paths: RunPaths,
        emit: Emit,
        *,
        events: bool,
        tensorboard: Path | None,
        first_step: int = 0,
        whole: bool = True,
    ) -> None:
        """Open the tail; with `whole`, a resumption also counts earlier attempts' rows; a phase counts only its own."""
        self.progress = RunProgress(first_step)
        self._emit = emit
        self._events = events
        self._folder = tensorboard
        self._writer: ScalarWriter | None = None
        self._tail = Tail(paths.metrics, paths.metrics.stat().st_size if paths.metrics.exists() else 0, capped=True)
        self._counted_from = 0 if whole else self._tail.offset
        self._complained = False

    def poll(self) -> None:
        """Forward the new rows."""
        try:
            rows = self._tail.read()
        except EventError as error:
            if not self._complained:
                self._complained = True
                self._emit("warning", {"message": f"{ROW_DROPPED}: {error}"})
            return
        for row in rows:
            if "resumed_from" in row:
                self._resume(row["resumed_from"])
            else:
                self._pass_on(row)
        if any("resumed_from" in row for row in rows):
            self.progress.count_again(self._counting_rows())
        if rows and self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Forward the remaining rows and close the TensorBoard file."""
        try:
            offset = -1
            while offset != self._tail.offset:  # a bad line ends one read, not the rest of the file
                offset = self._tail.offset
                self.poll()
        finally:
            if self._writer is not None:
                self._writer.close()

    def closing(self) -> dict[str, Any]:
        """Return the payload of `run_completed` besides the manifest: where a policy was pushed, or why not."""
        outcome = read_note(self._tail.path.parent / "hub.json", HUB)
        return {"hub": outcome} if outcome else {}

    def _pass_on(self, row: dict[str, Any]) -> None:
        self.progress.take(row)
        tags = {tag: value for tag, value in row.items() if tag not in ("step", "time")}
        if self._events and is_episode(row):
            self._emit("episode", {"step": row["step"], "return": row[RETURN], "length": row.get(LENGTH)})
        elif self._events:
            self._emit("metrics", {"step": row["step"], **tags})
        if self._folder is not None:
            self._writer = self._writer or ScalarWriter(self._folder)
            self._writer.add_row(row)

    def _counting_rows(self) -> list[dict[str, Any]]:
        """Return the headline numbers of the rows read so far, without those that a resumption dropped."""
        rows: list[dict[str, Any]] = []
        tail, offset = Tail(self._tail.path, self._counted_from, end=self._tail.offset, capped=True), -1
        while tail.offset != offset:
            offset = tail.offset
            with contextlib.suppress(EventError):  # reported at its first read
                for row in tail.read():
                    if "resumed_from" in row:
                        rows = [earlier for earlier in rows if earlier["step"] <= row["resumed_from"]]
                    elif not _HEADLINE.isdisjoint(row):
                        rows.append({tag: value for tag, value in row.items() if tag in _HEADLINE or tag == "step"})
        return rows

    def _resume(self, step: int) -> None:
        self.progress.step = step
        if self._folder is not None:
            if self._writer is not None:
                self._writer.close()
            self._writer = resumed_writer(self._folder, self._tail.path, step)


class Notes:
    """A follower of the algorithm's own events, one JSON line each."""

    KINDS = ("checkpoint", "resumed", "warning", "eval_batch", "stage", "step", "heartbeat")

    def __init__(self, paths: RunPaths, emit: Emit) -> None:
        self._path, self._emit = paths.notes, emit
        self._offset = self._path.stat().st_size if self._path.exists() else 0

    def poll(self) -> None:
        """Forward new events; skip incomplete lines and lines that are not events."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                lines = file.readlines()
        except FileNotFoundError:
            return
        for line in lines:
            if not line.endswith(b"\n"):
                return
            self._offset += len(line)
            try:
                note = json.loads(line)
                kind, payload = note["event"], dict(note["payload"])
            except (ValueError, KeyError, TypeError):
                continue
            if kind in self.KINDS:
                self._emit(kind, payload)


class ScriptScalars:
    """A reader that copies TensorBoard scalars of a user's script from the run folder to metrics.jsonl."""

    POLLS_PER_SCAN = 4  # a new file is found within a second
    # Folders that may hold thousands of files but no scalars of the script.
    ELSEWHERE = frozenset({"logs", "checkpoints", "videos", "wandb"})

    def __init__(self, paths: RunPaths, ours: Path | None, first_step: int = 0, mean_tag: str = "") -> None:
        """Skip earlier files; `mean_tag` is the script's tag of the mean return, if it logs only means."""
        self._mean_tag = mean_tag
        self._first_step = first_step
        self._root = paths.folder
        self._metrics = paths.metrics
        self._ours = ours
        self._polls = 0
        self._readers: dict[Path, ScalarReader] = {}
        self._earlier = frozenset(self._files())
        self._unreadable: set[Path] = set()

    @property
    def folder(self) -> Path | None:
        """Return the top folder of the script's own TensorBoard files, None before the first."""
        for path in self._readers:
            parts = path.relative_to(self._root).parts
            return self._root / parts[0] if len(parts) > 1 else self._root
        return None

    def poll(self, *, last: bool = False) -> None:
        """Append the new scalars to metrics.jsonl."""
        if last or self._polls % self.POLLS_PER_SCAN == 0:
            for path in self._files():
                if path not in self._earlier:
                    self._readers.setdefault(path, ScalarReader(path))
        self._polls += 1
        lines = [line for reader in self._readers.values() for line in rows_of(self._read(reader))]
        if not lines:
            return
        try:
            with self._metrics.open("ab") as file:
                file.write(b"".join(lines))
        except OSError as error:
            raise storage_error(self._metrics, error) from None

    def _read(self, reader: ScalarReader) -> list[Scalar]:
        if reader.path in self._unreadable:
            return []
        try:
            return [
                (at, self._first_step + step, MEAN_RETURN if tag == self._mean_tag else tag, value)
                for at, step, tag, value in reader.read()
            ]
        except EventError:
            self._unreadable.add(reader.path)  # a corrupt record: nothing after it can be trusted
            return []

    def _files(self) -> Iterator[Path]:
        for folder, names, files in os.walk(self._root):
            at_top = Path(folder) == self._root
            names[:] = sorted(
                name for name in names if not (at_top and name in self.ELSEWHERE) and Path(folder, name) != self._ours
            )
            yield from (Path(folder, file) for file in sorted(files) if file.startswith("events.out.tfevents."))


def rows_of(scalars: Iterable[Scalar]) -> Iterator[bytes]:
    """Group adjacent scalars of a step into rows; an episode's scalars and a repeated tag start a new row."""
    values: dict[str, float] = {}
    group: tuple[int, bool] | None = None
    first = 0.0
    for wall_time, step, tag, value in scalars:
        if tag in ("step", "time"):
            continue  # names of a row's own columns
        own_group = (step, tag.startswith("charts/episodic_"))
        if group is not None and values and (own_group != group or tag in values):
            yield encode_row(group[0], first, values)
            values = {}
        if not values:
            group, first = own_group, wall_time
        values[tag] = value
    if values and group is not None:
        yield encode_row(group[0], first, values)
