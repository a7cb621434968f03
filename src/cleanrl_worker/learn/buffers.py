"""Replay memory: a ring of transitions in numpy arrays."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mosaic.contract import twins as twins


class Transitions(NamedTuple):
    """A sample, batch axis first; `terminations` is 1.0 if the episode terminated, 0.0 also if truncated."""

    obs: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_obs: np.ndarray
    terminations: np.ndarray


class ReplayBuffer:
    """The newest `capacity` transitions; environments are interleaved, sampling is uniform."""

    def __init__(
        self, capacity: int, obs_shape: tuple[int, ...], action_shape: tuple[int, ...], action_dtype: type
    ) -> None:
        self.capacity = capacity
        self.obs = np.zeros((capacity, *obs_shape), np.float32)
        self.next_obs = np.zeros((capacity, *obs_shape), np.float32)
        self.actions: np.ndarray = np.zeros((capacity, *action_shape), action_dtype)
        self.rewards = np.zeros(capacity, np.float32)
        self.terminations = np.zeros(capacity, np.float32)
        self.added = 0
        self.saved_to = 0
        """transitions up to this count are in `segments`, the files of the checkpoints so far"""
        self.segments: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(
        self, obs: np.ndarray, actions: np.ndarray, rewards: np.ndarray, next_obs: np.ndarray, terminations: np.ndarray
    ) -> None:
        """Add one transition per environment; `next_obs` must be the action's result, never a reset's observation."""
        count = len(rewards)
        first = self.added % self.capacity
        # a slice is much cheaper than an index array, and only the ring's last write can need one
        where: Any = slice(first, first + count)
        if first + count > self.capacity:
            where = np.arange(first, first + count) % self.capacity
        self.obs[where] = obs
        self.next_obs[where] = next_obs
        self.actions[where] = actions
        self.rewards[where] = rewards
        self.terminations[where] = terminations
        self.added += count

    def sample(self, size: int, rng: np.random.Generator) -> Transitions:
        return self.take(rng.integers(0, len(self), size))

    def take(self, rows: np.ndarray) -> Transitions:
        # take with clip is twice as fast as an index array: it skips the bounds check
        return Transitions(*(array.take(rows, axis=0, mode="clip") for array in self._arrays().values()))

    def rows(self, first: int, end: int) -> dict[str, np.ndarray]:
        """Return copies of the transitions from number `first` up to `end`."""
        where = np.arange(first, end) % self.capacity
        return {name: array[where] for name, array in self._arrays().items()}

    def put(self, first: int, rows: Mapping[str, np.ndarray]) -> None:
        """Restore transitions by number; skip those older than the memory holds."""
        skip = max(0, len(rows["rewards"]) - self.capacity)
        where = np.arange(first + skip, first + len(rows["rewards"])) % self.capacity
        for name, array in self._arrays().items():
            array[where] = rows[name][skip:]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays().values())

    def _arrays(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in Transitions._fields}
