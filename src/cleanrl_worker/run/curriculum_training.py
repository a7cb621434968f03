"""Curriculum training from Python: an algorithm's own `main`, with the stages as an argument."""

import importlib
import importlib.util
import json
from collections.abc import Sequence
from typing import Any

from cleanrl_worker.envs.curriculum import BABYAI_GOTO_CURRICULUM
from mosaic.contract.curriculum import read_schedule
from mosaic.contract.errors import ConfigError


def run_curriculum_training(
    schedule: Sequence[dict[str, Any]] = BABYAI_GOTO_CURRICULUM, algo: str = "ppo", **params: Any
) -> None:
    """Train in this process until `total_timesteps`; `params` are fields of the algorithm's `Args` (seed, run_dir, …).

    Raise ConfigError for an invalid schedule or parameter, before anything is written.
    """
    stages = read_schedule(schedule, "schedule")
    name = f"cleanrl_worker.algorithms.{algo}"
    if not algo.isidentifier() or importlib.util.find_spec(name) is None:
        raise ConfigError(f"unknown algo {algo!r}; list them with: mosaic algos")
    module = importlib.import_module(name)
    goal = {"env_id": stages[-1].env_id, "curriculum_schedule": json.dumps(list(schedule), ensure_ascii=False)}
    try:
        args = module.Args(**(goal | params))
    except TypeError as error:
        raise ConfigError(f"{algo}: {str(error).rpartition('() ')[2]}; its parameters: mosaic algos {algo}") from None
    module.main(args)
