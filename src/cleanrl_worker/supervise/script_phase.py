"""A phase: one worker start inside a script, whose phases share a run, its folder, its events and its steps."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cleanrl_worker.config.phase import checkpoint_folder, is_phase, read
from cleanrl_worker.telemetry.emitter import LifecycleEmitter
from mosaic.contract import variables
from mosaic.contract.checkpoints import mirror
from mosaic.contract.errors import MosaicError
from mosaic.contract.events import Event, EventLog
from mosaic.contract.paths import RunPaths
from mosaic.contract.phases import COMPLETED, FAILED, REFUSED, STOPPED, PhaseRecord, begin_phase, end_phase, read_phases

if TYPE_CHECKING:
    from cleanrl_worker.config.config import CleanRLWorkerConfig

# A script's host emits these for the whole run.
_OF_THE_HOST = ("paused", "continued")


def note_refused(error: MosaicError, config: str | None, algo: str | None, env_id: str | None) -> None:
    """Record a phase whose config was refused: the run exists and must not end without reporting it."""
    run_id = os.environ.get(variables.MOSAIC_RUN_ID)
    if run_id is None or not is_phase(run_id):
        return
    with contextlib.suppress(MosaicError):  # the error is already on stderr
        paths = RunPaths(run_id)
        if not paths.logs.is_dir():
            return
        given = read(config or "")
        names = (algo or given.get("algo"), env_id or given.get("env_id"))
        record = begin_phase(paths, *(name if isinstance(name, str) else "unknown" for name in names))
        ended = replace(record, outcome=REFUSED, end_step=record.first_step, exit_code=2, error=str(error))
        with EventLog(paths.events, run_id) as log:
            log.append("phase", {**_about(ended), "status": "ended", "exit_code": 2, "error": str(error)})
        end_phase(paths, ended)


class Phase:
    """The phase of this process, from its number to its end."""

    def __init__(self, config: CleanRLWorkerConfig, paths: RunPaths) -> None:
        self._earlier = read_phases(paths)
        self.record = begin_phase(paths, config.algo, config.env_id)
        self._config, self._paths = config, paths
        self._started = time.monotonic()
        self.reached = self.record.first_step
        """the step of its newest checkpoint, as rows may be rare"""

    @property
    def first_step(self) -> int:
        """Return the run's step at the phase's start; 0 for an evaluation, which counts its own episodes."""
        return 0 if self._config.mode == "policy_eval" else self.record.first_step

    @property
    def checkpoints(self) -> Path:
        return checkpoint_folder(self._paths) / self.record.name

    def variables(self) -> dict[str, str]:
        """Return the algorithm's variables: its first step and its own checkpoint folder."""
        told = {variables.MOSAIC_CHECKPOINT_DIR: str(self.checkpoints)}
        if self.first_step:
            told[variables.MOSAIC_FIRST_STEP] = str(self.first_step)
        return told

    def summary(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the run's headline numbers over all phases; an evaluation keeps the returns of training."""
        seconds = own["seconds"] + sum(record.seconds for record in self._earlier)
        episodes = own["episodes"] + sum(record.episodes for record in self._earlier)
        told = {**own, "seconds": round(seconds, 3), "episodes": episodes, "phases": self.record.number}
        before = next((one for one in reversed(self._earlier) if one.final_return is not None), None)
        if before is None:
            return told
        if self._config.mode == "policy_eval":
            return told | {name: getattr(before, name) for name in ("final_return", "best_return")}
        bests = [best for best in (own["best_return"], before.best_return) if best is not None]
        final = before.final_return if own["final_return"] is None else own["final_return"]
        return told | {"final_return": final, "best_return": max(bests, default=None)}

    def begun(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Return the payload of the phase's first event."""
        extras = self._config.extras
        budget = extras.get("additional_timesteps") or self._config.total_timesteps
        until = {} if self._config.mode == "policy_eval" else {"total_timesteps": self.record.first_step + int(budget)}
        return {**payload, **_about(self.record), "status": "started", **until}

    def ended(self, outcome: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Record the phase's end; return the payload of its last event."""
        summary = (payload.get("manifest") or {}).get("summary") or {}
        step = payload.get("step", summary.get("steps")) or 0
        self.record = replace(
            self.record,
            outcome=outcome,
            end_step=max(self.reached, 0 if self._config.mode == "policy_eval" else step),
            exit_code=_exit_code(payload),
            seconds=self._own(summary, "seconds", round(time.monotonic() - self._started, 3)),
            episodes=self._own(summary, "episodes", 0),
            final_return=summary.get("final_return"),
            best_return=summary.get("best_return"),
            error="" if outcome == COMPLETED else _why(payload),
        )
        end_phase(self._paths, self.record)
        return {**payload, **_about(self.record), "status": "ended"}

    def _own(self, summary: Mapping[str, Any], name: str, otherwise: Any) -> Any:
        """Return this phase's part of a sum over all phases."""
        return round(summary[name] - sum(getattr(one, name) for one in self._earlier), 3) if summary else otherwise

    def share_checkpoints(self) -> None:
        """Mirror checkpoints from a manually set folder into the run's own."""
        own = self._paths.checkpoints / self.record.name
        if self.checkpoints != own and self.checkpoints.is_dir():
            with contextlib.suppress(OSError):  # a full disk: the originals remain
                mirror(self.checkpoints, own)


class PhaseEmitter(LifecycleEmitter):
    """An emitter of a phase's start and end as `phase` events; the script emits the run's own start and end."""

    def __init__(self, log: EventLog, phase: Phase) -> None:
        super().__init__(log)
        self._phase = phase
        self._hosted = os.environ.get(variables.MOSAIC_SCRIPT) == "1"

    def run_started(self, run_id: str, payload: dict[str, Any]) -> Event:
        return self.emit("phase", run_id, self._phase.begun(payload))

    def run_completed(self, run_id: str, payload: dict[str, Any]) -> Event:
        return self.emit("phase", run_id, self._phase.ended(COMPLETED, payload))

    def run_failed(self, run_id: str, payload: dict[str, Any]) -> bool:
        outcome = STOPPED if payload.get("stopped_by") else FAILED
        return self.emit_or_say("phase", run_id, self._phase.ended(outcome, payload))

    def hold(self, kind: str, run_id: str, payload: dict[str, Any]) -> None:
        if kind == "checkpoint" and isinstance(step := payload.get("step"), int):
            self._phase.reached = max(self._phase.reached, step)
        super().hold(kind, run_id, payload)

    def emit(self, kind: str, run_id: str, payload: dict[str, Any]) -> Event:
        if kind in _OF_THE_HOST and self._hosted:
            return Event(kind, run_id, 0, time.time(), payload)
        return super().emit(kind, run_id, payload)


def _about(record: PhaseRecord) -> dict[str, Any]:
    told: dict[str, Any] = {"number": record.number, "name": record.name, "algo": record.algo, "env_id": record.env_id}
    phases = os.environ.get(variables.MOSAIC_PHASES, "")
    told |= {"phases": int(phases)} if phases.isdecimal() else {}
    ended = {"end_step": record.end_step, "outcome": record.outcome} if record.outcome else {}
    return {**told, "start_step": record.first_step, **ended}


def _exit_code(payload: Mapping[str, Any]) -> int:
    """Return the exit code that this process will end with."""
    code, name = payload.get("exit_code", 0), str(payload.get("signal"))
    return 128 + signal.Signals[name] if name in signal.Signals.__members__ else 1 if code is None else int(code)


def _why(payload: Mapping[str, Any]) -> str:
    """Return the reason for a phase's failure, in one line."""
    if payload.get("error"):
        return str(payload["error"])
    code = payload.get("signal") or f"exit code {payload.get('exit_code')}"
    lines = [line for line in payload.get("stderr_tail") or () if line.strip()]
    words = payload.get("hint") or (lines[-1].strip()[:300] if lines else "")
    return f"{code}: {words}" if words else str(code)
