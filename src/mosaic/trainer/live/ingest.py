"""The relay: copies a live run's files to the registry and the bus; registers workers that do not do so themselves."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mosaic.contract.errors import MoveError, UnknownRunError
from mosaic.contract.events import NOT_FINITE, Event, resumed_total
from mosaic.contract.fields import SERIES
from mosaic.contract.happenings import Happenings
from mosaic.contract.returns import EPISODE_LENGTHS, EPISODE_RETURNS, MEAN_RETURN, RECENT_EPISODES
from mosaic.trainer.live.bus import Bus
from mosaic.trainer.live.intake import Intake, Reading
from mosaic.trainer.registry import metrics_store
from mosaic.trainer.registry.registry import Registry
from mosaic.trainer.registry.rows import update
from mosaic.trainer.registry.run_warnings import SERIES_DROPPED, added
from mosaic.trainer.scheduling.attempts import ON_BEHALF
from mosaic.trainer.scheduling.liveness import Stalls
from mosaic.trainer.states import LIVE, State

TELEMETRY = frozenset({"episode", "step", "metrics", "eval_batch"})
EVALUATION = {
    "run_started": "policy.eval_started",
    "run_completed": "policy.eval_completed",
    "run_failed": "policy.error",
    "warning": "policy.warning",
}
PHASE = "phase "  # begins the reason of a running script
CLOSING = frozenset({"run_completed", "run_failed"})
_INT64 = 1 << 63
# Exceptions that a foreign worker's value could raise on its way into SQLite.
_UNTAKEABLE = (
    *(ValueError, TypeError, OverflowError, LookupError, AttributeError, RecursionError, sqlite3.Error),
    *(MoveError, UnknownRunError),
)


Apart = Callable[[sqlite3.Row, Callable[[sqlite3.Row], Reading]], Reading | None]


class Ingest:
    """Reads files, never pipes: after a downtime it reads what it missed. One thread only."""

    def __init__(
        self, registry: Registry, bus: Bus, happenings: Happenings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._registry, self._bus, self._happenings = registry, bus, happenings
        self._intake, self._stalls = Intake(registry), Stalls(registry, happenings, clock)

    def poll(self, rows: Iterable[sqlite3.Row], apart: Apart = lambda row, read: read(row)) -> None:
        """Store new events and rows of these runs in one transaction, with their cursors; then mark stalled runs.

        `apart` isolates an exception in reading one run's files from the others.
        """
        self._take_new([reading for row in rows if (reading := apart(row, self._intake.read))])
        self._stalls.look()

    def _take_new(self, readings: Sequence[Reading]) -> None:
        try:
            self._take(readings)
        except _UNTAKEABLE as error:
            self._happenings.warn("daemon.trouble", readings[0].run_id, error=error)
            for reading in readings:  # one run's bad reading must not block the others
                self._take_or_pass_over(reading)

    def _take_or_pass_over(self, reading: Reading) -> None:
        """Store one run's reading by itself; skip one that cannot be stored, or it would be retried forever."""
        try:
            self._take([reading])
        except _UNTAKEABLE as error:
            lines = len(reading.events) + len(reading.rows)
            self._happenings.warn("telemetry.bad_line", reading.run_id, lines=lines, error=error)
            reading.events, reading.sizes, reading.rows = [], [], []
            with contextlib.suppress(MoveError, UnknownRunError):
                self._take([reading])

    def drain(self, run_id: str) -> sqlite3.Row:
        """Store the rest of a run's output, to the last byte, and return its row."""
        while True:
            with self._registry.database.read() as connection:
                row = self._registry.row(connection, run_id)
            reading = self._intake.read(row)
            if reading:
                self._take_or_pass_over(reading)
            if not reading.full:
                with self._registry.database.read() as connection:
                    return self._registry.row(connection, run_id)

    def _take(self, readings: Sequence[Reading]) -> None:
        if not readings:
            return
        told: list[tuple[str, str, dict[str, Any]]] = []
        with self._registry.database.write() as connection:
            for reading in readings:
                row = self._registry.row(connection, reading.run_id)
                told += _Taking(self._registry, connection, row).take(reading)
        self._registry.notify()
        for reading in readings:
            if reading.dropped:
                why = "; ".join(f"{what}: {why}" for what, why in reading.dropped.items())
                self._happenings.warn("telemetry.bad_line", reading.run_id, lines=reading.bad_lines, error=why)
            self._stalls.hear(reading.run_id, reading.events)
            starved = self._bus.publish(reading.run_id, reading.events, reading.sizes)
            if starved:
                self._happenings.note("telemetry.starved", reading.run_id, subscribers=starved)
        for name, run_id, values in told:
            self._happenings.note(name, run_id, **values)


