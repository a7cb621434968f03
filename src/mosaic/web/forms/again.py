"""The conversion of a run's payload back to form values, and its resubmission."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mosaic.contract.errors import ConfigError
from mosaic.contract.job import show_resources
from mosaic.contract.typed import without_code
from mosaic.web.forms.own_rows import DEFAULT_EXECUTOR
from mosaic.web.forms.requests import IN_EXTRAS

if TYPE_CHECKING:
    from mosaic.trainer.rpc.client import Run
    from mosaic.web.context import Web

# Extras that have a field in a training form, with the field's name.
_FIELDS = {
    "cuda": "gpu",
    "use_cuda": "gpu",
    "track_wandb": "track_wandb",
    "fastlane_video_mode": "fastlane_mode",
    "video_mode": "fastlane_mode",
    "fastlane_slot": "fastlane_slot",
    "fastlane_grid_limit": "fastlane_grid_limit",
    "grid_limit": "fastlane_grid_limit",
    "notes": "notes",
    "storage_url": "storage_url",
    "agent_id": "agent_id",
    "max_restarts": "max_restarts",
    "wandb_project": "wandb_project_name",
    **{
        f"wandb_{name}": f"wandb_{name}"
        for name in (
            *("project_name", "entity", "run_name", "email", "use_vpn_proxy"),
            *("http_proxy", "https_proxy"),
        )
    },
}
# Extras of other run modes, which a new training does not have.
_OF_OTHER_MODES = frozenset(
    {
        *("mode", "checkpoint_path", "policy_path", "additional_timesteps", "seed_override", "eval_episodes"),
        *("eval_batch_size", "eval_repeat", "eval_capture_video", "eval_max_episode_steps", "eval_greedy"),
    }
)


@dataclass(frozen=True)
class Filled:
    """The content of a training form: its own fields, the algorithm's parameters, and extras without a field."""

    values: dict[str, Any]
    params: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)


def fill_in(payload: Mapping[str, Any], *, imported: bool = False) -> Filled:
    """Return the form's values that submit this payload; a stored payload has no secrets.

    Names that would make an imported run execute code are left out: the user has to enter them.
    """
    payload = without_code(payload) if imported else payload
    told = _object(_object(payload.get("metadata")).get("worker"))
    config = _object(told.get("config"))
    if not config.get("algo"):
        raise ConfigError("this run's config names no algorithm, so no form can be filled in from it")
    ui, extras = _object(_object(payload.get("metadata")).get("ui")), _object(config.get("extras"))
    values: dict[str, Any] = {name: config[name] for name in ("algo", "env_id", "total_timesteps") if config.get(name)}
    seed = config.get("seed")
    values["seeds"] = "" if seed is None else str(seed)
    values["run_name"] = payload.get("run_name") or ""
    for name in ("agent_id", "worker_id"):
        values[name] = told.get(name) or ui.get(name) or config.get(name) or ""
    resources = _object(payload.get("resources"))
    values["gpu"] = bool(_object(resources.get("gpus")).get("requested"))
    values["executor"] = resources.get("executor") or DEFAULT_EXECUTOR
    # The GPU switch covers this line.
    values["resources"] = "\n".join(line for line in show_resources(resources) if line != "gpus.requested=1")
    values["tensorboard"] = bool(extras.get("tensorboard_dir"))
    values["max_restarts"] = _object(payload.get("retry")).get("max_restarts") or 0
    seconds = _object(payload.get("schedule")).get("max_duration_seconds")
    values["max_duration_minutes"] = None if seconds is None else seconds / 60
    values["dry_run_only"] = "--dry-run" in (told.get("arguments") or ())
    params, other = dict(_object(extras.get("algo_params"))), {}
    for name, value in extras.items():
        if name in _FIELDS:
            if value not in (None, "") and _FIELDS[name] not in ("gpu",):
                values[_FIELDS[name]] = value
        elif name in IN_EXTRAS:
            params[name] = value
        elif name not in ("algo_params", "tensorboard_dir", *_OF_OTHER_MODES) and value not in (None, ""):
            other[name] = value
    return Filled(values, params, other)


def same_again(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored payload for resubmission: without the old run's id."""
    again = copy.deepcopy(dict(payload))
    config = _object(_object(_object(again.get("metadata")).get("worker")).get("config"))
    if not config:
        raise ConfigError("this run's payload was not kept, so it cannot be submitted again")
    again["metadata"]["worker"]["config"] = {name: value for name, value in config.items() if name != "run_id"}
    return again


async def train_again(web: Web, run: Run | str) -> Run:
    """Submit a run's config unchanged, under a new id; RefusedError if it is no longer accepted."""
    run_id = run if isinstance(run, str) else run.run_id
    found = await web.ask(lambda client: client.get_run(run_id))
    if found.imported and without_code(found.payload) != found.payload:
        raise ConfigError(
            f"run {run_id} was imported, and would run code that nobody has typed here; start it from the form, with "
            "its algorithm, environment and interpreter entered by yourself"
        )
    payload = same_again(found.payload)
    new = await web.ask(lambda client: client.submit_run(payload, priority=found.priority))
    web.happenings.note("ui.train_form.again", new.run_id, of=run_id)
    return new


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
