"""Scripts as runs: which may be started, what they are given, how their exit code is learnt."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic.wire import variables
from mosaic.wire.errors import ConfigError, shown
from mosaic.wire.paths import RunPaths, write_atomic

# These have places of their own in a config.
_NOT_PARAMS = frozenset({"env_id", "seed", "total_timesteps", "track", "tensorboard_dir"})


def all_params(given: Mapping[str, Any], fields: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Every hyper-parameter with its value, so that a script finds each of them in its config."""
    defaults = {str(field["name"]): field.get("default") for field in fields}
    named = {
        name: value for name, value in defaults.items() if name not in _NOT_PARAMS and not name.startswith("wandb_")
    }
    return {**{name: value for name, value in named.items() if value is not None}, **given}


def find_script(text: str, paths: RunPaths, command: Sequence[str]) -> Path:
    """A script inside MOSAIC_HOME or among those that come with the worker; ConfigError for any other."""
    homes = [paths.home.resolve(), *_worker_scripts(command)]
    for home in homes:
        path = (home / text).resolve()
        if path.is_file() and path.is_relative_to(home):
            return path
    raise ConfigError(f"script {shown(text)} is not there; it lies in {paths.home} or in the worker's scripts folder")


def script_exit(paths: RunPaths) -> int | None:
    """The exit code that a script's own wrapper wrote, None where there is none."""
    try:
        return int(_exit_file(paths).read_text())
    except (OSError, ValueError):
        return None


def script_command(
    text: str, flat: Mapping[str, Any], own: Path, paths: RunPaths, command: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """The command and the variables of a script; its config names no run, since its phases share this one."""
    script = find_script(text, paths, command)
    base = {name: value for name, value in flat.items() if name != "run_id"}
    write_atomic(own, json.dumps(base, indent=2) + "\n")
    exit_file = _exit_file(paths)
    exit_file.unlink(missing_ok=True)
    extras = base.get("extras") or {}
    params = extras.get("algo_params") or {}
    interpreter = Path(command[0]).parent
    environment = {
        variables.MOSAIC_SCRIPT: "1",
        variables.MOSAIC_CONFIG_FILE: str(own),
        variables.MOSAIC_CHECKPOINT_DIR: str(paths.checkpoints),
        variables.TRACK_TENSORBOARD: str(int(bool(extras.get("tensorboard_dir")))),
        variables.TRACK_WANDB: str(int(bool(extras.get("track_wandb")))),
        "PATH": f"{interpreter}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    if params.get("num_envs") is not None:
        environment[variables.CLEANRL_NUM_ENVS] = str(params["num_envs"])
    # The code is also written down: a daemon that is not the parent has no other way to learn it.
    wrapper = f'bash "$0"; code=$?; echo $code > {shlex.quote(str(exit_file))}; exit $code'
    return ["bash", "-c", wrapper, str(script)], environment


def _exit_file(paths: RunPaths) -> Path:
    return paths.logs / "script.exit"


def _worker_scripts(command: Sequence[str]) -> list[Path]:
    """The `scripts` folder of the package that a worker's command names."""
    from importlib.util import find_spec

    found = []
    for part in command:
        root = part.split(".")[0]
        if not root.isidentifier():
            continue
        spec = find_spec(root)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            if (Path(place) / "scripts").is_dir():
                found.append((Path(place) / "scripts").resolve())
    return found
