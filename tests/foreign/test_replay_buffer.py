"""The replay buffer that stands in for Stable-Baselines3's."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from cleanrl_worker.foreign.replay_buffer import ReplayBuffer


def filled(steps: int, size: int, **options: bool) -> ReplayBuffer:
    """Two environments whose observations count the steps; the first one's third step is a timeout."""
    buffer = ReplayBuffer(size, Box(0, 100, (1,), np.float64), Discrete(2), "cpu", n_envs=2, **options)
    for step in range(steps):
        infos = [{"TimeLimit.truncated": step == 2}, {}]
        obs = np.array([[step], [step]], np.float64)
        buffer.add(obs, obs + 1, np.array([0, 1]), np.array([step, 0.0]), np.array([step == 2, False]), infos)
    return buffer


@pytest.mark.parametrize("shared", [False, True])
def test_samples_are_transitions_of_one_environment(shared: bool) -> None:
    np.random.seed(1)
    buffer = filled(7, 10, optimize_memory_usage=shared, handle_timeout_termination=not shared)
    assert (buffer.size(), buffer.full, buffer.pos) == (5, True, 2)
    batch = buffer.sample(200)
    assert (batch.next_observations == batch.observations + 1).all()
    # The newest transition's successor overwrites the oldest observation, where both share an array.
    assert set(batch.observations.flatten().tolist()) == ({3, 4, 5, 6} if shared else {2, 3, 4, 5, 6})
    assert batch.actions.shape == batch.rewards.shape == batch.dones.shape == (200, 1)
    assert (batch.rewards[batch.actions == 1] == 0).all()


def test_timeout_does_not_count_as_an_end() -> None:
    for minds, dones in ((True, {0.0}), (False, {0.0, 1.0})):
        batch = filled(5, 10, handle_timeout_termination=minds).sample(200)
        assert set(batch.dones.flatten().tolist()) == dones
