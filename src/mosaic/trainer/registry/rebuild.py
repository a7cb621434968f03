"""Rebuild: the registry's rows recreated from the accepted configs and the run folders."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from mosaic.contract import variables
from mosaic.contract.errors import MosaicError
from mosaic.contract.events import Event
from mosaic.contract.fields import (
    EVENT_PAYLOADS,
    PAYLOAD_BYTES,
    REASON_LENGTH,
    RUN_ROW,
    FieldError,
    read_bytes,
    read_object,
)
from mosaic.contract.happenings import Happenings
from mosaic.contract.identity import boot_id, start_ticks
from mosaic.contract.job import JobConfig
from mosaic.contract.paths import RunPaths
from mosaic.trainer.executors.contract import Exit
from mosaic.trainer.live.bus import Bus
from mosaic.trainer.live.events_file import read_events
from mosaic.trainer.live.ingest import CLOSING, Ingest
from mosaic.trainer.registry.columns import claim_of, columns_of
from mosaic.trainer.registry.deletion import lock_holder, remove_rows
from mosaic.trainer.registry.folders import run_folders
from mosaic.trainer.registry.registry import Registry
from mosaic.trainer.registry.rows import insert_run, keep_count, note_change, update
from mosaic.trainer.run import Rebuilt
from mosaic.trainer.scheduling.attempts import ON_BEHALF
from mosaic.trainer.scheduling.outcome import judge
from mosaic.trainer.scheduling.submission import Submissions
from mosaic.trainer.states import State

# The reason of a row that is being filled; one that a crash left is recreated.
UNFINISHED = "being rebuilt from its folder"
NEVER_STARTED = "it had not started when the registry was lost; submit it again"
# A worker reports its algorithm and environment in one of its first events.
OPENING = 100
MODES = ("train", "resume_training", "policy_eval", "script")


@dataclass(frozen=True)
class RebuiltWorker:
    """A living worker: its process, the nonce of its attempt, and its GPUs."""

    pid: int
    nonce: str = ""
    gpus: tuple[int, ...] = ()


class Seen(Bus):
    """The events of a run that determine its state; the relay publishes to it."""

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        """Reset the state for the next run."""
        self.last = 0.0
        self.paused = self.closed = False

    def publish(self, run_id: str, events: Sequence[Event], sizes: Sequence[int] = ()) -> int:
        """Record events in order."""
        for event in events:
            self.last = event.timestamp if _is_moment(event.timestamp) else self.last
            if event.event in ("paused", "continued"):
                self.paused = event.event == "paused"
            elif event.event == "run_started" or event.event in CLOSING:
                self.closed, self.paused = event.event in CLOSING, False
        return 0


class Rebuild:
    """One pass over the folders of a home; runs with a readable row are skipped.

    A folder may wait `settling` seconds for the row of its submission.
    """

    def __init__(
        self, registry: Registry, submissions: Submissions, happenings: Happenings, *, settling: float = 0.0
    ) -> None:
        self._registry, self._submissions, self._happenings = registry, submissions, happenings
        self._home, self._settling = registry.home.resolve(), settling
        # Events of runs were logged when they ran; do not log them again.
        self._seen = Seen()
        self._relay = Ingest(registry, self._seen, Happenings(Path(os.devnull)))

    def run(self, say: Callable[[str], None] = lambda text: None) -> Rebuilt:
        """Recreate missing rows; first replace a file that is damaged or was deleted under the daemon."""
        aside, found = self._registry.database.reopen(), Rebuilt()
        if aside is not None:
            say(f"the damaged registry is kept as {aside}")
        candidates = self._candidates()
        known = self._known({name for _, name, why in candidates if not why})
        living = _workers(self._home)
        for created_at, run_id, why in candidates:
            if run_id in known:
                found.known += 1
                continue
            try:
                why = why or self._rebuild(run_id, created_at, living.get(run_id))
            except Exception as error:  # a failure in one folder must not cost the others their rows
                why = str(error) if isinstance(error, MosaicError) else f"{type(error).__name__}: {error}"
                self._drop(run_id)
            if why:
                found.skipped[run_id] = why
                say(f"skipped {run_id}: {why}")
                continue
            found.rebuilt.append(run_id)
            run = self._registry.get_run(run_id)
            self._happenings.note("run.rebuilt", run_id, state=run.state, imported=run.imported)
            say(f"rebuilt {run_id} ({run.algo or 'unknown'} on {run.env_id or 'unknown'}, {run.state})")
        self._happenings.note(
            "registry.rebuilt", rebuilt=len(found.rebuilt), skipped=len(found.skipped), known=found.known, aside=aside
        )
        return found

    def _candidates(self) -> list[tuple[float, str, str]]:
        """Return the entries of the folder of runs, the oldest first: newer rows are listed above older ones."""
        entries = list(run_folders(self._home))
        return sorted((0.0 if why else _created_at(RunPaths(name, self._home)), name, why) for name, why in entries)

    def _known(self, folders: set[str]) -> set[str]:
        """Return the ids with a row to keep; delete unreadable rows, and those that a crash left half rebuilt."""
        known = set()
        with self._registry.database.write() as connection:
            for row in connection.execute("SELECT * FROM runs").fetchall():
                unfit = row["reason"] == UNFINISHED or self._registry.unreadable.hidden(row)
                if unfit and row["run_id"] in folders:
                    remove_rows(connection, row["id"])
                    self._registry.unreadable.forget(row["id"])
                else:
                    known.add(row["run_id"])
        return known

    def _drop(self, run_id: str) -> None:
        with contextlib.suppress(MosaicError), self._registry.database.write() as connection:
            query = "SELECT id FROM runs WHERE run_id = ? AND reason = ?"
            for (number,) in connection.execute(query, (run_id, UNFINISHED)).fetchall():
                remove_rows(connection, number)

    def _rebuild(self, run_id: str, created_at: float, worker: RebuiltWorker | None) -> str:
        """Create and fill one run's row; return the reason if the folder is not a run."""
        paths = RunPaths(run_id, self._home)
        for path in (paths.events, paths.metrics):
            if os.path.lexists(path) and not path.is_file():
                return f"{path.name} is not a plain file"
        if self._settling and not paths.events.exists():
            with contextlib.suppress(OSError):
                if time.time() - paths.config_file.stat().st_mtime < self._settling:
                    return f"it was submitted less than {self._settling:.0f} s ago; rebuild once more"
        first = _first_event(paths)
        columns, *rest = self._new_run(paths, first)
        if worker is None and (pid := lock_holder(paths)):
            worker = RebuiltWorker(pid)
            columns["external"] = 1
        # An ended row until it is complete: the daemon looks after live ones.
        fixed = {"run_id": run_id, "state": State.FAILED, "reason": UNFINISHED, "created_at": created_at}
        with self._registry.database.write() as connection:
            insert_run(connection, {**columns, **fixed}, *rest)
        self._seen.clear()
        row = self._relay.drain(run_id)
        settled = self._live(row, worker, first) if worker else self._ended(row, paths)
        started = first.timestamp if first and _is_moment(first.timestamp) else 0.0
        with self._registry.database.write() as connection:
            update(connection, row["id"], **settled, started_at=started)
            state, reason = settled["state"], settled["reason"]
            note_change(connection, "moved", run_id, None, state, reason, self._registry.clock())
            keep_count(connection, "slot", row["slot"])
        self._registry.notify()
        return ""

    def _new_run(self, paths: RunPaths, first: Event | None) -> tuple[dict[str, Any], Any, Any, Any]:
        """Return columns, payload, config and command from the accepted config, else of an imported run."""
        slots = [int(part) for file in _worker_configs(paths) if (part := file.stem.rpartition("-")[2]).isdecimal()]
        attempts = {"attempt": max(1, len(slots)), "slot": max(slots, default=0)}
        warnings = []
        if os.path.lexists(paths.config_file):
            try:
                job = JobConfig.parse(read_object(paths.config_file, paths.config_file.name, PAYLOAD_BYTES))
                columns = {**columns_of(job, job.worker_config, claim_of(job)), **attempts}
                for name, value in columns.items():
                    if value is not None:
                        RUN_ROW[name].check(value, name)
                command, worker_type = self._command(job)
                columns |= {"worker_type": worker_type, "executor": job.resources.executor or "local"}
                return columns, job.to_dict(), dict(job.worker_config), command
            except MosaicError as error:
                warnings.append(f"the accepted config cannot be read: {error}")
        return {**_named_by(first), **attempts, "imported": 1, "warnings": json.dumps(warnings)}, {}, {}, ()

    def _command(self, job: JobConfig) -> tuple[tuple[str, ...], str]:
        """Return the command of the run's worker, and its type; empty if that plug-in is not installed."""
        try:
            worker = self._submissions.worker_for(job)
        except MosaicError:
            return (), ""
        return tuple(worker.command), worker.worker_type

    def _live(self, row: sqlite3.Row, worker: RebuiltWorker, first: Event | None) -> dict[str, Any]:
        """Return the columns of a run whose worker lives: the dispatcher adopts it."""
        began = row["metrics_offset"] or row["step"]
        state = State.PAUSED if self._seen.paused else State.EXECUTING if began else State.HANDSHAKE
        named = first.payload.get("worker_id") if first else ""
        return {
            **{"state": state, "reason": "", "nonce": worker.nonce, "executor": "local"},
            **{"pid": worker.pid, "start_ticks": start_ticks(worker.pid) or 0, "boot_id": boot_id()},
            "closing": row["closing"] if self._seen.closed else "",
            "session_hash": "" if state == State.HANDSHAKE else ON_BEHALF,
            "worker_id": named if RUN_ROW["worker_id"].fits(named) else "",
            "gpus": json.dumps(list(worker.gpus) if row["gpus_requested"] else []),
        }

    def _ended(self, row: sqlite3.Row, paths: RunPaths) -> dict[str, Any]:
        """Return the columns of a run whose worker is gone, from its closing event."""
        ended_at = self._seen.last or max(0.0, paths.folder.stat().st_mtime)
        found: dict[str, Any] = {"state": State.FAILED, "reason": NEVER_STARTED, "ended_at": ended_at}
        if not row["events_seq"] and not row["metrics_offset"]:
            with contextlib.suppress(FieldError, UnicodeDecodeError):
                why = read_bytes(paths.folder / "refused.txt", "refused.txt", REASON_LENGTH).decode()
                found["reason"] = f"refused: {why.strip()}"
            return found
        # The closing event of an attempt does not show the end of the next one.
        closing = row["closing"] if self._seen.closed else ""
        end = judge({**dict(row), "closing": closing}, None, Exit(None), lambda: "")
        # A rebuild starts no further attempt.
        found |= {"state": State.FAILED if end.state is State.INIT else end.state, "closing": closing}
        found |= {"reason": end.reason[:REASON_LENGTH], "signal": end.signal[:100]}
        return {**found, "exit_code": end.code}


