"""Scripts as runs: their parameters and variables, and the command that starts one under its host."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic.contract import variables
from mosaic.contract.paths import RunPaths, write_atomic
from mosaic.contract.scripts import find_script

# These have their own fields in a config.
_NOT_PARAMS = frozenset(
    {"env_id", "seed", "total_timesteps", "track", "tensorboard_dir"}
    | {"run_dir", "resume", "additional_timesteps", "grace_seconds"}
)
# The default number of environments shown for a phase.
_GRID_LIMIT = 8


def all_params(given: Mapping[str, Any], fields: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return every hyper-parameter with its value, so that a script finds each of them in its config."""
    defaults = {str(field["name"]): field.get("default") for field in fields}
    named = {
        name: value for name, value in defaults.items() if name not in _NOT_PARAMS and not name.startswith("wandb_")
    }
    return {**{name: value for name, value in named.items() if value is not None}, **given}


def script_command(
    text: str,
    flat: Mapping[str, Any],
    own: Path,
    paths: RunPaths,
    command: Sequence[str],
    environment: Mapping[str, str],
    attempt: int = 1,
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the variables of a script; its config has no run id, since its phases share this run."""
    script = find_script(text, paths.home, command)
    base = {name: value for name, value in flat.items() if name != "run_id"}
    write_atomic(own, json.dumps(base, indent=2) + "\n")
    given = {
        variables.MOSAIC_SCRIPT: "1",
        variables.MOSAIC_PHASES: str(script.phases or ""),
        variables.MOSAIC_CONFIG_FILE: str(own),
        variables.MOSAIC_CHECKPOINT_DIR: str(paths.checkpoints_in(environment)),
        **_settings(base, environment),
        "PATH": f"{_interpreter_folder(command[0], paths)}{os.pathsep}{environment.get('PATH') or os.defpath}",
    }
    host = [sys.executable, "-P", "-m", "mosaic.trainer.scheduling.script_host"]
    return [*host, "--script", str(script.path), "--config", str(own), "--attempt", str(attempt)], given


def _settings(base: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the base config's settings as variables: extras override the environment, which overrides the defaults."""
    extras = base.get("extras") or {}
    params = extras.get("algo_params") or {}

    def first(*values: Any, default: Any) -> str:
        return str(next((value for value in values if value not in (None, "")), default))

    def switch(name: str, *values: Any) -> str:
        found = first(*values, environment.get(name), default=False).lower()
        return "0" if found in ("0", "false", "no", "off") else "1"

    enabled = environment.get(variables.GYM_GUI_FASTLANE_ENABLED) != "0"
    inherited = environment.get(variables.GYM_GUI_FASTLANE_VIDEO_MODE) if enabled else "off"
    mode = first(extras.get("fastlane_video_mode"), extras.get("video_mode"), inherited, default="single")
    limit = environment.get(variables.GYM_GUI_FASTLANE_GRID_LIMIT)
    envs = environment.get(variables.CLEANRL_NUM_ENVS)
    return {
        variables.CLEANRL_AGENT_ID: first(base.get("agent_id"), extras.get("agent_id"), default=""),
        variables.CLEANRL_NUM_ENVS: first(params.get("num_envs"), extras.get("num_envs"), envs, default=1),
        variables.GYM_GUI_FASTLANE_ENABLED: str(int(mode != "off")),
        variables.GYM_GUI_FASTLANE_VIDEO_MODE: mode,
        variables.GYM_GUI_FASTLANE_GRID_LIMIT: first(
            extras.get("fastlane_grid_limit"), extras.get("grid_limit"), limit, default=_GRID_LIMIT
        ),
        variables.TRACK_TENSORBOARD: switch(variables.TRACK_TENSORBOARD, extras.get("tensorboard_dir")),
        variables.TRACK_WANDB: switch(variables.TRACK_WANDB, extras.get("track_wandb"), params.get("track")),
    }


def _interpreter_folder(interpreter: str, paths: RunPaths) -> Path:
    """Return a folder in which `python` is the worker's interpreter: its own, or one with a wrapper."""
    folder = Path(interpreter).parent
    found = shutil.which("python", path=str(folder))
    if found is not None and os.path.realpath(found) == os.path.realpath(interpreter):
        return folder
    own = paths.logs / "bin"
    for name in ("python", "python3"):
        # not a link: an interpreter finds its packages by the folder it is called from
        write_atomic(own / name, f'#!/bin/sh\nexec "{interpreter}" "$@"\n')
        (own / name).chmod(0o755)
    return own
