"""The runtime of a run: from a config to a finished algorithm process, its events, metrics and manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson

from cleanrl_worker.config.phase import is_phase
from cleanrl_worker.plan.resources import Needs, needs_of, shortages
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY as DEFAULT_ALGO_REGISTRY
from cleanrl_worker.supervise.process import Signals
from cleanrl_worker.supervise.run_lock import holding
from cleanrl_worker.supervise.script_phase import Phase, PhaseEmitter
from cleanrl_worker.supervise.supervisor import Attempt
from cleanrl_worker.telemetry.emitter import LifecycleEmitter
from mosaic.contract.errors import ConfigError, StoreError
from mosaic.contract.events import EventLog, cut_torn_tail
from mosaic.contract.paths import RunPaths
from mosaic.contract.secrets import mask_flag, mask_secrets
from mosaic.store.storage import AwayError, Storage
from mosaic.store.syncing import storage_of

if TYPE_CHECKING:
    from cleanrl_worker.config.config import CleanRLWorkerConfig
    from cleanrl_worker.plan.plan import Plan

# DESIGN's grace period: time to reach a checkpoint.
GRACE_SECONDS = 120.0


@dataclass(frozen=True)
class RuntimeSummary:
    """The summary of a run or dry run; `--emit-summary` prints its `to_json`, with secrets masked."""

    status: str
    module: str
    callable: str
    argv: tuple[str, ...]
    config: dict[str, Any]
    extras: dict[str, Any]
    warnings: tuple[str, ...] = ()
    needs: Needs | None = None
    run_id: str | None = None
    manifest: dict[str, Any] | None = None

    def to_json(self) -> str:
        """Return one line of JSON; `run_id` and `manifest` only after a real run."""
        shown = {
            "status": self.status,
            "module": self.module,
            "callable": self.callable,
            "argv": [mask_flag(flag) for flag in self.argv],
            "config": mask_secrets(self.config),
            "extras": mask_secrets(self.extras),
            "warnings": list(self.warnings),
            "needs": self.needs.as_json() if self.needs else None,
        }
        if self.manifest is not None:
            shown.update(run_id=self.run_id, manifest=self.manifest)
        return orjson.dumps(shown).decode()


class CleanRLWorkerRuntime:
    """The runtime of one config: checks it, starts the algorithm and follows it to its end.

    Call `run` from the main thread, where signals arrive. It raises ConfigError for an invalid config before anything
    is written, StorageError for a disk that cannot store the run, CalledProcessError for a failed algorithm.
    """

    def __init__(
        self,
        config: CleanRLWorkerConfig,
        *,
        use_grpc: bool = False,
        grpc_target: str = "127.0.0.1:50055",
        dry_run: bool = False,
        algo_registry: Mapping[str, str] | None = None,
        heartbeat_seconds: float = 30.0,
        grace_seconds: float | None = None,
    ) -> None:
        self.config = config
        self.paths = RunPaths(config.run_id)
        self._grpc_target = grpc_target if use_grpc else None
        self._dry_run = dry_run
        self._registry = DEFAULT_ALGO_REGISTRY if algo_registry is None else algo_registry
        self._heartbeat_seconds = heartbeat_seconds
        asked = config.extras.get("grace_seconds") if grace_seconds is None else grace_seconds
        self._grace_seconds = GRACE_SECONDS if asked in (None, "") else float(asked)

    @cached_property
    def plan(self) -> Plan:
        """Return the checked command; raise ConfigError for whatever a dry run refuses."""
        from cleanrl_worker.plan.command import make_plan

        return make_plan(self.config, self.paths, self._registry)

    @cached_property
    def needs(self) -> Needs | None:
        """Return the needed memory and disk, None if unknown."""
        return needs_of(self.plan)

    def build_cleanrl_args(self) -> list[str]:
        """Return the algorithm's flags."""
        from cleanrl_worker.plan.command import build_args

        return build_args(self.config, self.paths, self._registry)

    def run(self) -> RuntimeSummary:
        """Execute the run, or only check it in a dry run."""
        plan = self.plan
        if self._dry_run:
            from cleanrl_worker.supervise.policy_check import check_policy

            check_policy(self.config, plan)
            return self._summary("dry-run", storage=self._check_storage())
        self.paths.create()
        with holding(self.paths):
            return self._summary("completed", self._run(plan))

    def _run(self, plan: Plan) -> dict[str, Any]:
        cut_torn_tail(self.paths.metrics)
        self.paths.pause_file.unlink(missing_ok=True)
        log = EventLog(self.paths.events, self.config.run_id)
        phase = Phase(self.config, self.paths) if is_phase(self.config.run_id) else None
        emitter = LifecycleEmitter(log) if phase is None else PhaseEmitter(log, phase)
        try:
            with Signals() as signals:
                attempt = Attempt(self.config, plan, self.paths, emitter, signals, phase)
                return attempt.to_end(self._warnings(), self._grpc_target, self._heartbeat_seconds, self._grace_seconds)
        finally:
            emitter.close()

    def _check_storage(self) -> tuple[str, ...]:
        """Refuse a store without write access; warn of an unreachable one, which may respond by the time of the run."""
        if not (url := storage_of(self.config.extras)):
            return ()
        try:
            Storage(url).check()
        except AwayError as error:
            return (f"{error}; training goes on without its copy, which is tried again and again",)
        except StoreError as error:
            raise ConfigError(str(error)) from None
        return ()

    def _warnings(self) -> tuple[str, ...]:
        short = shortages(self.needs, self.paths.folder) if self.needs else ()
        return tuple(dict.fromkeys((*self.config.warnings, *self.plan.warnings, *short)))

    def _summary(
        self, status: str, manifest: dict[str, Any] | None = None, storage: tuple[str, ...] = ()
    ) -> RuntimeSummary:
        return RuntimeSummary(
            status=status,
            module=self.plan.name,
            callable=self.plan.callable,
            argv=self.plan.argv,
            config=self.config.to_dict(),
            extras=self.config.extras,
            warnings=(*self._warnings(), *storage),
            needs=self.needs,
            run_id=self.config.run_id,
            manifest=manifest,
        )
