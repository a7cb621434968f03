"""Formulas that every algorithm file repeats, pinned over all copies."""

import importlib

import numpy as np
import pytest

GAE_FILES = ("ppo", "ppo_continuous_action", "ppo_atari_envpool")
SCHEDULE_FILES = ("dqn", "dqn_jax")


def module(name):
    return importlib.import_module(f"cleanrl_worker.algorithms.{name}")


def plain_gae(rewards, values, next_values, ends, gamma, lam):
    """The sum of equation 16, written out: delta_t + (gamma lambda) delta_{t+1} + … up to the episode's end."""
    deltas = rewards + gamma * next_values - values
    result = np.zeros_like(rewards)
    for env in range(rewards.shape[1]):
        for t in range(len(rewards)):
            weight = 1.0
            for later in range(t, len(rewards)):
                result[t, env] += weight * deltas[later, env]
                weight *= gamma * lam
                if ends[later, env]:
                    break
    return result


@pytest.mark.parametrize("name", GAE_FILES)
@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
def test_gae_is_the_sum_of_its_paper(name, lam):
    rng = np.random.default_rng(0)
    rewards, values, next_values = rng.normal(size=(3, 12, 4))
    ends = (rng.random((12, 4)) < 0.25).astype(float)
    expected = plain_gae(rewards, values, next_values, ends, 0.9, lam)
    np.testing.assert_allclose(module(name).gae(rewards, values, next_values, ends, 0.9, lam), expected)


@pytest.mark.parametrize("name", SCHEDULE_FILES)
@pytest.mark.parametrize(("step", "value"), [(0, 1.0), (50, 0.525), (100, 0.05), (1000, 0.05)])
def test_the_exploration_schedule_falls_linearly_and_stays(name, step, value):
    assert module(name).linear_schedule(1.0, 0.05, 100, step) == pytest.approx(value)
