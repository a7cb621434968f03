"""The registry's columns that a payload sets: names, limits, resource claims, group."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from mosaic.contract.groups import recipe_of
from mosaic.contract.job import JobConfig
from mosaic.trainer.scheduling.gpu import Claim

GRACE_SECONDS = 120.0


def columns_of(job: JobConfig, config: Mapping[str, Any], claim: Claim) -> dict[str, Any]:
    """Return the columns that a checked payload and the worker's flat config set."""
    given = config.get("extras")
    extras: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    restarts = job.retry.max_restarts or extras.get("max_restarts") or 0
    grace = extras.get("grace_seconds")
    return {
        "run_name": job.run_name or PurePath(job.metadata.worker.script or "").name,
        "algo": str(config.get("algo") or ""),
        "env_id": str(config.get("env_id") or ""),
        "seed": config.get("seed"),
        "mode": "script" if job.metadata.worker.script else str(extras.get("mode") or "train"),
        "total_timesteps": _total(config, extras),
        "group": _group(job.metadata.ui.group, config),
        "agent_id": str(config.get("agent_id") or extras.get("agent_id") or ""),
        "cpus": claim.cpus,
        "memory_mb": claim.memory_mb,
        "gpus_requested": claim.gpus,
        "gpus_mandatory": int(claim.gpus_mandatory),
        "max_restarts": int(restarts),
        "max_duration": job.schedule.max_duration_seconds,
        "max_steps": job.schedule.max_steps,
        "grace": GRACE_SECONDS if grace in (None, "") else float(grace),
    }


def claim_of(job: JobConfig) -> Claim:
    """Return the resources that a payload claims."""
    asked = job.resources
    return Claim(
        # A run that claims nothing still uses a slot: a hundred seeds must not start at once.
        cpus=1.0 if asked.cpus is None else asked.cpus,
        memory_mb=asked.memory_mb or 0,
        gpus=asked.gpus.requested,
        gpus_mandatory=asked.gpus.mandatory,
    )


def _group(name: str | None, config: Mapping[str, Any]) -> str:
    """Return the group of a configuration's seeds: its given name, or a digest of all that can change a return."""
    if name:
        return name[:200]
    text = json.dumps(recipe_of(config), sort_keys=True, default=str)
    return f"#{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _total(config: Mapping[str, Any], extras: Mapping[str, Any]) -> int:
    total = config.get("total_timesteps")
    if isinstance(total, int | float) and not isinstance(total, bool) and 0 < total < 1 << 63:
        return int(total)
    episodes = extras.get("eval_episodes")
    return episodes if extras.get("mode") == "policy_eval" and isinstance(episodes, int) else 0
