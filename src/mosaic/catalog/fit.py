"""Fit: whether an algorithm can learn an environment, by what both say of themselves."""

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
    """In what an environment is not what an algorithm is for; what is unknown of either (None, empty) is no misfit."""
    if families and not environment.is_of(families):
        return "family"
    if action_spaces and environment.action_space and environment.action_space not in action_spaces:
        return "actions"
    if observation_spaces and environment.observation_space not in observation_spaces:
        return "observations"
    return None
