"""Checks of continuous action spaces: one-dimensional and, for an actor that squashes its actions, bounded."""

from typing import Any

import numpy as np


def require_row(space: Any, env_id: str) -> None:
    """Refuse an action space that is not one-dimensional."""
    if len(space.shape) != 1:
        raise SystemExit(f"{env_id} has actions of shape {space.shape}, not a row of numbers; use ppo_jax")


def require_bounded(space: Any, env_id: str) -> None:
    """Refuse an action space that is unbounded or not one-dimensional."""
    if not space.is_bounded():
        raise SystemExit(f"{env_id} has actions without bounds: {space}; use ppo_continuous_action")
    with np.errstate(over="ignore"):
        width = np.float32(space.high) - np.float32(space.low)
    if not np.isfinite(width).all():
        raise SystemExit(
            f"{env_id} has actions as wide as {space}: bounds whose distance is a float32 are needed; "
            "narrow its action space, or use ppo_continuous_action"
        )
    require_row(space, env_id)
