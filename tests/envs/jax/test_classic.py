"""Classic control in jnp: step for step what Gymnasium's own environments do."""

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest

from cleanrl_worker.algorithms.ppo_jax import Args
from cleanrl_worker.envs.episodes import Episode, Episodes
from cleanrl_worker.envs.jax import classic as classic_jax
from cleanrl_worker.envs.jax.classic import CLASSICS, ClassicEnvs
from cleanrl_worker.envs.rollouts import add_rollout


@pytest.mark.parametrize("env_id", CLASSICS)
def test_every_step_leads_where_gymnasium_leads_and_pays_and_ends_alike(env_id: str) -> None:
    classic, env = CLASSICS[env_id], gym.make(env_id)
    step, observe = jax.jit(classic.step), jax.jit(classic.observe)
    rng = np.random.default_rng(0)
    env.action_space.seed(0)
    ended = 0
    inner: Any = env.unwrapped
    for episode in range(8):
        env.reset(seed=episode)
        if episode % 2 and env_id == "Acrobot-v1":  # about to swing up, which random actions never do
            inner.state = np.array([1.9, 0.0, 3.0, 0.0], np.float32)
        for t in range(classic.limit):
            state = np.array(inner.state, np.float32)
            inner.state = state.astype(np.float64) if env_id != "MountainCar-v0" else tuple(state.astype(np.float64))
            action: Any = env.action_space.sample()
            if episode % 2 and env_id == "MountainCar-v0":  # pushed the way it moves, it gets up
                action = int(2 * (state[1] > 0))
            obs, reward, terminated, truncated, _ = env.step(action)
            states, rewards, terminations = step(state[None], np.array([action]))
            np.testing.assert_allclose(observe(states)[0], obs, rtol=1e-4, atol=2e-5)
            np.testing.assert_allclose(rewards[0], reward, rtol=1e-4, atol=1e-4)
            assert bool(terminations[0]) == terminated
            assert truncated == (t + 1 == classic.limit)
            ended += terminated
            if terminated:
                break
    assert ended or env_id == "Pendulum-v1"
    first = np.array([observe(classic.start(rng.random((1, classic.size), np.float32)))[0] for _ in range(300)])
    others = np.array([env.reset(seed=seed)[0] for seed in range(300)])
    np.testing.assert_allclose(first.min(axis=0), others.min(axis=0), atol=0.1)
    np.testing.assert_allclose(first.max(axis=0), others.max(axis=0), atol=0.1)


def test_an_ended_episode_gives_way_to_the_next_and_its_last_observation_is_kept() -> None:
    args = Args(env_id="CartPole-v1", num_envs=3)
    envs = ClassicEnvs(CLASSICS["CartPole-v1"], args)
    obs, again = envs.reset(7), envs.reset(7)
    assert np.array_equal(obs, again) and not np.array_equal(obs, envs.reset(8))
    lengths = np.zeros(3, int)
    finished: list[Episode] = []
    for _ in range(60):
        reached = envs.step(np.ones(3, int))
        lengths += 1
        assert [episode.env for episode in reached.episodes] == np.flatnonzero(reached.terminations).tolist()
        for episode in reached.episodes:
            assert episode.ret == episode.length == lengths[episode.env]
            assert abs(reached.final_obs[episode.env, 2]) > 0.2 > 0.05 >= abs(reached.obs[episode.env, 2])
            lengths[episode.env] = 0
        finished += reached.episodes
    assert len(finished) > 6


def test_a_rollout_is_counted_as_its_steps_are(tmp_path: Any) -> None:
    rng = np.random.default_rng(1)
    rewards, ends = rng.random((40, 3)).astype(np.float32), rng.random((40, 3)) < 0.1
    at_once, one_by_one = Episodes(3), Episodes(3)
    logged = []
    one_by_one.log = SimpleNamespace(add=lambda paid, _ends: logged.append(paid), flush=None)  # type: ignore[assignment]
    for part in (slice(0, 25), slice(25, 40)):
        found, expected = (add_rollout(counter, rewards[part], ends[part]) for counter in (at_once, one_by_one))
        assert [t for t, _ in found] == [t for t, _ in expected] == np.flatnonzero(ends[part].any(axis=1)).tolist()
        for (_, some), (_, others) in zip(found, expected, strict=True):
            assert [(one.env, one.length) for one in some] == [(one.env, one.length) for one in others]
            np.testing.assert_allclose([one.ret for one in some], [one.ret for one in others], rtol=1e-6)
    assert len(logged) == 40, "somebody who reads every step gets every step"


@pytest.mark.parametrize(
    "other",
    [
        {"env_backend": "gymnasium"},
        {"vectorization": "async"},
        {"capture_video": True},
        {"env_id": "LunarLander-v3"},
        {"curriculum_schedule": "[]"},
    ],
)
def test_what_asks_for_other_environments_gets_them(other: dict[str, Any]) -> None:
    assert classic_jax.make(Args(**other)) is None
