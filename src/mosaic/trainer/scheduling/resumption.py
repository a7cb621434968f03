"""The resumption of a run: the config of a later attempt, made on the machine that has its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic.contract import variables
from mosaic.contract.checkpoints import find_all, saved_state
from mosaic.contract.events import cut_torn_tail
from mosaic.contract.metrics import encode_resumed
from mosaic.contract.paths import RunPaths
from mosaic.contract.typed import CURRICULA


def next_attempt(config: Mapping[str, Any], paths: RunPaths, checkpoints: Path) -> dict[str, Any]:
    """Return the config that resumes a run from its newest checkpoint, or restarts it if it has none."""
    flat = {**config, "extras": dict(config.get("extras") or {})}
    extras = flat["extras"]
    if extras.get("mode") != "policy_eval" and find_all(checkpoints):
        extras |= {"mode": "resume_training", "checkpoint_path": str(checkpoints)}
        extras.pop("policy_path", None)
        if extras.pop("additional_timesteps", None):
            # The first attempt computed and saved its total; adding steps again would be too many.
            flat["total_timesteps"] = saved_state(checkpoints).get("args", {}).get("total_timesteps")
        return flat
    return start_over(flat, paths)


def start_over(config: Mapping[str, Any], paths: RunPaths) -> dict[str, Any]:
    """Return the same config for a restart; the previous attempt's rows no longer count."""
    if paths.metrics.exists():
        cut_torn_tail(paths.metrics)
        with paths.metrics.open("ab") as file:
            file.write(encode_resumed(-1))
    return dict(config)


def checkpoints_of(environment: Mapping[str, str], paths: RunPaths) -> Path:
    """Return the folder in which a run's worker saves checkpoints, with the defaults of its home's `.env`."""
    return paths.checkpoints_in({**variables.read_dotenv(paths.home), **environment})


def with_curriculum(extras: Any, checked: Mapping[str, Any]) -> Any:
    """Return the extras with the curriculum that a resumption keeps: it was typed before, so it counts as typed."""
    given = extras if isinstance(extras, Mapping) else {}
    kept = {name: checked[name] for name in CURRICULA if name in checked}
    if given.get("mode") != "resume_training" or kept.keys() & {*given, *(given.get("algo_params") or ())}:
        return extras
    return {**given, **kept} if kept else extras