class _Taking:
    """One run's reading inside the transaction: states, headline numbers, artefacts, cursors."""

    def __init__(self, registry: Registry, connection: sqlite3.Connection, row: sqlite3.Row) -> None:
        self._registry, self._connection, self._row = registry, connection, row
        self._columns: dict[str, Any] = {}
        self._told: list[tuple[str, str, dict[str, Any]]] = []

    def take(self, reading: Reading) -> list[tuple[str, str, dict[str, Any]]]:
        """Apply a reading; return the log entries to write after the commit."""
        for event in reading.events:
            self._take_event(event)
        self._warn(*(f"{what}: {why}" for what, why in reading.dropped.items()))
        rows = reading.rows or (self._rows_of_episodes(reading.events) if reading.rowless else [])
        if rows:
            self._executes()
            self._take_rows(rows)
        self._columns |= {"events_offset": reading.events_offset, "metrics_offset": reading.metrics_offset}
        if reading.events:
            self._columns["events_seq"] = reading.events[-1].seq + 1
        update(self._connection, self._row["id"], **self._columns)
        return self._told

    def _take_event(self, event: Event) -> None:
        kind, payload = event.event, event.payload
        if self._row["state"] == State.LOST:
            self._executes()
        if kind == "run_started" or kind in TELEMETRY:
            self._register()
        if self._row["mode"] == "policy_eval" and kind in EVALUATION:
            self._tell(EVALUATION[kind], mean_return=payload.get("mean_return"), message=payload.get("message"))
        if kind in TELEMETRY:
            self._executes()
        if kind in ("paused", "continued"):
            self._stands(kind, event)
        elif kind == "run_started":
            self._take_total(payload.get("total_timesteps"))
        elif kind == "heartbeat":
            self._take_headline(payload)
        elif kind in CLOSING:
            self._columns["closing"] = json.dumps({"event": kind, "payload": payload}, default=str)
            self._keep_manifest(payload.get("manifest"), event.timestamp)
        elif kind == "checkpoint":
            self._keep("checkpoint", self._inside(payload.get("path")), payload.get("step"), event.timestamp)
            self._tell("run.checkpoint", step=payload.get("step"))
        elif kind == "phase":
            self._take_phase(payload)
        elif kind == "resumed":
            self._take_total(resumed_total(payload))
            self._tell("run.resumed", step=payload.get("step"), exact=payload.get("exact"))
        elif kind == "warning":
            message = str(payload.get("message") or "")
            self._warn(message)
            self._tell("run.warning", message=message)

    def _register(self) -> None:
        """Register on behalf of a worker that did not: a script's, a foreign one, one without --grpc."""
        if self._row["state"] == State.HANDSHAKE:
            kind = f"{self._row['worker_type']}-worker" if self._row["worker_type"] else "worker"
            worker_id = self._row["worker_id"] or f"{kind}-{self._row['run_id'][:8]}"
            self._move(State.READY, session_hash=ON_BEHALF, worker_id=worker_id)
            self._tell("worker.registered", worker_id=worker_id, by="relay")

    def _executes(self) -> None:
        self._register()
        if self._row["state"] == State.READY or (self._row["state"] == State.LOST):
            self._move(State.EXECUTING)
            self._tell("run.executing")

    def _stands(self, kind: str, event: Event) -> None:
        wanted = State.PAUSED if kind == "paused" else State.EXECUTING
        self._executes()
        if self._row["state"] != wanted and self._row["state"] in (State.EXECUTING, State.PAUSED):
            self._move(wanted)
            self._tell(f"run.{kind}", step=event.payload.get("step"))
        if self._row["asked"] == {"paused": "pause", "continued": "continue"}[kind]:
            self._columns["asked"] = ""

    def _rows_of_episodes(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        """Return the rows that a worker without metrics.jsonl would have written for its episodes."""
        which = self._row["mode"] == "policy_eval"
        found, step = [], self._row["step"]
        for payload, at in ((event.payload, event.timestamp) for event in events if event.event == "episode"):
            step = payload.get("step", step)
            numbers = {EPISODE_RETURNS[which]: payload["return"], EPISODE_LENGTHS[which]: payload.get("length")}
            given = {tag: NOT_FINITE.get(str(value), value) for tag, value in numbers.items() if value is not None}
            found.append({"step": step, "time": at, **given})
        return found

    def _take_rows(self, rows: Sequence[dict[str, Any]]) -> None:
        run = self._row["id"]
        resumptions, left_out = metrics_store.append_rows(self._connection, run, rows)
        if left_out:
            self._warn(f"{SERIES_DROPPED}: a run has at most {SERIES:,}, {left_out[:100]!r} is one too many; log fewer")
        self._columns["metrics_epoch"] = self._row["metrics_epoch"] + resumptions
        step = self._row["step"]
        for row in rows:
            step = max(0, row["resumed_from"]) if "resumed_from" in row else max(step, row["step"])
            self._columns["sps"] = row.get("charts/SPS", self._columns.get("sps", self._row["sps"]))
            for column, tags in (("last_return", EPISODE_RETURNS), ("last_length", EPISODE_LENGTHS)):
                for tag in tags:
                    if tag in row:
                        self._columns[column] = row[tag]
        self._columns["step"] = step
        episodes, mean = metrics_store.count_and_mean(self._connection, run, EPISODE_RETURNS, RECENT_EPISODES)
        # The run's own logged mean covers more episodes; a foreign script logs none.
        logged = metrics_store.last_value(self._connection, run, MEAN_RETURN)
        self._columns |= {"episodes": episodes, "mean_return": mean if logged is None else logged}

    def _take_total(self, total: object) -> None:
        """Update the worker's total steps: a resumption may find a newer checkpoint than its submission did."""
        if self._row["mode"] == "resume_training" and isinstance(total, int) and 0 < total < _INT64:
            self._columns["total_timesteps"] = total

    def _take_phase(self, payload: dict[str, Any]) -> None:
        """Raise the total for a script's phase, beyond that of its submission, and record the running phase."""
        total = payload.get("total_timesteps")
        known = self._columns.get("total_timesteps", self._row["total_timesteps"])
        if payload.get("status") == "started" and isinstance(total, int) and known < total < _INT64:
            self._columns["total_timesteps"] = total
        if self._row["mode"] == "script" and payload.get("status") == "started" and payload.get("number"):
            of = f" of {phases}" if (phases := payload.get("phases")) else ""
            self._columns["reason"] = f"{PHASE}{payload['number']}{of}"
        status, outcome = payload.get("status"), payload.get("outcome")
        self._tell("run.phase", phase=payload.get("name"), status=status, outcome=outcome)

    def _take_headline(self, pulse: dict[str, Any]) -> None:
        """Store a heartbeat's numbers, unless a row has newer ones."""
        step, sps = pulse.get("step"), pulse.get("sps")
        if isinstance(step, int) and self._columns.get("step", self._row["step"]) < step < _INT64:
            self._columns["step"] = step
        if isinstance(sps, int | float):
            self._columns["sps"] = float(sps)

    def _keep_manifest(self, manifest: object, now: float) -> None:
        found = manifest.get("artifacts") if isinstance(manifest, dict) else None
        if not isinstance(found, dict):
            return
        step = self._columns.get("step", self._row["step"])
        self._keep("policy", found.get("policy"), step, now)
        for video in found.get("videos") or ():
            self._keep("video", video, step, now)
        tensorboard, wandb = found.get("tensorboard"), found.get("wandb")
        if isinstance(tensorboard, dict) and tensorboard.get("enabled"):
            self._keep("tensorboard", tensorboard.get("relative_path"), step, now)
        if isinstance(wandb, dict) and wandb.get("run_path"):
            self._keep("wandb", wandb["run_path"], step, now)

    def _inside(self, path: object) -> object:
        """Return a path relative to the run folder if it is inside."""
        folder = f"{self._registry.paths(self._row['run_id']).folder}/"
        return path.removeprefix(folder) if isinstance(path, str) else None

    def _keep(self, kind: str, path: object, step: object, now: float) -> None:
        if isinstance(path, str) and path:
            self._connection.execute(
                "INSERT OR REPLACE INTO artifacts (run, kind, path, step, created_at) VALUES (?, ?, ?, ?, ?)",
                (self._row["id"], kind, path, step if isinstance(step, int) and abs(step) < _INT64 else 0, float(now)),
            )

    def _warn(self, *messages: str) -> None:
        kept = json.loads(self._columns.get("warnings", self._row["warnings"]))
        if (found := added(kept, messages)) != kept:
            self._columns["warnings"] = json.dumps(found)

    def _move(self, to: State, **columns: Any) -> None:
        if self._row["state"] in LIVE:
            reason = self._row["reason"] if self._row["reason"].startswith(PHASE) else ""  # the same phase runs
            self._registry.move(self._connection, self._row, to, reason, **columns)
            self._row = self._registry.row(self._connection, self._row["run_id"])

    def _tell(self, name: str, **values: Any) -> None:
        self._told.append((name, self._row["run_id"], values))
