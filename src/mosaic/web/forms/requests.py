"""Requests: the conversion of form values to a trainer's payload (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from mosaic.contract import variables
from mosaic.contract.job import parse_resources
from mosaic.contract.settings import group_name, parse_seeds
from mosaic.contract.workers import DRY_RUN
from mosaic.web.forms.own_rows import DEFAULT_EXECUTOR

# Parameters that the worker or the daemon expects among the extras, not among the algorithm's own.
IN_EXTRAS = frozenset({"save_model", "capture_video", "grace_seconds"})
TENSORBOARD = "tensorboard"


@dataclass(frozen=True, kw_only=True)
class JobValues:
    """The values of every form."""

    run_name: str = ""
    agent_id: str = ""
    worker_id: str = ""
    notes: str = ""
    fastlane_mode: str = "single"
    fastlane_slot: int = 0
    fastlane_grid_limit: int | None = None
    max_restarts: int = 0
    max_duration_minutes: float | None = None
    dry_run_only: bool = False
    other: Mapping[str, Any] = field(default_factory=dict)
    """extras without a field in the form"""
    module: str | None = None
    """the worker's module, if its command names one"""


@dataclass(frozen=True, kw_only=True)
class TrackedValues(JobValues):
    """The values of training forms: machine, storage and tracking."""

    gpu: bool = True
    executor: str = DEFAULT_EXECUTOR
    storage_url: str = ""
    resources: str = ""
    """as typed"""
    tensorboard: bool = True
    track_wandb: bool = False
    wandb_project_name: str = ""
    wandb_entity: str = ""
    wandb_run_name: str = ""
    wandb_email: str = ""
    wandb_use_vpn_proxy: bool = False
    wandb_http_proxy: str = ""
    wandb_https_proxy: str = ""
    wandb_api_key: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True)
class TrainValues(TrackedValues):
    """The Train form. `seeds` is `7`, `1-5` or `1,2,7`; for 0 or empty the worker draws one."""

    algo: str
    env_id: str
    total_timesteps: int = 2048
    seeds: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ScriptValues(TrainValues):
    """The Script form: a script, and the base config of its phases."""

    script: str


@dataclass(frozen=True, kw_only=True)
class ResumeValues(TrackedValues):
    """The Resume form; `params` holds only changed values."""

    checkpoint_path: str
    algo: str = ""
    env_id: str = ""
    additional_timesteps: int | None = None
    seed: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PolicyValues(JobValues):
    """The Policy form; empty `algo`, `env_id` and `seed` are left to the policy's sidecar."""

    policy_path: str
    algo: str = ""
    env_id: str = ""
    seed: int | None = None
    episodes: int = 50
    repeat: bool = False
    gamma: float | None = None
    greedy: bool = False
    eval_seed: int | None = None
    max_episode_steps: int | None = None
    video: bool = False


_Values = TypeVar("_Values", bound=JobValues)


