"""Recurrent policies."""

from collections.abc import Callable

import numpy as np

from cleanrl_worker.run.policy import Policy


class RememberingPolicy:
    """A recurrent policy; `begin` returns a new one with an empty memory for each episode."""

    def __init__(self, begin: Callable[[], Policy]) -> None:
        self.begin = begin
        self._policy = begin()

    def __call__(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        return self._policy(obs, rng)
