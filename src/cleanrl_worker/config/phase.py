"""Completion of a config for a phase of a script."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic.contract import variables
from mosaic.contract.paths import RunPaths


def is_phase(run_id: str | None) -> bool:
    """Return True if a worker for this run is a phase of the script that started it.

    A daemon sets MOSAIC_SCRIPT; in a script started by hand, the base config's variable is set. A config with another
    run id than the script's is a separate run.
    """
    here = os.environ.get(variables.MOSAIC_RUN_ID)
    told = os.environ.get(variables.MOSAIC_SCRIPT)
    inside = told == "1" if told else bool(here and os.environ.get(variables.MOSAIC_CONFIG_FILE))
    return inside and (run_id is None or not here or run_id == here)


def settle(flat: Mapping[str, Any], extras: dict[str, Any], run_id: str) -> None:
    """Fill in a phase's config: it resumes the previous phase, and its total_timesteps are its own budget."""
    _leave_to_base_algo(flat, extras)
    if extras.get("mode") != "resume_training":
        return
    if not (extras.get("checkpoint_path") or extras.get("policy_path")):
        extras["checkpoint_path"] = str(checkpoint_folder(RunPaths(run_id)))
    budget = flat.get("total_timesteps")
    if not extras.get("additional_timesteps") and isinstance(budget, int | float) and budget > 0:
        extras["additional_timesteps"] = int(budget)


def checkpoint_folder(paths: RunPaths) -> Path:
    """Return the folder with the phases' checkpoint folders."""
    given = os.environ.get(variables.MOSAIC_CHECKPOINT_DIR)
    return Path(given).absolute() if given else paths.checkpoints


def _leave_to_base_algo(flat: Mapping[str, Any], extras: dict[str, Any]) -> None:
    """Remove the base config's algorithm parameters from a phase with another algorithm."""
    base = read(os.environ.get(variables.MOSAIC_CONFIG_FILE, ""))
    filled = base.get("extras")
    theirs = filled.get("algo_params") if isinstance(filled, dict) else None
    params = extras.get("algo_params")
    if not isinstance(params, dict) or not isinstance(theirs, dict) or base.get("algo") == flat.get("algo"):
        return
    extras["algo_params"] = {name: value for name, value in params.items() if theirs.get(name) != value}


def read(path: str) -> dict[str, Any]:
    """Return a file's JSON object, {} if unreadable: errors are reported elsewhere."""
    try:
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