def build_train_request(values: TrainValues | Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload of one training; for several seeds, the first one's."""
    return train_requests(values)[0]


def train_requests(given: TrainValues | Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a payload for each seed; several seeds share a group name."""
    values = _values(TrainValues, given)
    seeds = parse_seeds(values.seeds, "seed") if values.seeds.strip() not in ("", "0") else []
    if len(seeds) < 2:
        return [_train(values, seeds[0] if seeds else None, "")]
    group = values.run_name or group_name(values.algo, values.env_id, values.seeds)
    return [_train(replace(values, run_name=group), seed, group) for seed in seeds]


def build_script_request(given: ScriptValues | Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload of a script; its base config is a training's."""
    values = _values(ScriptValues, given)
    seeds = parse_seeds(values.seeds, "seed") if values.seeds.strip() not in ("", "0") else [None]
    payload = _train(values, seeds[0], "")
    extras = payload["metadata"]["worker"]["config"]["extras"]
    # The daemon fills in every missing parameter: a second value in the extras would contradict it.
    for name in ("cuda", "save_model", "capture_video"):
        if name in extras:
            extras["algo_params"][name] = extras.pop(name)
    payload["metadata"]["ui"]["run_mode"] = "script"
    payload["metadata"]["worker"] |= {"module": None, "script": values.script, "arguments": []}
    return payload


def build_resume_request(given: ResumeValues | Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload of a new run that continues from a checkpoint."""
    values = _values(ResumeValues, given)
    config = _present({"algo": values.algo, "env_id": values.env_id, "seed": values.seed})
    extras: dict[str, Any] = {"mode": "resume_training", "checkpoint_path": values.checkpoint_path}
    if values.additional_timesteps is not None:
        extras["additional_timesteps"] = values.additional_timesteps
    return _payload(
        values, {**config, "extras": {**extras, **_training_extras(values, values.params)}}, "resume_training"
    )


def build_policy_eval_request(given: PolicyValues | Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload of an evaluation."""
    values = _values(PolicyValues, given)
    config = _present({"algo": values.algo, "env_id": values.env_id, "seed": values.seed})
    extras = {
        "mode": "policy_eval",
        "policy_path": values.policy_path,
        "eval_episodes": values.episodes,
        "eval_batch_size": values.episodes,
        "eval_repeat": values.repeat,
        "eval_greedy": values.greedy,
        "eval_capture_video": values.video,
        **_present(
            {
                "gamma": values.gamma,
                "seed_override": values.eval_seed,
                "eval_max_episode_steps": values.max_episode_steps,
            }
        ),
        **_common_extras(values),
    }
    payload = _payload(values, {**config, "total_timesteps": 0, "extras": extras}, "policy_eval")
    payload["metadata"]["ui"] |= {"eval_batch_size": values.episodes, "eval_repeat": values.repeat}
    return payload


def _values(kind: type[_Values], given: _Values | Mapping[str, Any]) -> _Values:
    return kind(**given) if isinstance(given, Mapping) else given


def _train(values: TrainValues, seed: int | None, group: str) -> dict[str, Any]:
    config = {
        "algo": values.algo,
        "env_id": values.env_id,
        "total_timesteps": values.total_timesteps,
        "seed": seed,
        "extras": _training_extras(values, values.params),
    }
    payload = _payload(values, config, "train")
    if group:
        payload["metadata"]["ui"]["group"] = group
    return payload


def _training_extras(values: TrackedValues, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the worker's own settings, then the algorithm's; a None stays None, a false stays false."""
    wandb = {
        one.name: getattr(values, one.name)
        for one in fields(TrackedValues)
        if one.name.startswith("wandb_") and one.name != "wandb_api_key"
    }
    return {
        "cuda": values.gpu,
        **{name: value for name, value in params.items() if name in IN_EXTRAS},
        **({"tensorboard_dir": TENSORBOARD} if values.tensorboard else {}),
        "track_wandb": values.track_wandb,
        **(_present(wandb) if values.track_wandb else {}),
        **_present({"storage_url": values.storage_url}),
        **_common_extras(values),
        "algo_params": {name: value for name, value in params.items() if name not in IN_EXTRAS},
    }


def _common_extras(values: JobValues) -> dict[str, Any]:
    return {
        "fastlane_video_mode": values.fastlane_mode,
        "fastlane_slot": values.fastlane_slot,
        **_present({"fastlane_grid_limit": values.fastlane_grid_limit, "notes": values.notes}),
        **values.other,
    }


def _payload(values: JobValues, config: dict[str, Any], mode: str) -> dict[str, Any]:
    tracked = values if isinstance(values, TrackedValues) else None
    with_key = tracked is not None and tracked.track_wandb and tracked.wandb_api_key
    names = {"agent_id": values.agent_id or None, "worker_id": values.worker_id or None}
    minutes = values.max_duration_minutes
    return {
        "run_name": values.run_name or None,
        "entry_point": None,
        "arguments": [],
        "environment": {variables.WANDB_API_KEY: tracked.wandb_api_key} if tracked and with_key else {},
        "resources": _resources(tracked),
        "artifacts": {"output_prefix": None, "persist_logs": True, "keep_checkpoints": True},
        "schedule": {"max_duration_seconds": None if minutes is None else 60.0 * minutes, "max_steps": None},
        "retry": {"max_restarts": values.max_restarts},
        "metadata": {
            "ui": {**names, "run_mode": mode},
            "worker": {
                **names,
                "module": values.module,
                "arguments": list(DRY_RUN) if values.dry_run_only else [],
                "config": config,
            },
        },
    }


def _resources(values: TrackedValues | None) -> dict[str, Any]:
    """Return the resources: the switch requests one GPU, typed values override it."""
    typed = parse_resources(values.resources) if values is not None else {}
    gpus = {"requested": int(values is not None and values.gpu), "mandatory": False, **typed.pop("gpus", {})}
    if values is not None and values.executor not in ("", DEFAULT_EXECUTOR):
        typed["executor"] = values.executor
    return {"gpus": gpus, **typed}


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the non-empty values; false and 0 count as values."""
    return {name: value for name, value in values.items() if value not in (None, "")}
