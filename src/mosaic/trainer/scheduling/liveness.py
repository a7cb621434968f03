"""Liveness by progress: the detection of live runs that are stalled, because their step has not grown for too long."""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mosaic.contract.errors import UnknownRunError
from mosaic.contract.events import Event
from mosaic.contract.happenings import Happenings
from mosaic.trainer.live.events_file import last_events
from mosaic.trainer.registry import metrics_store
from mosaic.trainer.registry.registry import Registry
from mosaic.trainer.registry.rows import note_change, problems_of, update
from mosaic.trainer.states import LIVE, State

# A run is stalled after LEAST_SECONDS or GAPS_MISSED typical gaps between two steps, whichever is longer.
LEAST_SECONDS, GAPS_MISSED, GAPS = 60.0, 5, 20
# Before its first row a run imports, compiles and fills its buffers.
FIRST_SECONDS = 600.0
# A longer gap between two looks counts only up to this: the daemon, or the whole machine, was suspended too.
MOST_BETWEEN_LOOKS = 5.0
TRAININGS = ("train", "resume_training")


@dataclass
class Pulse:
    """The known progress of one attempt."""

    attempt: int
    step: int
    gaps: deque[float]
    moved: bool = False
    """True once its step has grown in this attempt"""
    idle: float = 0.0
    """seconds in which it should have grown and did not"""
    doing: str = ""
    """the algorithm's activity other than steps: writing a checkpoint, its closing evaluation"""
    since_step: int = 0
    """the step at which that activity began"""
    in_phase: bool = False
    """of a script: True while a phase runs"""

    def limit(self, mode: str) -> float:
        """Return the maximum idle seconds before the run counts as stalled."""
        if not self.moved:
            return FIRST_SECONDS
        if not self.gaps:
            return LEAST_SECONDS
        # Episodes evaluated in parallel end in clusters, so gaps inside a cluster do not measure the pace.
        typical = max(self.gaps) if mode == "policy_eval" else statistics.median(self.gaps)
        return max(LEAST_SECONDS, GAPS_MISSED * typical)


