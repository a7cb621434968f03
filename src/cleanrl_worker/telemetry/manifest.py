"""The manifest analytics.json: a run's artifacts with their paths, and its headline numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from cleanrl_worker.telemetry.wandb import project_of
from mosaic.contract.files import TRACKING, read_note
from mosaic.contract.paths import write_atomic
from mosaic.contract.sidecars import newest_policy

if TYPE_CHECKING:
    from cleanrl_worker.config.config import CleanRLWorkerConfig
    from mosaic.contract.paths import RunPaths

NO_SUMMARY: dict[str, Any] = dict.fromkeys(("final_return", "best_return", "steps", "seconds", "sps"))


def identity(config: CleanRLWorkerConfig) -> dict[str, Any]:
    """Return the run's identity, the part shared by all lifecycle events."""
    return {
        "algo": config.algo,
        "env_id": config.env_id,
        "agent_id": config.extras.get("agent_id"),
        "worker_id": config.worker_id or f"cleanrl-worker-{config.run_id[:8]}",
    }


def build_manifest(
    config: CleanRLWorkerConfig,
    paths: RunPaths,
    *,
    tensorboard: Path | None = None,
    wandb: bool = False,
    summary: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the manifest of the run folder's current state; paths are relative to it."""
    extras, whose = config.extras, identity(config)
    status = read_wandb_status(paths)
    return {
        "run_id": config.run_id,
        "artifacts": {
            "tensorboard": {
                "enabled": tensorboard is not None,
                "relative_path": None if tensorboard is None else paths.relative(tensorboard),
            },
            "wandb": {
                "enabled": wandb,
                "run_path": status.get("run_path"),
                "entity": status.get("entity") or extras.get("wandb_entity"),
                "project": status.get("project") or (project_of(extras) if wandb else None),
            },
            "checkpoints": _checkpoints(paths),
            "videos": sorted(_relative(paths, path) for path in paths.videos.rglob("*.mp4")),
            "policy": _policy(paths),
        },
        "agent_id": whose["agent_id"],
        "worker_id": whose["worker_id"],
        "optuna_db_path": _relative(paths, extras["optuna_db"]) if extras.get("optuna_db") else None,
        "checkpoints_dir": _relative(paths, extras["checkpoints_dir"]) if extras.get("checkpoints_dir") else None,
        "notes": extras.get("notes"),
        "provenance": provenance,
        "summary": {**NO_SUMMARY, **(summary or {})},
    }


def write_manifest(paths: RunPaths, manifest: Mapping[str, Any]) -> None:
    """Replace analytics.json atomically: a reader finds the old or the new one."""
    write_atomic(paths.analytics, orjson.dumps(dict(manifest), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def read_wandb_status(paths: RunPaths) -> dict[str, Any]:
    """Return the W&B process's last status, {} before the first."""
    return read_note(paths.wandb_status, TRACKING)


def _checkpoints(paths: RunPaths) -> dict[str, Any]:
    """Return the checkpoints by step; a script's as `<phase>/<step>`, in the order of the phases."""
    found = [*paths.checkpoints.glob("*"), *paths.checkpoints.glob("*/*")]
    saved = sorted((path for path in found if path.name.isdecimal() and path.is_dir()), key=_place)
    names = [path.relative_to(paths.checkpoints).as_posix() for path in saved]
    return {
        "relative_path": _relative(paths, paths.checkpoints) if saved else None,
        "steps": [int(name) if name.isdecimal() else name for name in names],
        "latest": _relative(paths, saved[-1]) if saved else None,
    }


def _place(checkpoint: Path) -> tuple[int, int]:
    """Return the phase number, 0 outside of a phase, and the step."""
    number = re.match(r"phase(\d+)-", checkpoint.parent.name)
    return int(number[1]) if number else 0, int(checkpoint.name)


def _policy(paths: RunPaths) -> str | None:
    found = newest_policy(paths.policies)
    return None if found is None else _relative(paths, found)


def _relative(paths: RunPaths, path: Path | str) -> str:
    """Return the path relative to the run folder, or unchanged if it is elsewhere, such as a shared database."""
    path = Path(path)
    return path.relative_to(paths.folder).as_posix() if path.is_relative_to(paths.folder) else str(path)
