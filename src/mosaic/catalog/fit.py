"""Fit: the check that an algorithm supports an environment, by their declared spaces and families."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from mosaic.catalog.environment import Environment

Misfit = Literal["family", "actions", "observations"]


def misfit(
    environment: Environment,
    action_spaces: Sequence[str],
    observation_spaces: Sequence[str],
    families: Sequence[str],
) -> Misfit | None:
    """Return the first mismatch of an environment and an algorithm; unknown properties (None, empty) never mismatch."""
    if families and not environment.is_of(families):
        return "family"
    if action_spaces and environment.action_space and environment.action_space not in action_spaces:
        return "actions"
    if observation_spaces and environment.observation_space not in observation_spaces:
        return "observations"
    return None
