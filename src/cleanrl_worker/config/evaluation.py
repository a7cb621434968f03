"""Defaults for the evaluation settings that a config leaves open."""

from collections.abc import Mapping
from typing import Any

BATCH_SIZE = 50


TENSORBOARD = "tensorboard_eval"


def settle(extras: dict[str, Any], values: dict[str, Any]) -> None:
    """Fill in an evaluation's open settings, so that a summary shows the actual values."""
    extras["eval_batch_size"] = extras.get("eval_batch_size") or extras.get("eval_episodes") or BATCH_SIZE
    extras["eval_repeat"] = bool(extras.get("eval_repeat"))
    extras["tensorboard_dir"] = TENSORBOARD
    total = values["total_timesteps"]
    if total is None or (isinstance(total, int | float) and total <= 0):
        values["total_timesteps"] = episodes_of(extras)
    if extras.get("seed_override") not in (None, ""):
        values["seed"] = extras["seed_override"]


def episodes_of(extras: Mapping[str, Any]) -> int:
    """Return an evaluation's total number of episodes, if not repeated."""
    return int(extras.get("eval_episodes") or extras["eval_batch_size"])
