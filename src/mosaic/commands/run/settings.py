"""The settings of `--set` and `--seeds`, and the worker config that they define."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic.contract import variables
from mosaic.contract.errors import ConfigError, WorkerError, nearest
from mosaic.contract.paths import resolve_home
from mosaic.contract.settings import EXECUTORS, parse_setting
from mosaic.contract.workers import DRY_RUN, discover_workers

# The daemon was started elsewhere, at another time: variables set here for one run travel with the run.
FORWARDED = (
    *(variables.CUDA_VISIBLE_DEVICES, variables.MUJOCO_GL, variables.WANDB_MODE, variables.WANDB_EMAIL),
    *(variables.OMP_NUM_THREADS, variables.OMP_WAIT_POLICY, variables.OPENBLAS_NUM_THREADS, variables.MKL_NUM_THREADS),
    *(variables.TRACK_TENSORBOARD, variables.TRACK_WANDB, variables.CLEANRL_NUM_ENVS, variables.MOSAIC_STORAGE_URL),
    *(variables.CLEANRL_FASTLANE_INTERVAL_MS, variables.CLEANRL_FASTLANE_MAX_DIM, variables.CLEANRL_FASTLANE_BUDGET),
    *(variables.GYM_GUI_FASTLANE_ENABLED, variables.GYM_GUI_FASTLANE_VIDEO_MODE),
    *(variables.GYM_GUI_FASTLANE_GRID_LIMIT, variables.GYM_GUI_FASTLANE_SLOT),
)
# Refusals and docs tell the owner of a script to set this extra; a script has no schema that would say it is one.
INTERPRETER = "python"
NAME_HELP = "a name for the run, to find it by: mosaic runs --text TEXT"
DRY_RUN_HELP = "submit a run that only checks itself and ends"


def add_settings(parser: argparse.ArgumentParser, *, name: str = NAME_HELP, dry_run: str | None = DRY_RUN_HELP) -> None:
    """Add the flags of every submission; a command with its own dry run passes None for `dry_run`."""
    parser.add_argument(
        "--set",
        "--param",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="total_timesteps, seed, any parameter of the algorithm, or extra of the worker; may be repeated",
    )
    parser.add_argument("--name", metavar="TEXT", help=name)
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="higher ones leave the queue first (0)")
    parser.add_argument("--worker-id", metavar="TEXT", help="a name for the worker (cleanrl-worker-…)")
    parser.add_argument("--max-seconds", type=float, metavar="N", help="end the run after so many seconds")
    if dry_run is None:
        parser.set_defaults(dry_run=False)
    else:
        parser.add_argument("--dry-run", action="store_true", help=dry_run)
    parser.add_argument("--executor", choices=EXECUTORS, help="where it runs (default: as the daemon's settings say)")
    parser.add_argument("--cpus", type=float, metavar="N", help="cores that the run claims (1)")
    parser.add_argument(
        "--slurm",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an option of sbatch, with --executor slurm: partition=gpu, time=4:00:00; may be repeated",
    )
    parser.add_argument(
        "--resource",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="what the machine must give: memory_mb=8000, ray.custom.a100=1, slurm.partition=gpu; may be repeated",
    )
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs for this run alone; CPU if none exist")


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Parse all `--set` options; the last value of a name wins."""
    return dict(parse_setting(text) for text in texts)


def find_schema(algo: str) -> dict[str, Any]:
    """Return the algorithm's schema; {} for a user's module or script, and for what only a remote daemon may know."""
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
    """Return the part of a flat config that `--set` defines: seed and steps on top, parameters in `extras.algo_params`.

    What the schema does not know is an extra of the worker; without a schema all but `python` and `extras.x` are
    parameters.
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
        elif key == INTERPRETER:
            extras[key] = _from_here(value)
        elif fields and key not in fields:
            extras[key] = value
        else:
            params[key] = value
    return {**top, "extras": {**extras, "algo_params": params} if params else extras}


def _from_here(program: Any) -> Any:
    """Return a program's path as an absolute one: the worker starts in another folder; a bare name is left to PATH."""
    if not isinstance(program, str) or os.sep not in program:
        return program
    return os.path.abspath(os.path.expanduser(program))


def payload_of(config: Mapping[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Return the submission: the worker's config, and the daemon's fields."""
    payload: dict[str, Any] = {"metadata": {"worker": {"config": dict(config)}}}
    if args.name:
        payload["run_name"] = args.name
    if resources := resources_of(args):
        payload["resources"] = resources
    if args.max_seconds is not None:
        payload["schedule"] = {"max_duration_seconds": args.max_seconds}
    if args.worker_id:
        payload["metadata"]["worker"]["worker_id"] = args.worker_id
    if args.dry_run:
        payload["metadata"]["worker"]["arguments"] = list(DRY_RUN)
    environment = forwarded(str(config.get("algo") or ""), str(config.get("env_id") or ""))
    return {**payload, "environment": environment} if environment else payload


def resources_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the given resources and executor of the run."""
    found: dict[str, Any] = {"gpus": {"requested": args.gpus}} if args.gpus else {}
    if args.executor:
        found["executor"] = args.executor
    if args.cpus is not None:
        found["cpus"] = args.cpus
    if args.slurm:
        if args.executor not in (None, "slurm"):
            raise ConfigError(f"--slurm goes with --executor slurm, not with {args.executor}")
        pairs = (text.partition("=") for text in args.slurm)
        found["slurm"] = {key.strip().lstrip("-"): value if equals else True for key, equals, value in pairs}
    if args.resource:
        from mosaic.contract.job import parse_resources  # imports pydantic, only when needed

        for name, value in parse_resources("\n".join(args.resource), "--resource").items():
            found[name] = {**found.get(name, {}), **value} if isinstance(value, dict) else value
    return found


def forwarded(algo: str, env_id: str) -> dict[str, str]:
    """Return the variables of this process that travel with a run; own modules are also found in this folder."""
    found = {name: os.environ[name] for name in FORWARDED if name in os.environ}
    folders = [path for path in os.environ.get(variables.PYTHONPATH, "").split(os.pathsep) if path]
    own_module = ":" in env_id or ("." in algo and not algo.endswith(".py"))
    if own_module and Path.cwd() != resolve_home():
        folders.append(str(Path.cwd()))
    if folders:
        found[variables.PYTHONPATH] = os.pathsep.join(str(Path(folder).absolute()) for folder in folders)
    return found
