"""Steps of vector environments and the episodes they end; returns and lengths come from raw rewards."""

from typing import Any, NamedTuple, Protocol

import numpy as np

from mosaic.wire import steps


class Episode(NamedTuple):
    """A finished episode: its environment's index, the sum of its raw rewards, its steps."""

    env: int
    ret: float
    length: int


class Step(NamedTuple):
    """What one action in every environment led to."""

    obs: np.ndarray
    """what to act on next: in an environment that has just ended an episode, the new episode's first observation"""
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    final_obs: np.ndarray
    """what the action led to: `obs` itself, but for the environments that have just ended an episode"""
    episodes: list[Episode]
    """the episodes that ended in this step, with raw rewards"""


class VectorEnvs(Protocol):
    """What an algorithm sees of its environments, whoever runs them."""

    backend: str
    num_envs: int
    single_observation_space: Any
    single_action_space: Any

    def reset(self, seed: int) -> np.ndarray:
        """Start every environment anew; environment i is seeded with seed + i."""
        ...

    def step(self, actions: np.ndarray) -> Step: ...

    def close(self) -> None: ...


class View(Protocol):
    """How an algorithm sees observations that are no single array; `wrap` is for Gymnasium's, a call for EnvPool's."""

    def wrap(self, env: Any) -> Any: ...

    def space(self, space: Any) -> Any: ...

    def __call__(self, obs: Any) -> np.ndarray: ...


onlooker: Any = None
"""the live view (`cleanrl_worker.onlooker`), where the launcher has let it in"""


class Episodes:
    """Sums of the episodes under way; `add` hands out those that a step has ended."""

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, dtype=np.int64)
        self._steps = steps.step_log(num_envs)

    def add(self, rewards: np.ndarray, ends: np.ndarray | None) -> list[Episode]:
        """Count one step of every environment; `ends` says which episodes it ended, None that it ended none."""
        self._steps.add(rewards, ends)
        self.returns += rewards
        self.lengths += 1
        if ends is None or not ends.any():
            return []
        finished = [Episode(int(i), float(self.returns[i]), int(self.lengths[i])) for i in np.flatnonzero(ends)]
        self.returns[ends] = 0.0
        self.lengths[ends] = 0
        return finished

    def clear(self) -> None:
        """Forget the episodes under way (every environment was reset)."""
        self.returns[:] = 0.0
        self.lengths[:] = 0


def is_due(every: int, previous: int, step: int) -> bool:
    """Whether a multiple of `every` lies in (previous, step]: true once per period for any number of environments."""
    return every > 0 and step // every > previous // every