def _is_moment(value: float) -> bool:
    return RUN_ROW["created_at"].fits(value)


def _named_by(first: Event | None) -> dict[str, Any]:
    """Return the columns that a run's first event fills, if readable; they are data and start nothing."""
    payload = first.payload if first else {}
    try:
        EVENT_PAYLOADS["run_started"].check(payload, "run_started")
    except FieldError:
        return {}
    found = {name: payload.get(name) for name in ("algo", "env_id", "seed", "total_timesteps", "agent_id", "mode")}
    if found["mode"] not in MODES:
        del found["mode"]
    return {name: value for name, value in found.items() if value is not None and RUN_ROW[name].fits(value)}


def _first_event(paths: RunPaths) -> Event | None:
    """Return the first `run_started` of a file of events, else its first event."""
    opening = list(read_events(paths.events, paths.run_id, 0, OPENING))
    return next((event for event in opening if event.event == "run_started"), opening[0] if opening else None)


def _worker_configs(paths: RunPaths) -> list[Path]:
    return sorted(paths.configs_folder.glob(f"worker-{paths.run_id}-*.json"))


def _created_at(paths: RunPaths) -> float:
    """Return when a run was submitted: by its id if it is a ULID, else by its oldest file."""
    from ulid import ULID

    with contextlib.suppress(ValueError):
        moment = ULID.from_str(paths.run_id).timestamp
        if 0 < moment < time.time() + 86400:
            return float(moment)
    times = []
    for path in (paths.config_file, paths.lock, paths.events, paths.metrics, paths.folder):
        with contextlib.suppress(OSError):
            times.append(os.lstat(path).st_mtime)
    return max(0.0, min(times, default=0.0))


def _workers(home: Path) -> dict[str, RebuiltWorker]:
    """Return the living workers of a home by run; those that a daemon started carry their attempt's marker."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            given = process.environ()
            run_id, nonce = given.get(variables.MOSAIC_RUN_ID), given.get(variables.MOSAIC_ATTEMPT)
            place = given.get(variables.MOSAIC_HOME)
            if not (run_id and nonce and place) or Path(place).resolve() != home:
                continue
            if os.getsid(process.pid) == process.pid and start_ticks(process.pid) is not None:
                gpus = [part for part in given.get(variables.CUDA_VISIBLE_DEVICES, "").split(",") if part.isdecimal()]
                found[run_id] = RebuiltWorker(process.pid, nonce, tuple(map(int, gpus)))
    return found
