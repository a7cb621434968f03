"""Policies that remember what they have seen of an episode."""

from collections.abc import Callable

import numpy as np

from cleanrl_worker.run.policy import Policy


class RememberingPolicy:
    """Acts as `begin`'s policies do; each episode takes a new one of them, which has seen nothing yet."""

    def __init__(self, begin: Callable[[], Policy]) -> None:
        self.begin = begin
        self._policy = begin()

    def __call__(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        return self._policy(obs, rng)
