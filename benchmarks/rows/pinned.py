"""The pinned update: an algorithm's weights after a short training on the CPU, and whether a change altered them."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rows.queued import Row
from rows.slices import environment

TOLERANCE = 1e-5  # relative: other instructions of another CPU stay below, a changed formula does not
VALUES = 64  # kept of each array, evenly spaced; its norm stands for the rest
UPDATES = 4
# As few updates as show a change: after many, a last digit decides an action and the trainings part.
_SMALL = {"num_envs": 2, "num_steps": 32, "num_minibatches": 2, "update_epochs": 2, "learning_starts": 64}
_SMALL |= {"batch_size": 16, "buffer_size": 512, "n_iteration": 1, "e_policy": 1, "e_auxiliary": 1}
_SMALL |= {"local_num_envs": 2, "offline_steps": 16, "teacher_steps": 64, "teacher_eval_episodes": 1}
# Parts of a checkpoint other than weights: counters, generators, and moments, whose last digits differ the most.
_NO_WEIGHTS = re.compile(r"(^|/)(run|random|envs|adam|[a-z_]*opt[a-z_]*|mu|nu|m|v|key)(/|$)")
_FIXED = {"cuda": False, "num_threads": 1, "checkpoint_every": 0, "seed": 1}


class PinnedError(Exception):
    """A pinned update that could not be computed, and why."""


def compute(row: Row) -> dict[str, Any]:
    """Train shortly and return the recipe and a summary of every array of the network."""
    recipe = recipe_of(row)
    with tempfile.TemporaryDirectory(prefix="pinned-") as name:
        folder = Path(name)
        config = {"run_id": "pinned", "algo": row.algo, "env_id": row.env_id, "seed": _FIXED["seed"]}
        params = {key: value for key, value in recipe.items() if key not in ("seed", "total_timesteps")}
        config |= {"total_timesteps": recipe["total_timesteps"]}
        config |= {"extras": {"algo_params": params, "fastlane_video_mode": "off", "telemetry": "off"}}
        (folder / "config.json").write_text(json.dumps(config))
        done = subprocess.run(
            [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(folder / "config.json")],
            env=environment(folder) | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"},
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        saved = sorted(folder.glob("var/trainer/runs/pinned/checkpoints/*/state.safetensors"))
        if done.returncode or not saved:
            log = folder / "var/trainer/runs/pinned/logs/cleanrl.stderr.log"
            text = (log.read_text(errors="replace") if log.exists() else "").strip() or done.stderr.strip()
            raise PinnedError(text.rpartition("\n")[2][:200] or f"exit code {done.returncode}")
        return {"recipe": recipe, "arrays": _summary(saved[-1])}


def recipe_of(row: Row) -> dict[str, Any]:
    """Return the parameters of the short training: the row's own, at small sizes, for one phase of updates."""
    from cleanrl_worker.schema import parameters

    described = parameters.describe()[row.algo]["fields"]
    fields = {field["name"]: field["default"] for field in described if not _is_computed(field)}
    values = fields | row.flags
    small = {name: _smaller(values[name], size) for name, size in _SMALL.items() if name in fields}
    fixed = {name: value for name, value in _FIXED.items() if name in fields}
    recipe = row.flags | small | fixed
    if "learning_starts" in fields:
        every = int(values.get("train_frequency") or 1)
        recipe["total_timesteps"] = small["learning_starts"] + UPDATES * max(every, small["num_envs"])
        recipe["buffer_size"] = max(small.get("buffer_size", 0), 8 * small["num_envs"])
    else:
        envs = small.get("local_num_envs", small.get("num_envs", 1)) * int(values.get("world_size") or 1)
        recipe["total_timesteps"] = envs * small["num_steps"]
    return recipe


def change(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return what differs by more than the tolerance, "" for nothing."""
    if before["recipe"] != now["recipe"]:
        names = sorted(
            name
            for name in before["recipe"].keys() | now["recipe"].keys()
            if before["recipe"].get(name) != now["recipe"].get(name)
        )
        return f"the pinned update has other parameters: {', '.join(names)}"
    if before["arrays"].keys() != now["arrays"].keys():
        return "the network has other arrays"
    for name, old in before["arrays"].items():
        new = now["arrays"][name]
        if old["shape"] != new["shape"]:
            return f"{name} has shape {new['shape']}, not {old['shape']}"
        then, here = np.array([*old["values"], old["norm"]]), np.array([*new["values"], new["norm"]])
        relative = float(np.linalg.norm(here - then) / max(float(np.linalg.norm(then)), 1e-12))
        if relative > TOLERANCE:
            return f"the pinned update changed: {name} by {relative:.1e} relative, more than {TOLERANCE:g}"
    return ""


def _is_computed(field: dict[str, Any]) -> bool:
    """Return True for a parameter that the run computes from others."""
    limits = field.get("limits") or {}
    return limits.get("least") == 0 == limits.get("most")


def _smaller(value: Any, size: int) -> int:
    return min(int(value), size) if isinstance(value, int | float) and value else size


def _summary(path: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    found = {}
    for name, array in sorted(load_file(path).items()):
        if _NO_WEIGHTS.search(name) or not np.issubdtype(array.dtype, np.floating):
            continue
        flat = array.astype(np.float64).ravel()
        places = np.unique(np.linspace(0, flat.size - 1, min(VALUES, flat.size)).astype(int))
        values = [float(f"{value:.9g}") for value in flat[places]]
        found[name] = {"shape": list(array.shape), "norm": float(np.linalg.norm(flat)), "values": values}
    if not found:
        raise PinnedError("the checkpoint has no weights")
    return found
