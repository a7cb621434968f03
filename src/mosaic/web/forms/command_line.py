"""The `mosaic` command equivalent to a form: shell-quoted, without secrets, with only the changed settings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from mosaic.contract import variables
from mosaic.contract.job import parse_resources, show_resources
from mosaic.contract.secrets import mask_secrets
from mosaic.web.forms.own_rows import DEFAULT_EXECUTOR
from mosaic.web.forms.requests import (
    TENSORBOARD,
    JobValues,
    PolicyValues,
    ResumeValues,
    ScriptValues,
    TrackedValues,
    TrainValues,
)
from mosaic.web.forms.rows import Row, changed

KEY_PLACE = f"{variables.WANDB_API_KEY}=…"


def train_command(values: TrainValues, rows: Mapping[str, Row]) -> str:
    """Return `mosaic train …`, or `mosaic script …` for a script's values."""
    words = ["train", values.algo, values.env_id]
    if isinstance(values, ScriptValues):
        words = ["script", values.script, values.algo, values.env_id]
    words += _settings({"total_timesteps": values.total_timesteps})
    seeds = values.seeds.strip()
    if seeds.isdecimal() and int(seeds) > 0:
        words += _settings({"seed": int(seeds)})
    elif seeds not in ("", "0"):
        words += ["--seeds", seeds.replace(" ", "")]
    words += _settings(_changed_params(values.params, rows))
    return _line(values, [*words, *_tracked_words(values, named=bool(rows))])


def resume_command(values: ResumeValues, rows: Mapping[str, Row]) -> str:
    """Return `mosaic resume …`; the values hold only changed parameters."""
    words = ["resume", values.checkpoint_path]
    if values.additional_timesteps is not None:
        words += ["--additional-timesteps", str(values.additional_timesteps)]
    if values.seed is not None:
        words += _settings({"seed": values.seed})
    words += _settings({"env_id": values.env_id} if values.env_id else {})
    words += _settings(_placed(values.params))
    return _line(values, [*words, *_tracked_words(values, named=bool(rows))])


def policy_command(values: PolicyValues, told: Mapping[str, Any]) -> str:
    """Return `mosaic eval …`, without the values that the policy's own files hold (`told`)."""
    words = ["eval", values.policy_path, "--episodes", str(values.episodes)]
    words += ["--greedy"] * values.greedy + ["--video"] * values.video
    given = {name: getattr(values, name) for name in ("algo", "env_id", "seed")}
    words += _settings({name: value for name, value in given.items() if value not in (None, "", told.get(name))})
    more = {
        "eval_repeat": values.repeat or None,
        "gamma": values.gamma,
        "seed_override": values.eval_seed,
        "eval_max_episode_steps": values.max_episode_steps,
    }
    words += _settings({name: value for name, value in more.items() if value is not None})
    return _line(values, [*words, *_common_words(values, "")])


def folded(line: str) -> str:
    """Return the command over several lines, one flag each, readable and still valid in a shell."""
    words = shlex.split(line)
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word if word == KEY_PLACE else shlex.quote(word))
    return " \\\n  ".join(" ".join(some) for some in lines)


def setting(name: str, value: Any) -> str:
    """Return `name=value` as `--set` parses it: a text that could be read as JSON is written as JSON."""
    if not isinstance(value, str):
        return f"{name}={json.dumps(value)}"
    lowered = value.strip().lower()
    try:
        json.loads(lowered if lowered in ("true", "false", "null") else value)
    except (ValueError, RecursionError):
        return f"{name}={value}"
    return f"{name}={json.dumps(value)}"


def _line(values: JobValues, words: list[str]) -> str:
    if values.run_name:
        words += ["--name", values.run_name]
    if values.worker_id:
        words += ["--worker-id", values.worker_id]
    if values.max_duration_minutes is not None:
        words += ["--max-seconds", f"{60 * values.max_duration_minutes:g}"]
    if isinstance(values, TrackedValues) and values.gpu:
        words += ["--gpus", "1"]
    if isinstance(values, TrackedValues) and values.executor not in ("", DEFAULT_EXECUTOR):
        words += ["--executor", values.executor]
    if isinstance(values, TrackedValues):
        for line in show_resources(parse_resources(values.resources)):
            words += ["--resource", line]
    if values.dry_run_only and not isinstance(values, ScriptValues):
        words.append("--dry-run")
    line = shlex.join(["mosaic", *(str(mask_secrets(word)) for word in words)])
    with_key = isinstance(values, TrackedValues) and values.track_wandb and values.wandb_api_key
    return f"{KEY_PLACE} {line}" if with_key else line


def _tracked_words(values: TrackedValues, *, named: bool) -> list[str]:
    """Return the words of the tracked values; `named`: the algorithm's fields are known, so `extras.` is not needed."""
    prefix = "" if named else "extras."
    given: dict[str, Any] = {}
    if not values.gpu:
        given["cuda"] = False
    if values.tensorboard:
        given["tensorboard_dir"] = TENSORBOARD
    if values.storage_url:
        given["storage_url"] = values.storage_url
    if values.track_wandb:
        names = ("project_name", "entity", "run_name", "email", "use_vpn_proxy", "http_proxy", "https_proxy")
        wandb = {f"wandb_{name}": getattr(values, f"wandb_{name}") for name in names}
        given |= {"track_wandb": True, **{name: value for name, value in wandb.items() if value not in ("", False)}}
    return [*_settings({prefix + name: value for name, value in given.items()}), *_common_words(values, prefix)]


def _common_words(values: JobValues, prefix: str) -> list[str]:
    given = {
        "fastlane_video_mode": values.fastlane_mode if values.fastlane_mode != "single" else None,
        "fastlane_slot": values.fastlane_slot or None,
        "fastlane_grid_limit": values.fastlane_grid_limit,
        "notes": values.notes or None,
        "agent_id": values.agent_id or None,
        "max_restarts": values.max_restarts or None,
        **values.other,
    }
    return _settings({prefix + name: value for name, value in given.items() if value is not None})


def _changed_params(params: Mapping[str, Any], rows: Mapping[str, Row]) -> dict[str, Any]:
    differing = changed(rows.values(), params)
    return _placed({name: value for name, value in params.items() if name in differing or name not in rows})


def _placed(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters as settings; the daemon itself needs `grace_seconds`, so it must be an extra."""
    return {f"extras.{name}" if name == "grace_seconds" else name: value for name, value in params.items()}


def _settings(values: Mapping[str, Any]) -> list[str]:
    return list(_each_setting(values))


def _each_setting(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        yield "--set"
        yield setting(name, value)
