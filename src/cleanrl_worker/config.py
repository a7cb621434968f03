"""What a worker is asked to do: the config, read once from a flat or nested JSON document and checked."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cleanrl_worker import phase
from cleanrl_worker.saved import check_paths, fetch_missing, read_object
from mosaic.wire import variables
from mosaic.wire.curriculum import read_schedule
from mosaic.wire.errors import ConfigError, nearest, shown
from mosaic.wire.paths import check_run_id, new_run_id, resolve_home

MODES = ("train", "resume_training", "policy_eval", "interactive")

# The worker's own extras, each with the kind of its value; `a|b` is a choice. All others are the algorithm's.
RESERVED_EXTRAS: dict[str, str] = {
    "mode": "|".join(MODES),
    "algo_params": "object",
    "tensorboard_dir": "str",
    "track_wandb": "bool",
    "wandb_project_name": "str",
    "wandb_project": "str",
    "wandb_entity": "str",
    "wandb_run_name": "str",
    "wandb_email": "str",
    "wandb_use_vpn_proxy": "bool",
    "wandb_http_proxy": "str",
    "wandb_https_proxy": "str",
    "curriculum_schedule": "any",
    "curriculum": "any",
    "fastlane_video_mode": "single|grid|off",
    "video_mode": "single|grid|off",
    "fastlane_slot": "count",
    "fastlane_grid_limit": "count",
    "grid_limit": "count",
    "fastlane_only": "bool",
    "policy_path": "str",
    "checkpoint_path": "str",
    "additional_timesteps": "count",
    "eval_episodes": "count",
    "eval_batch_size": "count",
    "eval_repeat": "bool",
    "eval_capture_video": "bool",
    "eval_max_episode_steps": "count",
    "eval_greedy": "bool",
    "seed_override": "count",
    "telemetry": "off|episodes|steps",
    "notes": "str",
    "agent_id": "str",
    "optuna_db": "str",
    "checkpoints_dir": "str",
    "schema_id": "str",
    "schema_version": "count",
    "supports_pause": "bool",
    "supports_checkpoint": "bool",
    "max_restarts": "count",
    "grace_seconds": "seconds",
    "storage_url": "str",
    "python": "str",
}
# The discount of an evaluation is the worker's; in training it is a parameter of the algorithm.
RESERVED_IN_EVALUATION = {"gamma": "share"}

# Settings that are the worker's business wherever they stand: a form that sends all of an algorithm's fields puts
# them among `algo_params`.
_WORKERS_OWN_PARAMS = {
    "track": "track_wandb",
    "tensorboard_dir": "tensorboard_dir",
    "wandb_project_name": "wandb_project_name",
    "wandb_entity": "wandb_entity",
    "wandb_run_name": "wandb_run_name",
    "curriculum_schedule": "curriculum_schedule",
    "curriculum": "curriculum",
}

SEED_LIMIT = 2**32  # numpy's legacy seeding, which CleanRL-style scripts call, takes no more
FRAMES_PER_STEP = 4  # Atari papers count frames; each step repeats its action for four of them


@dataclass(frozen=True)
class CleanRLWorkerConfig:
    """One run. Whatever makes one, its values are checked; `raw` is the flat document as it came."""

    run_id: str
    algo: str
    env_id: str
    total_timesteps: int
    seed: int | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    worker_id: str | None = None
    raw: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    """variables that the nested payload asks for; may hold secrets, so it is in no `to_dict`"""
    left_to_trainer: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """parts of the nested payload that a worker does not act on"""

    def __post_init__(self) -> None:
        check_run_id(self.run_id)
        if self.algo or self.mode != "interactive":  # "": the person acts, or the policy's file tells
            _check_kind("algo", self.algo, "name")
        _check_kind("env_id", self.env_id, "name")
        _check_kind("worker_id", self.worker_id, "str")
        check_extras(self.extras)
        _check_seed(self.seed)
        _check_kind("total_timesteps", self.total_timesteps, "whole")
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
        """One line for each key of the document that means nothing here, and one for what is the trainer's."""
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
        """A config with these values; None overrides nothing, `extras` and `algo_params` merge key by key."""
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
        """The flat document that makes this config again."""
        names = ("run_id", "algo", "env_id", "total_timesteps", "seed", "extras", "worker_id")
        return {name: copy.deepcopy(getattr(self, name)) for name in names}


WorkerConfig = CleanRLWorkerConfig


def load_worker_config(path: Path | str, overrides: Mapping[str, Any] | None = None) -> CleanRLWorkerConfig:
    """Read a config file; `overrides` (as for `with_overrides`) count before anything is found missing."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return parse_worker_config(read_object(text, f"config {path}"), overrides)


def parse_worker_config(payload: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> CleanRLWorkerConfig:
    """Check a flat config or a nested payload (`metadata.worker.config`) and fill in what it leaves open."""
    if not isinstance(payload, Mapping):
        raise ConfigError(f"a config is a JSON object, not {shown(payload)}")
    if "metadata" not in payload and not {"algo", "env_id", "total_timesteps", "extras"}.isdisjoint(payload):
        flat: dict[str, Any] = copy.deepcopy(dict(payload))
        return _build(_merge(flat, overrides or {}), flat, {})
    flat, environment, left = _from_job(payload)
    return _build(_merge(flat, overrides or {}), flat, environment, left)


def worker_variables() -> dict[str, str]:
    """The process's environment over the defaults of `.env`."""
    return {**variables.read_dotenv(resolve_home()), **os.environ}


