"""The config of a worker, read once from a flat or nested JSON document and checked."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cleanrl_worker.config import phase
from cleanrl_worker.config.inputs import check_paths, fetch_missing
from mosaic.contract import variables
from mosaic.contract.curriculum import read_schedule
from mosaic.contract.errors import ConfigError, nearest, shown
from mosaic.contract.fields import CONFIG, EXTRAS, check_extras, read_object
from mosaic.contract.kinds import COUNT, bounded, whole
from mosaic.contract.paths import check_run_id, new_run_id, resolve_home

# Settings handled by the worker wherever they are given: a form that sends all of an algorithm's fields puts them
# into `algo_params`.
_WORKERS_OWN_PARAMS = {
    "track": "track_wandb",
    "tensorboard_dir": "tensorboard_dir",
    "wandb_project_name": "wandb_project_name",
    "wandb_entity": "wandb_entity",
    "wandb_run_name": "wandb_run_name",
    "curriculum_schedule": "curriculum_schedule",
    "curriculum": "curriculum",
}

_NAMES = ("run_id", "algo", "env_id", "total_timesteps", "seed", "extras", "worker_id")
_NEEDED = "algo, env_id and total_timesteps are needed"
FRAMES_PER_STEP = 4  # Atari papers count frames; each step repeats its action for four of them


@dataclass(frozen=True)
class CleanRLWorkerConfig:
    """The config of one run. Values are always checked at construction; `raw` is the flat document as received."""

    run_id: str
    algo: str
    env_id: str
    total_timesteps: int
    seed: int | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    worker_id: str | None = None
    raw: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    """variables of the nested payload; not in `to_dict`, as they may hold secrets"""
    left_to_trainer: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """parts of the nested payload that a worker ignores"""

    def __post_init__(self) -> None:
        check_run_id(self.run_id)
        check_extras(self.extras)
        # "": the user acts, or the policy's file names its algorithm
        names = [name for name in _NAMES if name != "algo" or self.algo or self.mode != "interactive"]
        CONFIG.check({name: getattr(self, name) for name in names})
        for name in ("algo", "env_id", "total_timesteps"):
            if getattr(self, name) is None:
                raise ConfigError(f"config field {name!r} is missing; {_NEEDED}")
        whole().check(self.total_timesteps, "total_timesteps")
        more = self.extras.get("additional_timesteps") if self.mode == "resume_training" else None
        if self.total_timesteps <= 0 and not more and self.mode in ("train", "resume_training"):
            raise ConfigError(f"total_timesteps is {self.total_timesteps}; training needs 1 or more")

    @property
    def mode(self) -> str:
        return self.extras.get("mode") or "train"

    @property
    def algo_params(self) -> dict[str, Any]:
        return self.extras.get("algo_params") or {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return one line for each unknown key of the document, and one for the trainer's parts."""
        known = [*self.to_dict(), "agent_id"]
        unknown = [key for key in self.raw if key not in known]
        lines = [f"config key {key!r} is unknown and has no effect{nearest(key, known)}" for key in unknown]
        left = ", ".join(self.left_to_trainer)
        return tuple([*lines, f"only a trainer daemon acts on {left}; this worker does not"] if left else lines)

    def with_overrides(
        self,
        *,
        run_id: str | None = None,
        algo: str | None = None,
        env_id: str | None = None,
        total_timesteps: int | None = None,
        seed: int | None = None,
        worker_id: str | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> CleanRLWorkerConfig:
        """Return a config with these values; None keeps a value, `extras` and `algo_params` merge key by key."""
        given = {
            "run_id": run_id,
            "algo": algo,
            "env_id": env_id,
            "total_timesteps": total_timesteps,
            "seed": seed,
            "worker_id": worker_id,
            "extras": extras,
        }
        return _build(_merge(self.to_dict(), given), self.raw, self.environment, self.left_to_trainer)

    def to_dict(self) -> dict[str, Any]:
        """Return the flat document that recreates this config."""
        return {name: copy.deepcopy(getattr(self, name)) for name in _NAMES}


WorkerConfig = CleanRLWorkerConfig


def load_worker_config(path: Path | str, overrides: Mapping[str, Any] | None = None) -> CleanRLWorkerConfig:
    """Read a config file; `overrides` (as for `with_overrides`) apply before the check for missing fields."""
    return parse_worker_config(read_object(path, f"config {path}"), overrides)


def parse_worker_config(payload: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> CleanRLWorkerConfig:
    """Check a flat config or a nested payload (`metadata.worker.config`) and fill in the open fields."""
    if not isinstance(payload, Mapping):
        raise ConfigError(f"a config is a JSON object, not {shown(payload)}")
    bounded(payload, "", wide=True)  # before the copies: too deep nesting cannot be copied
    if "metadata" not in payload and not {"algo", "env_id", "total_timesteps", "extras"}.isdisjoint(payload):
        flat: dict[str, Any] = copy.deepcopy(dict(payload))
        return _build(_merge(flat, overrides or {}), flat, {})
    flat, environment, left = _from_job(payload)
    return _build(_merge(flat, overrides or {}), flat, environment, left)


def worker_variables() -> dict[str, str]:
    """Return the process's environment over the defaults of `.env`."""
    return {**variables.read_dotenv(resolve_home()), **os.environ}


def _from_job(payload: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
    from mosaic.contract.job import JobConfig

    job = JobConfig.parse(payload)
    worker, flat = job.metadata.worker, job.worker_config
    defaults = {"worker_id": worker.worker_id, "agent_id": worker.agent_id or job.metadata.ui.agent_id}
    flat.update({name: value for name, value in defaults.items() if value and not flat.get(name)})
    return flat, dict(job.environment), job.left_to_trainer


def _merge(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**base, **{name: value for name, value in overrides.items() if value is not None}}
    extras, more = base.get("extras"), overrides.get("extras")
    if isinstance(extras, Mapping) and isinstance(more, Mapping):
        merged["extras"] = {**extras, **more}
        params, changed = extras.get("algo_params"), more.get("algo_params")
        if isinstance(params, Mapping) and isinstance(changed, Mapping):
            merged["extras"]["algo_params"] = {**params, **changed}
    return merged


def _build(
    flat: Mapping[str, Any], raw: dict[str, Any], environment: dict[str, str], left: tuple[str, ...] = ()
) -> CleanRLWorkerConfig:
    extras = _own_extras(flat)
    _apply_variables(extras, {**worker_variables(), **environment})
    run_id = flat.get("run_id")
    if run_id is None:
        run_id = os.environ.get(variables.MOSAIC_RUN_ID) or new_run_id()
    if phase.is_phase(run_id):
        phase.settle(flat, extras, check_run_id(run_id))
    values: dict[str, Any] = {name: flat.get(name) for name in ("algo", "env_id", "total_timesteps", "seed")}
    fetch_missing(extras, check_run_id(run_id))
    check_paths(extras, values, run_id)
    _count_frames(values, extras)
    if values["env_id"] is None and extras.get("curriculum_schedule"):
        values["env_id"] = read_schedule(extras["curriculum_schedule"])[-1].env_id
    for name in ("algo", "env_id", "total_timesteps"):
        if values[name] is None:
            raise ConfigError(f"config field {name!r} is missing; {_NEEDED}")
    if isinstance(values["total_timesteps"], float) and values["total_timesteps"].is_integer():
        values["total_timesteps"] = int(values["total_timesteps"])  # JSON writes 1e6 for a million
    if values["seed"] is None:
        values["seed"] = int.from_bytes(os.urandom(4), "big") >> 1
    return CleanRLWorkerConfig(
        run_id=run_id,
        **values,
        extras=extras,
        worker_id=flat.get("worker_id"),
        raw=copy.deepcopy(raw),
        environment=environment,
        left_to_trainer=left,
    )


def _own_extras(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checked copy of the extras, with the worker's own settings moved out of `algo_params`."""
    extras = copy.deepcopy(flat.get("extras"))
    extras = {} if extras is None else extras
    agent_id = flat.get("agent_id")
    check_extras(extras)
    if agent_id is not None:
        EXTRAS["agent_id"].check(agent_id, "agent_id")
        _set_default(extras, "agent_id", agent_id)
    params = extras.get("algo_params") or {}
    for name, own in _WORKERS_OWN_PARAMS.items():
        for holder in (extras, params):
            if name in holder and (holder is params or name != own):
                _set_default(extras, own, holder.pop(name))
    check_extras(extras)
    return extras


def _apply_variables(extras: dict[str, Any], settings: Mapping[str, str]) -> None:
    """Apply TRACK_TENSORBOARD, TRACK_WANDB and MOSAIC_STORAGE_URL where the extras set nothing."""
    if _is_on(settings, variables.TRACK_WANDB):
        _set_default(extras, "track_wandb", True)
    if _is_on(settings, variables.TRACK_TENSORBOARD):
        folder = "tensorboard_eval" if extras.get("mode") == "policy_eval" else "tensorboard"
        _set_default(extras, "tensorboard_dir", folder)
    _set_default(extras, "storage_url", settings.get(variables.MOSAIC_STORAGE_URL))


def _set_default(extras: dict[str, Any], name: str, value: Any) -> None:
    """Set a value if it is absent; null and "" count as absent, on both sides."""
    if extras.get(name) in (None, "") and value not in (None, ""):
        extras[name] = value


def _is_on(settings: Mapping[str, str], name: str) -> bool:
    value = settings.get(name, "").strip().lower()
    if value not in ("", "0", "1", "true", "false", "yes", "no", "on", "off"):
        raise ConfigError(f"{name}={value!r}: 0 or 1 is needed")
    return value in ("1", "true", "yes", "on")


def _count_frames(values: dict[str, Any], extras: dict[str, Any]) -> None:
    """Convert `total_frames` of an Atari algorithm to its timesteps."""
    name = Path(values["algo"]).name if isinstance(values["algo"], str) else ""
    if "atari" not in name and "envpool" not in name:
        return
    for holder in (extras, extras.get("algo_params") or {}):
        if holder.get("total_frames") in (None, ""):
            continue
        if values["total_timesteps"] is not None:
            raise ConfigError("total_frames and total_timesteps are both given; give one (a step is 4 frames)")
        frames = holder.pop("total_frames")
        COUNT.check(frames, "total_frames")
        values["total_timesteps"] = int(frames) // FRAMES_PER_STEP