@dataclass
class Liveness:
    """Decides which runs are stalled from their rows in the registry and their events. Pure but for its clock."""

    clock: Callable[[], float] = time.monotonic
    _pulses: dict[str, Pulse] = field(default_factory=dict)
    _looked: float | None = None

    def knows(self, row: Mapping[str, Any]) -> bool:
        """Return True if the row's attempt was looked at before."""
        pulse = self._pulses.get(row["run_id"])
        return pulse is not None and pulse.attempt == row["attempt"]

    def begin(self, row: Mapping[str, Any], gaps: Iterable[float], events: Iterable[Event]) -> None:
        """Start watching an attempt, from its past steps."""
        pulse = Pulse(row["attempt"], row["step"], deque(gaps, maxlen=GAPS))
        pulse.moved = row["state"] == State.EXECUTING and row["step"] > 0
        self._pulses[row["run_id"]] = pulse
        self.hear(row["run_id"], events)
        if row["stalled"]:
            pulse.idle = pulse.limit(row["mode"])

    def hear(self, run_id: str, events: Iterable[Event]) -> None:
        """Update from events the periods in which no step is expected."""
        if (pulse := self._pulses.get(run_id)) is None:
            return
        for event in events:
            payload = event.payload
            if event.event == "heartbeat" and "doing" in payload:
                pulse.doing, pulse.since_step = payload["doing"] or "", payload.get("step") or pulse.step
            elif event.event in ("checkpoint", "warning") and pulse.doing == "checkpoint":  # it may have failed
                pulse.doing = ""
            elif event.event == "phase":
                pulse.in_phase = payload.get("status") == "started"
                pulse.doing, pulse.moved, pulse.idle = "", False, 0.0
            elif event.event in ("run_started", "resumed"):
                pulse.doing = ""
            elif event.event in ("episode", "metrics"):
                pulse.in_phase = True  # of a phase that started too long ago

    def look(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Return the idle seconds of each stalled run among the live ones."""
        now = self.clock()
        passed = 0.0 if self._looked is None else min(max(0.0, now - self._looked), MOST_BETWEEN_LOOKS)
        self._looked = now
        stalled, live = {}, set()
        for row in rows:
            live.add(row["run_id"])
            pulse = self._pulses[row["run_id"]]
            if row["step"] != pulse.step:
                if row["step"] > pulse.step:
                    pulse.gaps.append(pulse.idle + passed)
                    pulse.moved = True
                pulse.step, pulse.idle = row["step"], 0.0
                pulse.doing = pulse.doing if pulse.step <= pulse.since_step else ""
            elif not _should_move(row, pulse):
                pulse.idle = 0.0
            elif not row["asked"]:  # it may be saving its state before stopping
                pulse.idle += passed
            if pulse.idle >= pulse.limit(row["mode"]):
                stalled[row["run_id"]] = pulse.idle
        for run_id in self._pulses.keys() - live:
            del self._pulses[run_id]
        return stalled


def _should_move(row: Mapping[str, Any], pulse: Pulse) -> bool:
    """Return True if the run's step is expected to grow."""
    if row["state"] not in (State.HANDSHAKE, State.READY, State.EXECUTING) or row["closing"] or pulse.doing:
        return False
    if row["state"] == State.HANDSHAKE and row["executor"] != "local":
        return False  # it waits in its cluster's queue
    if row["mode"] == "script":
        return pulse.in_phase
    # Once all steps are done, only the closing evaluation follows.
    return not (row["mode"] in TRAININGS and 0 < row["total_timesteps"] <= row["step"])


class Stalls:
    """Marks stalled runs in the registry, from which the marks reach every client; in the relay's thread."""

    def __init__(self, registry: Registry, happenings: Happenings, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry, self._happenings = registry, happenings
        self._liveness = Liveness(clock)
        self.hear = self._liveness.hear

    def look(self) -> None:
        """Mark the runs that are stalled now, and unmark those that progress again."""
        with self._registry.database.read() as connection:
            marks = ", ".join(f"'{state}'" for state in sorted(LIVE))
            found = connection.execute(f"SELECT {_COLUMNS} FROM runs WHERE state IN ({marks})").fetchall()
            rows = [dict(row) for row in found if not problems_of(row)]  # the others are BROKEN
            for row in rows:
                if not self._liveness.knows(row):
                    self._begin(connection, row)
        stalled = self._liveness.look(rows)
        for row in rows:
            seconds = stalled.get(row["run_id"])
            if bool(row["stalled"]) != (seconds is not None):
                self._mark(row, seconds)

    def _begin(self, connection: sqlite3.Connection, row: Mapping[str, Any]) -> None:
        """Initialise from a run's curves and events: it may have had an earlier daemon."""
        path = self._registry.paths(row["run_id"]).events
        gaps = metrics_store.step_gaps(connection, row["id"], GAPS) if row["step"] else []
        self._liveness.begin(row, gaps, last_events(path, row["events_offset"]) if row["events_offset"] else ())

    def _mark(self, row: Mapping[str, Any], seconds: float | None) -> None:
        run_id, now = row["run_id"], self._registry.clock()
        reason = "its step grows again" if seconds is None else f"its step has not grown for {seconds:.0f} s"
        try:
            with self._registry.database.write() as connection:
                state = self._registry.row(connection, run_id)["state"]
                update(connection, row["id"], stalled=0 if seconds is None else max(1, int(now - seconds)))
                note_change(connection, "marked", run_id, state, state, reason, now)
        except UnknownRunError:  # deleted concurrently
            return
        self._registry.notify()
        if seconds is None:
            self._happenings.note("run.moves_again", run_id, step=row["step"])
        else:
            self._happenings.warn("run.stalled", run_id, step=row["step"], seconds=f"{seconds:.0f}")


_COLUMNS = "id, run_id, state, step, attempt, mode, total_timesteps, executor, asked, closing, stalled, events_offset"
