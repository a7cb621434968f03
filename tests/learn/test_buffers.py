"""The replay ring: the newest transitions, whatever the number of environments, sampled evenly."""

from collections import deque

import numpy as np
import pytest

from cleanrl_worker.learn.buffers import ReplayBuffer


def fill(buffer: ReplayBuffer, num_envs: int, steps: int, kept: deque[int]) -> None:
    """Add transitions that all carry their number, and remember those that a ring of this size keeps."""
    for step in range(steps):
        numbers = np.arange(step * num_envs, (step + 1) * num_envs)
        obs, next_obs = np.stack([numbers, -numbers], axis=1), numbers[:, None] + [0.25, 0.5]
        buffer.add(obs, numbers, numbers / 2, next_obs, numbers % 2 == 0)
        kept.extend(numbers.tolist())


@pytest.mark.parametrize(("capacity", "num_envs"), [(10, 1), (10, 2), (10, 3), (7, 4), (5, 5), (3, 5)])
def test_the_newest_transitions_stay_whole_after_the_ring_has_wrapped(capacity: int, num_envs: int) -> None:
    buffer = ReplayBuffer(capacity, (2,), (), np.int64)
    kept: deque[int] = deque(maxlen=capacity)
    for _ in range(3):
        fill(buffer, num_envs, 11, kept)
        assert len(buffer) == capacity
        assert sorted(buffer.actions.tolist()) == sorted(kept)
        numbers = buffer.actions
        assert np.array_equal(buffer.obs, np.stack([numbers, -numbers], axis=1))
        assert np.array_equal(buffer.next_obs, numbers[:, None] + [0.25, 0.5])
        assert np.array_equal(buffer.rewards, numbers / 2)
        assert np.array_equal(buffer.terminations, numbers % 2 == 0)


def test_a_sample_takes_whole_rows_and_only_from_what_was_added() -> None:
    buffer = ReplayBuffer(100, (2,), (), np.int64)
    fill(buffer, 3, 4, deque())
    assert len(buffer) == 12
    sample = buffer.sample(500, np.random.default_rng(0))
    assert set(sample.actions.tolist()) == set(range(12)), "more than there are is fine: rows repeat"
    assert np.array_equal(sample.obs[:, 1], -sample.actions)
    assert np.array_equal(sample.rewards, sample.actions / 2)
    assert np.array_equal(sample.next_obs[:, 0], sample.actions + 0.25)
    assert np.array_equal(sample.terminations, sample.actions % 2 == 0)
    assert sample.obs.dtype == sample.rewards.dtype == sample.terminations.dtype == np.float32


def test_every_row_is_as_likely_as_the_others() -> None:
    buffer = ReplayBuffer(10, (2,), (), np.int64)
    fill(buffer, 2, 8, deque())
    drawn = np.bincount(buffer.sample(20_000, np.random.default_rng(1)).actions, minlength=16)
    assert (drawn[:6] == 0).all(), "overwritten"
    assert np.abs(drawn[6:] / 20_000 - 0.1).max() < 0.01


def test_the_generator_alone_decides_what_is_drawn() -> None:
    buffer = ReplayBuffer(50, (2,), (1,), np.float32)
    for number in range(50):
        buffer.add(np.full((1, 2), number), np.full((1, 1), number), np.zeros(1), np.zeros((1, 2)), np.zeros(1))
    first, again, other = (buffer.sample(20, np.random.default_rng(seed)).actions for seed in (4, 4, 5))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert first.shape == (20, 1) and first.dtype == np.float32


def test_a_sample_is_not_overwritten_by_later_transitions() -> None:
    buffer = ReplayBuffer(4, (2,), (), np.int64)
    fill(buffer, 2, 2, deque())
    sample = buffer.sample(8, np.random.default_rng(0))
    before = sample.obs.copy()
    fill(buffer, 2, 9, deque())
    assert np.array_equal(sample.obs, before)
