"""Running statistics are those of all samples at once; rewards are scaled by returns that end with their episode."""

import numpy as np
import pytest

from cleanrl_worker.learn.normalize import ObservationNormalizer, RewardNormalizer, RunningStatistics

PRIOR = 1e-4
"""weight of the mean 0 and variance 1 that the statistics start with"""


def with_prior(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the samples and of PRIOR samples whose mean is 0 and variance 1."""
    total = len(samples) + PRIOR
    mean = samples.sum(axis=0) / total
    return mean, (((samples - mean) ** 2).sum(axis=0) + PRIOR * (1 + mean**2)) / total


@pytest.mark.parametrize("sizes", [[1] * 60, [60], [1, 2, 3, 54], [30, 1, 1, 28], [2] * 30], ids=str)
@pytest.mark.parametrize("shape", [(), (3,)], ids=["numbers", "vectors"])
def test_statistics_are_those_of_all_samples_however_they_were_cut_into_batches(
    sizes: list[int], shape: tuple[int, ...]
) -> None:
    samples = np.random.default_rng(len(sizes)).normal(5.0, 3.0, (sum(sizes), *shape))
    statistics = RunningStatistics(shape)
    for batch in np.split(samples, np.cumsum(sizes)[:-1]):
        statistics.update(batch)
    mean, var = with_prior(samples)
    np.testing.assert_allclose(statistics.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(statistics.var, var, rtol=1e-12)
    np.testing.assert_allclose(statistics.mean, samples.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(statistics.var, samples.var(axis=0), rtol=1e-4)
    assert statistics.count == pytest.approx(sum(sizes) + PRIOR)


def test_statistics_hold_for_large_means_and_many_samples() -> None:
    samples = np.random.default_rng(0).normal(1e6, 0.5, 20_000)
    statistics = RunningStatistics(())
    for batch in samples.reshape(-1, 4):
        statistics.update(batch)
    assert statistics.mean == pytest.approx(samples.mean(), abs=0.01)
    assert statistics.var == pytest.approx(with_prior(samples)[1], rel=1e-4)


def test_observations_come_out_centred_scaled_and_clipped_as_float32() -> None:
    rng = np.random.default_rng(3)
    normalizer = ObservationNormalizer((2,))
    for _ in range(400):
        seen = normalizer.observe(rng.normal([3.0, -7.0], [0.1, 20.0], (4, 2)))
    assert seen.dtype == np.float32 and seen.shape == (4, 2)
    shown = normalizer.apply(rng.normal([3.0, -7.0], [0.1, 20.0], (1000, 2)))
    np.testing.assert_allclose(shown.mean(axis=0), 0.0, atol=0.15)
    np.testing.assert_allclose(shown.std(axis=0), 1.0, atol=0.1)
    assert normalizer.apply(np.array([[1e9, -1e9]])).tolist() == [[10.0, -10.0]]


def test_applying_learns_nothing() -> None:
    normalizer = ObservationNormalizer((1,))
    normalizer.observe(np.array([[1.0], [3.0]]))
    before = normalizer.statistics.mean.copy(), normalizer.statistics.var.copy(), normalizer.statistics.count
    normalizer.apply(np.array([[100.0]]))
    assert before == (normalizer.statistics.mean, normalizer.statistics.var, normalizer.statistics.count)


def test_rewards_are_divided_by_the_deviation_of_returns_that_end_with_their_episode() -> None:
    normalizer = RewardNormalizer(num_envs=2, gamma=0.5)
    rewards = np.array([[1.0, 4.0], [1.0, 4.0], [1.0, 4.0], [1.0, 4.0]])
    ends = np.array([[False, False], [True, False], [False, False], [False, True]])
    # environment 0 starts anew after its second reward
    returns = np.array([[1.0, 4.0], [1.5, 6.0], [1.0, 7.0], [1.5, 7.5]])
    for t in range(4):
        scaled = normalizer.observe(rewards[t], ends[t])
        _, var = with_prior(returns[: t + 1].reshape(-1))
        np.testing.assert_allclose(scaled, rewards[t] / np.sqrt(var + 1e-8), rtol=1e-9)
    assert normalizer.returns.tolist() == [1.5, 0.0]


def test_scaled_rewards_are_clipped_and_keep_their_sign() -> None:
    normalizer = RewardNormalizer(num_envs=1, gamma=0.9)
    for _ in range(50):
        normalizer.observe(np.array([0.001]), np.array([True]))
    assert normalizer.observe(np.array([-500.0]), np.array([True]))[0] < -5
    normalizer = RewardNormalizer(num_envs=3, gamma=0.0)
    scaled = normalizer.observe(np.array([1.0, 1.0, 1.0]), np.zeros(3, bool))
    assert scaled.max() == 10.0
