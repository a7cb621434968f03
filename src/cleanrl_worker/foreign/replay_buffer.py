"""A replay buffer with the interface of Stable-Baselines3's, the only one that CleanRL's files use."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple, Union

import numpy as np

Infos = Union[Dict[str, Any], Sequence[Dict[str, Any]]]


class ReplayBufferSamples(NamedTuple):
    """A batch of transitions as tensors."""

    observations: Any
    actions: Any
    next_observations: Any
    dones: Any
    rewards: Any


class ReplayBuffer:
    """A ring buffer of transitions of `n_envs` environments; `buffer_size` counts the total of all of them.

    With `optimize_memory_usage` a successor is the next stored observation: after a timeout, which
    `handle_timeout_termination` bootstraps from, the next episode's first. Atari files of 2023 set both.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
    ) -> None:
        import torch

        auto = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(auto if str(device) == "auto" else device)
        self.buffer_size, self.n_envs = max(buffer_size // n_envs, 1), n_envs
        self.observation_space, self.action_space = observation_space, action_space
        self.obs_shape = tuple(observation_space.shape)
        self.action_dim = int(np.prod(action_space.shape)) if action_space.shape else 1
        rows = (self.buffer_size, n_envs)
        kind = np.float32 if action_space.dtype == np.float64 else action_space.dtype
        self.observations = np.zeros((*rows, *self.obs_shape), observation_space.dtype)
        self.next_observations = (
            None if optimize_memory_usage else np.zeros((*rows, *self.obs_shape), observation_space.dtype)
        )
        self.actions = np.zeros((*rows, self.action_dim), kind)
        self.rewards, self.dones = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
        self.timeouts = np.zeros(rows, np.float32)
        self._minds_timeouts = handle_timeout_termination
        self.pos, self.full = 0, False

    def size(self) -> int:
        """Return the number of stored steps."""
        return self.buffer_size if self.full else self.pos

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Infos) -> None:
        """Store a step of all environments."""
        shape = (self.n_envs, *self.obs_shape)
        self.observations[self.pos] = np.reshape(obs, shape)
        if self.next_observations is None:
            self.observations[(self.pos + 1) % self.buffer_size] = np.reshape(next_obs, shape)
        else:
            self.next_observations[self.pos] = np.reshape(next_obs, shape)
        self.actions[self.pos] = np.reshape(action, (self.n_envs, self.action_dim))
        self.rewards[self.pos], self.dones[self.pos] = reward, done
        # Only Gymnasium's vector environments use a dictionary of arrays; they report truncation separately.
        if self._minds_timeouts and not isinstance(infos, dict):
            self.timeouts[self.pos] = [info.get("TimeLimit.truncated", False) for info in infos]
        self.pos = (self.pos + 1) % self.buffer_size
        self.full = self.full or self.pos == 0

    def sample(self, batch_size: int) -> ReplayBufferSamples:
        """Draw transitions uniformly, from numpy's global generator."""
        if self.next_observations is None and self.full:  # the newest step has lost its successor
            steps = (np.random.randint(1, self.buffer_size, batch_size) + self.pos) % self.buffer_size
        else:
            steps = np.random.randint(0, self.size(), batch_size)
        at: Tuple[Any, Any] = (steps, np.random.randint(0, self.n_envs, batch_size))
        if self.next_observations is None:
            following = self.observations[(steps + 1) % self.buffer_size, at[1]]
        else:
            following = self.next_observations[at]
        dones = (self.dones[at] * (1 - self.timeouts[at])).reshape(-1, 1)
        parts: List[Any] = [self.observations[at], self.actions[at], following, dones, self.rewards[at].reshape(-1, 1)]
        import torch

        return ReplayBufferSamples(*(torch.tensor(part, device=self.device) for part in parts))
