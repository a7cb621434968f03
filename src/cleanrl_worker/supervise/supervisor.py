"""One start of a run, from the algorithm's first process to its end: signals, events, metrics, manifest."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from cleanrl_worker.config.config import worker_variables
from cleanrl_worker.fastlane import settings
from cleanrl_worker.plan.script_era import MEAN_TAG
from cleanrl_worker.supervise.exit_reason import REQUEUE, describe_end
from cleanrl_worker.supervise.process import AlgorithmProcess, Signals, child_environment
from cleanrl_worker.supervise.provenance import Provenance
from cleanrl_worker.telemetry.emitter import LifecycleEmitter, Notes, ScriptScalars
from cleanrl_worker.telemetry.evaluation import make_relay
from cleanrl_worker.telemetry.manifest import build_manifest, identity, write_manifest
from cleanrl_worker.telemetry.process_stats import Vitals
from cleanrl_worker.telemetry.wandb import Tracker, project_of
from cleanrl_worker.telemetry.wandb_keys import wandb_variables, with_key, without_key
from mosaic.contract import variables
from mosaic.contract.checkpoints import drop_segments
from mosaic.contract.errors import MosaicError, StorageError
from mosaic.contract.paths import RunPaths
from mosaic.contract.secrets import is_secret, mask_secrets
from mosaic.contract.stopping import STOP_SIGNALS
from mosaic.store.syncing import FLUSH_SECONDS, STOPPED_FLUSH_SECONDS, Syncer, storage_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cleanrl_worker.config.config import CleanRLWorkerConfig
    from cleanrl_worker.plan.plan import Plan
    from cleanrl_worker.supervise.script_phase import Phase
    from mosaic.contract.publisher import Publisher

# Short enough for a viewer to see episodes as they end, long enough to cost nothing.
POLL_SECONDS = 0.25
# On a full disk nothing can be saved; the algorithm only gets time to exit.
FULL_DISK_GRACE_SECONDS = 5.0


class Attempt:
    """One start of a run: the algorithm's process and all its followers."""

    def __init__(
        self,
        config: CleanRLWorkerConfig,
        plan: Plan,
        paths: RunPaths,
        emitter: LifecycleEmitter,
        signals: Signals,
        phase: Phase | None = None,
    ) -> None:
        self._config, self._plan, self._paths, self._phase = config, plan, paths, phase
        self._emitter = emitter
        self._signals = signals
        self._stopped_by: signal.Signals | None = None
        self._failed = False
        self._secrets: list[str] = []
        self._inherited: dict[str, str] = {}
        self._process: AlgorithmProcess | None = None
        self._tracker: Tracker | None = None
        self._syncer: Syncer | None = None
        self._publisher: Publisher | None = None
        self._checkpoints = paths.checkpoints
        self._provenance: Provenance | None = None
        self._handed_over: Mapping[str, str] = {}
        self._vitals = Vitals()
        self._started = time.monotonic()
        self._ended: float | None = None
        extras = config.extras
        self._tensorboard = paths.inside(extras["tensorboard_dir"]) if extras.get("tensorboard_dir") else None
        first_step = phase.first_step if phase is not None else 0
        outlets = (self._hold, self._beat, self._tensorboard)
        self._relay = make_relay(config, paths, *outlets, first_step, whole=phase is None)
        self._notes = Notes(paths, self._hold)
        mean_tag = MEAN_TAG if plan.era.logs_means else ""
        self._scalars = None if plan.ours else ScriptScalars(paths, self._tensorboard, first_step, mean_tag)
        self._silence = None if plan.ours else settings.Silence(paths, self._warn)
        self._warned: set[str] = set()
        tracks_itself = not plan.ours and any(flag in ("--track", "--track=true", "--track=True") for flag in plan.argv)
        self._self_tracked = bool(extras.get("track_wandb")) and tracks_itself
        self._tracked = bool(extras.get("track_wandb")) and not tracks_itself

    def to_end(
        self, warnings: tuple[str, ...], grpc_target: str | None, heartbeat_seconds: float, grace_seconds: float
    ) -> dict[str, Any]:
        """Start the algorithm, follow it and report its end; return the manifest."""
        clean = contextlib.ExitStack()
        try:
            for message in warnings:
                self._warn(message)
            if grpc_target is not None:
                self._introduce(grpc_target)
            environment = self._environment()
            if not settings.is_on(environment):
                self._warn(settings.OFF)
            clean.enter_context(settings.keeping_clean(self._paths, environment))
            self._start(environment)
            returncode = self._follow(heartbeat_seconds, grace_seconds)
            return self._end(returncode)
        except subprocess.CalledProcessError:
            raise
        except StorageError as error:
            self._leave_full_disk(error)
            raise
        except Exception as error:
            self._fail({"exit_code": None, "signal": None, "stderr_tail": [], "hint": None, "error": _line(error)})
            raise
        finally:
            if self._process is not None:
                self._process.close()
                with contextlib.suppress(
                    OSError
                ):  # left if the algorithm was killed between a segment and a checkpoint
                    drop_segments(self._checkpoints)
            if self._tracker is not None:
                self._tracker.kill()
            if self._syncer is not None and (trouble := self._syncer.close()):
                print(f"cleanrl-worker: {trouble}", file=sys.stderr)
            if self._publisher is not None and (trouble := self._publisher.close()):
                print(f"cleanrl-worker: {trouble}", file=sys.stderr)
            clean.close()  # last: the ring of a live algorithm cannot be removed

    def _introduce(self, target: str) -> None:
        """Register this run with a daemon before the algorithm starts."""
        from cleanrl_worker.telemetry.daemon_link import introduce  # imports gRPC, only if configured

        told = introduce(self._config, self._paths, target, self._signals.take)
        if told.warning is not None:
            self._warn(told.warning)
        self._publisher, self._handed_over = told.publisher, told.environment
        if self._publisher is not None:
            self._publisher.start()

    def _environment(self) -> dict[str, str]:
        """Return the algorithm's variables; W&B's process gets the inherited ones."""
        self._inherited = {**worker_variables(), **self._config.environment, **self._handed_over}
        self._inherited.update(wandb_variables(self._config.extras, self._inherited))
        environment = child_environment(self._config.extras, self._plan, self._paths, self._inherited)
        return environment if self._phase is None else environment | self._phase.variables()

    def _start(self, environment: dict[str, str]) -> None:
        config, paths = self._config, self._paths
        if self._tracked:
            self._tracker = Tracker(
                paths,
                self._inherited,
                project=project_of(config.extras),
                entity=config.extras.get("wandb_entity"),
                name=config.extras.get("wandb_run_name") or self._run_name(),
                config=mask_secrets(config.to_dict()),
            )
        self._write_manifest()
        environment = with_key(environment, paths.home) if self._self_tracked else without_key(environment)
        self._secrets = [value for name, value in environment.items() if is_secret(name) and len(value) >= 8]
        self._started = time.monotonic()
        self._checkpoints = paths.checkpoints_in(environment)
        self._process = AlgorithmProcess(self._plan, paths, environment)
        canonical = orjson.dumps(mask_secrets(config.to_dict()), option=orjson.OPT_SORT_KEYS)
        digest = hashlib.sha256(canonical).hexdigest()
        started = {
            "seed": config.seed,
            "mode": config.mode,
            "total_timesteps": config.total_timesteps,
            "config_digest": digest,
            "pid": os.getpid(),
            "algorithm_pid": self._process.pid,
        }
        self._emitter.run_started(config.run_id, self._about(started))
        phase = self._phase.record.name if self._phase is not None else None
        self._provenance = Provenance(config, self._plan, paths, digest, self._inherited, phase)
        hosted = self._phase is not None and environment.get(variables.MOSAIC_SCRIPT) == "1"
        if not hosted and (url := storage_of(config.extras)):  # a script's host stores the whole run
            folder = paths.checkpoints if self._phase is not None else self._checkpoints
            self._syncer = Syncer(paths, url, self._inherited, folder)

    def _follow(self, heartbeat_seconds: float, grace_seconds: float) -> int:
        process = self._alive
        beat = time.monotonic() + heartbeat_seconds
        while (returncode := process.poll()) is None:
            self._act_on_signals(grace_seconds)
            self._pass_on()
            if time.monotonic() >= beat:
                beat += heartbeat_seconds * (1 + (time.monotonic() - beat) // heartbeat_seconds)
                self._beat()
            process.wait(POLL_SECONDS)
        return returncode

    def _beat(self) -> None:
        self._emitter.heartbeat(self._config.run_id, self._about(self._pulse()))
        self._write_manifest()

    def _act_on_signals(self, grace_seconds: float) -> None:
        while self._signals.received:
            number = self._signals.received.popleft()
            process = self._alive
            if number in STOP_SIGNALS:
                self._stopped_by = self._stopped_by or signal.Signals(number)
                process.stop(grace_seconds)
            elif number == signal.SIGUSR1 and process.pause():
                self._pass_on()
                self._emit("paused", {"step": self._relay.progress.step})
            elif number == signal.SIGUSR2 and process.go_on():
                paused = round(process.paused_seconds, 3)
                self._emit("continued", {"step": self._relay.progress.step, "paused_seconds": paused})

    def _is_hurried(self, seconds: float = STOPPED_FLUSH_SECONDS) -> bool:
        """Return True to skip the remaining work: stopped again, or first stopped after the end and now timed out."""
        stops = self._signals.stops
        return stops.again or (self._stopped_by is None and stops.seconds() > seconds)

    def _pass_on(self) -> None:
        if self._scalars is not None:
            self._scalars.poll()
        self._notes.poll()
        if self._silence is not None:
            self._silence.poll()
        self._relay.poll()
        self._emitter.flush()
        if self._tracker is not None and (trouble := self._tracker.poll()):
            self._warn(trouble)
        if self._syncer is not None and (trouble := self._syncer.poll()):
            self._warn(trouble)

    def _end(self, returncode: int) -> dict[str, Any]:
        """Forward the rest, close everything, and emit the last event."""
        self._ended = time.monotonic()
        if self._scalars is not None:
            self._scalars.poll(last=True)
        self._notes.poll()
        self._relay.close()
        if self._tracker is not None or self._syncer is not None:  # closing them may take minutes
            self._beat()
        if self._tracker is not None:
            if trouble := self._tracker.close(returncode, hurry=lambda: self._is_hurried(0.0)):
                self._warn(trouble)
        self._close_provenance()
        manifest = self._write_manifest()
        if self._syncer is not None:
            seconds = FLUSH_SECONDS if self._stopped_by is None else STOPPED_FLUSH_SECONDS
            if trouble := self._syncer.flush(seconds, self._is_hurried, self._beat):
                self._warn(trouble)
        if returncode == 0:
            completed = {"manifest": manifest, **self._relay.closing()}
            if self._stopped_by is not None and self._config.extras.get("eval_repeat"):
                completed["stopped_by"] = self._stopped_by.name  # a repeated evaluation ends only this way
            self._emitter.run_completed(self._config.run_id, self._about(completed))
            return manifest
        # our own algorithms handle both once they have begun: the first one kills them only during the start
        died_of_stop = returncode in (-signal.SIGTERM, -signal.SIGINT)
        unbegun = self._resumable and died_of_stop and not self._signals.stops.again
        if unbegun:
            returncode = REQUEUE
        elif self._stopped_by is not None and returncode == -signal.SIGTERM:
            returncode = -self._stopped_by  # our SIGTERM killed it, sent for the signal that we received
        described = describe_end(returncode, self._last_lines(), self._paths.folder)
        if unbegun:
            described["hint"] = "it was stopped while it started, with nothing new to save: start it again"
        if self._stopped_by is not None and described["signal"]:
            described["hint"] = None  # not a failure
        if not self._fail(described):
            raise StorageError(f"cannot write {self._paths.folder}: {described['hint'] or 'the events are not stored'}")
        raise subprocess.CalledProcessError(returncode, [self._plan.name, *self._plan.argv])

    def _close_provenance(self) -> None:
        """Wait for provenance.json, and warn if it could not be written."""
        if self._provenance is not None:
            self._provenance.close()
            if trouble := self._provenance.take_warning():
                self._warn(trouble)

    def _leave_full_disk(self, error: StorageError) -> None:
        """Stop an algorithm that can no longer store anything; the event may only reach stdout."""
        lines: list[str] = []
        if self._process is not None:
            self._process.stop(FULL_DISK_GRACE_SECONDS)
            while self._process.poll() is None:
                self._process.wait(POLL_SECONDS)
            lines = self._last_lines()
        self._fail({"exit_code": None, "signal": None, "stderr_tail": lines, "hint": None, "error": _line(error)})

    def _fail(self, described: dict[str, Any]) -> bool:
        """Emit run_failed, once; return True if the log has it."""
        if self._failed:
            return True
        self._failed = True
        stopped_by = None if self._stopped_by is None else self._stopped_by.name
        payload = self._about({**described, "stopped_by": stopped_by, "step": self._relay.progress.step})
        return self._emitter.run_failed(self._config.run_id, mask_secrets(payload))

    def _last_lines(self) -> list[str]:
        """Return the last lines of the algorithm's stderr, with its secrets masked."""
        text = "\n".join(self._alive.last_lines())
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text.splitlines()

    def _pulse(self) -> dict[str, Any]:
        progress, process = self._relay.progress, self._alive
        return {
            "step": progress.step,
            "sps": progress.steps_per_second(self._seconds()),
            "last_return": progress.last_return,
            **self._vitals.measure(process.pid),
            "paused": process.paused,
            **({} if self._ended is None else {"doing": "closing"}),
        }

    def _write_manifest(self) -> dict[str, Any]:
        if self._phase is not None:
            self._phase.share_checkpoints()
        summary = self._relay.progress.summary(self._seconds())
        manifest = build_manifest(
            self._config,
            self._paths,
            tensorboard=self._tensorboard or (self._scalars.folder if self._scalars is not None else None),
            wandb=self._tracked or self._self_tracked,
            summary=summary if self._phase is None else self._phase.summary(summary),
            provenance=self._provenance.summary if self._provenance is not None else None,
        )
        write_manifest(self._paths, manifest)
        return manifest

    def _seconds(self) -> float:
        """Return the seconds of training, without pauses and the time after the algorithm's end."""
        now = time.monotonic() if self._ended is None else self._ended
        return now - self._started - (self._process.paused_seconds if self._process else 0.0)

    def _about(self, payload: dict[str, Any]) -> dict[str, Any]:
        return {**identity(self._config), **payload}

    def _run_name(self) -> str:
        """Return CleanRL's name for a run: environment, experiment, seed, time."""
        algo = self._config.algo
        name = Path(algo).stem if algo.endswith(".py") else algo.rpartition(".")[2]
        return f"{self._config.env_id}__{name}__{self._config.seed}__{time.time():.0f}"

    def _emit(self, kind: str, payload: dict[str, Any]) -> None:
        if kind == "warning":  # the shell and the algorithm may report the same
            if payload.get("message") in self._warned:
                return
            self._warned.add(str(payload.get("message")))
        self._emitter.emit(kind, self._config.run_id, payload)

    def _hold(self, kind: str, payload: dict[str, Any]) -> None:
        self._emitter.hold(kind, self._config.run_id, payload)

    def _warn(self, message: str) -> None:
        self._emit("warning", {"message": message})

    @property
    def _resumable(self) -> bool:
        return self._plan.ours and self._config.mode in ("train", "resume_training")

    @property
    def _alive(self) -> AlgorithmProcess:
        assert self._process is not None
        return self._process


def _line(error: BaseException) -> str:
    """Return an error as one line."""
    text = str(error) if isinstance(error, MosaicError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())
