"""What `--set` and `--seeds` say, and the worker config that they make."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic.wire import variables
from mosaic.wire.errors import ConfigError, WorkerError, nearest
from mosaic.wire.paths import resolve_home
from mosaic.wire.secrets import is_secret
from mosaic.wire.workers import discover_workers

# The daemon was started somewhere else, at another time: what a person sets here for one run goes with the run.
FORWARDED = (
    *(variables.CUDA_VISIBLE_DEVICES, variables.MUJOCO_GL, variables.WANDB_MODE, variables.WANDB_EMAIL),
    *(variables.OMP_NUM_THREADS, variables.OPENBLAS_NUM_THREADS, variables.MKL_NUM_THREADS),
    *(variables.TRACK_TENSORBOARD, variables.TRACK_WANDB, variables.CLEANRL_NUM_ENVS),
    *(variables.CLEANRL_FASTLANE_INTERVAL_MS, variables.CLEANRL_FASTLANE_MAX_DIM, variables.CLEANRL_FASTLANE_BUDGET),
    *(variables.GYM_GUI_FASTLANE_ENABLED, variables.GYM_GUI_FASTLANE_VIDEO_MODE),
    *(variables.GYM_GUI_FASTLANE_GRID_LIMIT, variables.GYM_GUI_FASTLANE_SLOT),
)

# Each becomes a run of its own: more is a slip of the finger.
MOST_SEEDS = 1000


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The flags of everything that is submitted."""
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="total_timesteps, seed, any parameter of the algorithm, or extra of the worker; may be repeated",
    )
    parser.add_argument("--name", metavar="TEXT", help="a name for the run, to find it by: mosaic runs --text TEXT")
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="higher ones leave the queue first (0)")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs for this run alone; CPU if none exist")


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """All of `--set`; the last of a name counts."""
    return dict(parse_setting(text) for text in texts)


def parse_setting(text: str) -> tuple[str, Any]:
    """`key=value` as a pair; the value is JSON where it can be read as JSON, else the text itself."""
    key, equals, value = text.partition("=")
    key = key.strip().lstrip("-").replace("-", "_")
    if not equals or not key:
        raise ConfigError(f"--set takes KEY=VALUE, not {text!r}; for example: --set learning_rate=0.001")
    if is_secret(key):
        raise ConfigError(f"{key} looks like a secret; secrets travel in the environment: export WANDB_API_KEY=…")
    lowered = value.strip().lower()
    try:
        found = json.loads(lowered if lowered in ("true", "false", "null") else value)
        json.dumps(found, allow_nan=False)  # Python reads NaN and 1e999, which no JSON can say
        return key, found
    except (ValueError, RecursionError):
        return key, value


def parse_seeds(text: str) -> list[int]:
    """`1-5`, `3` or `1,2,8-10` as numbers, in the order given."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise ConfigError(f"--seeds takes numbers and ranges such as 1-5 or 1,2,7; not {text!r}")
        count = int(last or first) - int(first) + 1
        if len(seeds) + count > MOST_SEEDS:
            raise ConfigError(f"--seeds {text} are more than {MOST_SEEDS:,} runs; submit them in several commands")
        seeds += range(int(first), int(first) + count)
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"--seeds {text} names a seed twice")
    return seeds


def find_schema(algo: str) -> dict[str, Any]:
    """The algorithm's schema; {} for a person's own module or script, and for what only a remote daemon may know."""
    workers, problems = discover_workers()
    schemas = [worker.schema() for worker in workers.values()]
    for schema in schemas:
        if algo in schema:
            return dict(schema[algo])
    if algo.endswith(".py") or "." in algo or os.environ.get(variables.MOSAIC_TARGET):
        return {}
    if not workers:
        raise WorkerError("; ".join(["no worker is installed", *problems]))
    names = [known for schema in schemas for known in schema]
    raise ConfigError(f"unknown algo {algo!r}{nearest(algo, names) or '.'} List them with: mosaic algos")


def split_settings(settings: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a flat config that `--set` makes: seed and steps at its top, parameters in `extras.algo_params`.

    What the schema does not know is an extra of the worker; without a schema everything but `extras.x` is a parameter.
    """
    fields = {field["name"] for field in schema.get("fields", ())}
    top: dict[str, Any] = {}
    extras: dict[str, Any] = {}
    params: dict[str, Any] = {}
    for key, value in settings.items():
        if key in ("seed", "total_timesteps", "env_id"):
            top[key] = value
        elif key.startswith("extras."):
            extras[key.removeprefix("extras.")] = value
        elif fields and key not in fields:
            extras[key] = value
        else:
            params[key] = value
    return {**top, "extras": {**extras, "algo_params": params} if params else extras}


def payload_of(config: Mapping[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """The submission: the worker's config, and what concerns the daemon."""
    payload: dict[str, Any] = {"metadata": {"worker": {"config": dict(config)}}}
    if args.name:
        payload["run_name"] = args.name
    if args.gpus:
        payload["resources"] = {"gpus": {"requested": args.gpus}}
    environment = forwarded(str(config.get("algo") or ""), str(config.get("env_id") or ""))
    return {**payload, "environment": environment} if environment else payload


def forwarded(algo: str, env_id: str) -> dict[str, str]:
    """The variables of this process that go with a run; a person's own modules are looked for in this folder too."""
    found = {name: os.environ[name] for name in FORWARDED if name in os.environ}
    folders = [path for path in os.environ.get(variables.PYTHONPATH, "").split(os.pathsep) if path]
    own_module = ":" in env_id or ("." in algo and not algo.endswith(".py"))
    if own_module and Path.cwd() != resolve_home():
        folders.append(str(Path.cwd()))
    if folders:
        found[variables.PYTHONPATH] = os.pathsep.join(str(Path(folder).absolute()) for folder in folders)
    return found
