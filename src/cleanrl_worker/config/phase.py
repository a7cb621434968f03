"""What a config means that a script starts as one of its phases."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic.contract import variables
from mosaic.contract.paths import RunPaths


def is_phase(run_id: str | None) -> bool:
    """Whether a worker for this run is a phase of the script that started it.

    A daemon says so by MOSAIC_SCRIPT; in a script that a person runs by hand, the base config's variable does. A config
    that names another run than the script's is a run of its own.
    """
    here = os.environ.get(variables.MOSAIC_RUN_ID)
    told = os.environ.get(variables.MOSAIC_SCRIPT)
    inside = told == "1" if told else bool(here and os.environ.get(variables.MOSAIC_CONFIG_FILE))
    return inside and (run_id is None or not here or run_id == here)


def settle(flat: Mapping[str, Any], extras: dict[str, Any], run_id: str) -> None:
    """What a phase's config leaves open: it resumes the phase before, and its total_timesteps are its own budget."""
    _leave_to_base_algo(flat, extras)
    if extras.get("mode") != "resume_training":
        return
    if not (extras.get("checkpoint_path") or extras.get("policy_path")):
        extras["checkpoint_path"] = str(checkpoint_folder(RunPaths(run_id)))
    budget = flat.get("total_timesteps")
    if not extras.get("additional_timesteps") and isinstance(budget, int | float) and budget > 0:
        extras["additional_timesteps"] = int(budget)


def checkpoint_folder(paths: RunPaths) -> Path:
    """Where the folders of the phases' checkpoints lie."""
    given = os.environ.get(variables.MOSAIC_CHECKPOINT_DIR)
    return Path(given).absolute() if given else paths.checkpoints


def _leave_to_base_algo(flat: Mapping[str, Any], extras: dict[str, Any]) -> None:
    """The base config holds every parameter of its algorithm: a phase with another algorithm takes none of them."""
    base = read(os.environ.get(variables.MOSAIC_CONFIG_FILE, ""))
    filled = base.get("extras")
    theirs = filled.get("algo_params") if isinstance(filled, dict) else None
    params = extras.get("algo_params")
    if not isinstance(params, dict) or not isinstance(theirs, dict) or base.get("algo") == flat.get("algo"):
        return
    extras["algo_params"] = {name: value for name, value in params.items() if theirs.get(name) != value}


def read(path: str) -> dict[str, Any]:
    """A JSON object as far as it can be read: who must refuse it does so elsewhere."""
    try:
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