def _from_job(payload: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
    from mosaic.wire.job import JobConfig  # pydantic: 75 ms that a flat config need not pay

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
            raise ConfigError(f"config field {name!r} is missing; algo, env_id and total_timesteps are needed")
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
    """A checked copy of the extras, with the worker's own settings at their place."""
    extras = copy.deepcopy(flat.get("extras"))
    extras = {} if extras is None else extras
    agent_id = flat.get("agent_id")
    check_extras(extras)
    if agent_id is not None:
        _check_kind("agent_id", agent_id, "str")
        _set_default(extras, "agent_id", agent_id)
    params = extras.get("algo_params") or {}
    for name, own in _WORKERS_OWN_PARAMS.items():
        for holder in (extras, params):
            if name in holder and (holder is params or name != own):
                _set_default(extras, own, holder.pop(name))
    check_extras(extras)
    return extras


def check_extras(extras: object) -> None:
    """Refuse extras of the worker's own that are of the wrong kind; null and "" are as good as absent."""
    if not isinstance(extras, dict) or not all(isinstance(key, str) for key in extras):
        raise ConfigError(f"extras: a JSON object is needed, not {shown(extras)}")
    reserved = RESERVED_EXTRAS | (RESERVED_IN_EVALUATION if extras.get("mode") == "policy_eval" else {})
    for name, value in extras.items():
        if name in reserved and value not in (None, ""):
            _check_kind(f"extras.{name}", value, reserved[name])


def _apply_variables(extras: dict[str, Any], settings: Mapping[str, str]) -> None:
    """TRACK_TENSORBOARD, TRACK_WANDB and MOSAIC_STORAGE_URL count where the extras do not say."""
    if _is_on(settings, variables.TRACK_WANDB):
        _set_default(extras, "track_wandb", True)
    if _is_on(settings, variables.TRACK_TENSORBOARD):
        folder = "tensorboard_eval" if extras.get("mode") == "policy_eval" else "tensorboard"
        _set_default(extras, "tensorboard_dir", folder)
    _set_default(extras, "storage_url", settings.get(variables.MOSAIC_STORAGE_URL))


def _set_default(extras: dict[str, Any], name: str, value: Any) -> None:
    """Null and "" are as good as absent, on both sides."""
    if extras.get(name) in (None, "") and value not in (None, ""):
        extras[name] = value


def _is_on(settings: Mapping[str, str], name: str) -> bool:
    value = settings.get(name, "").strip().lower()
    if value not in ("", "0", "1", "true", "false", "yes", "no", "on", "off"):
        raise ConfigError(f"{name}={value!r}: 0 or 1 is needed")
    return value in ("1", "true", "yes", "on")


def _count_frames(values: dict[str, Any], extras: dict[str, Any]) -> None:
    """`total_frames` of an Atari algorithm becomes its timesteps."""
    name = Path(values["algo"]).name if isinstance(values["algo"], str) else ""
    if "atari" not in name and "envpool" not in name:
        return
    for holder in (extras, extras.get("algo_params") or {}):
        if holder.get("total_frames") in (None, ""):
            continue
        if values["total_timesteps"] is not None:
            raise ConfigError("total_frames and total_timesteps are both given; give one (a step is 4 frames)")
        frames = holder.pop("total_frames")
        _check_kind("total_frames", frames, "count")
        values["total_timesteps"] = int(frames) // FRAMES_PER_STEP


def _check_seed(seed: object) -> None:
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < SEED_LIMIT):
        raise ConfigError(f"seed: a whole number from 0 to {SEED_LIMIT - 1} is needed, not {shown(seed)}")


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "true or false"),
    "str": ((str, type(None)), "a text"),
    "name": ((str,), "a text"),
    "whole": ((int,), "a whole number"),
    "count": ((int,), "a whole number, 0 or more,"),
    "share": ((int, float), "a number between 0 and 1"),
    "seconds": ((int, float), "a number, 0 or more,"),
    "object": ((dict,), "a JSON object"),
}


def _check_kind(name: str, value: Any, kind: str) -> None:
    if "|" in kind:
        choices = kind.split("|")
        if value not in choices:
            near = nearest(str(value), choices)
            raise ConfigError(f"{name}: {shown(value)} is none of {', '.join(choices)}{near}")
        return
    if kind == "any":
        return
    types, words = _KINDS[kind]
    fits = isinstance(value, types) and (kind == "bool" or not isinstance(value, bool))
    if fits and kind in ("count", "seconds"):
        fits = value >= 0 and math.isfinite(value)
    if fits and kind == "share":
        fits = 0 <= value <= 1
    if fits and kind == "name":
        fits = bool(value.strip()) and value.isprintable()
    if not fits:
        raise ConfigError(f"{name}: {words} is needed, not {shown(value)}")
