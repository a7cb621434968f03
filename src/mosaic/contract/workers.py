"""WorkerCapabilities, and the discovery of workers through the entry-point group `mosaic.workers`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from mosaic.contract.errors import WorkerError, shown

GROUP = "mosaic.workers"
DRY_RUN = ("--dry-run", "--emit-summary")
"""The flag with which a worker checks its config, prints its plan, and exits."""


@dataclass(frozen=True, kw_only=True)
class WorkerCapabilities:
    """The capabilities of a worker, its start command, and the provider of its algorithms' form fields."""

    worker_type: str
    label: str
    supported_paradigms: tuple[str, ...]
    env_families: tuple[str, ...]
    action_spaces: tuple[str, ...]
    observation_spaces: tuple[str, ...]
    command: tuple[str, ...]
    schema: Callable[[], dict[str, Any]]
    max_agents: int = 1
    supports_checkpointing: bool = False
    supports_policy_load: bool = False
    requires_gpu: bool = False
    estimated_memory_mb: int = 512


def discover_workers() -> tuple[dict[str, WorkerCapabilities], list[str]]:
    """Return the workers by type, and one line for each plug-in that is broken and was skipped."""
    from importlib.metadata import entry_points  # 40 ms: only callers that look for workers pay for it

    found: dict[str, WorkerCapabilities] = {}
    problems: list[str] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        plugin = f"worker plug-in {entry.name!r} ({entry.value})"
        try:
            worker = _checked(entry.load()())
        except (Exception, SystemExit) as error:  # a stranger's module may raise anything; the other workers go on
            reason = " ".join(str(error).split()) or "no reason given"
            problems.append(f"{plugin} is left out: {type(error).__name__}: {reason}")
            continue
        if worker.worker_type in found:
            problems.append(f"{plugin} is left out: another plug-in already provides {worker.worker_type!r}")
            continue
        found[worker.worker_type] = worker
    return found, problems


def schema_of(worker: WorkerCapabilities) -> dict[str, Any]:
    """Return the fields of a worker's algorithms; raise WorkerError if its provider fails."""
    try:
        return dict(worker.schema())
    except (Exception, SystemExit) as error:  # a stranger's function may raise anything
        reason = " ".join(str(error).split()) or "no reason given"
        raise WorkerError(f"worker {worker.worker_type!r} cannot list its algorithms: {reason}") from None


def _checked(worker: object) -> WorkerCapabilities:
    """Refuse a plug-in's result that would only fail later, when a run is submitted."""
    if not isinstance(worker, WorkerCapabilities):
        raise WorkerError(f"it must return WorkerCapabilities, not {shown(worker)}")
    for field in fields(worker):
        value = getattr(worker, field.name)
        if not _fits(value, str(field.type)):
            raise WorkerError(f"{field.name} must be {field.type}, not {shown(value)}")
    if not worker.worker_type or not worker.command:
        raise WorkerError("worker_type and command may not be empty")
    return worker


def _fits(value: object, annotation: str) -> bool:
    if annotation.startswith("tuple"):
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    if annotation.startswith("Callable"):
        return callable(value)
    return type(value).__name__ == annotation
