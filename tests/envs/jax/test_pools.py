"""EnvPool inside a compiled rollout: the steps are those that the same pool takes from Python."""

import gc
import weakref
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("envpool")

from cleanrl_worker.envs import vectors
from cleanrl_worker.envs.jax import pools
from cleanrl_worker.envs.jax.pools import PoolRollouts, PoolStep, Standing, XlaPool
from cleanrl_worker.envs.views import view_of
from cleanrl_worker.run.args import RunArgs

STEPS = 60


def made(env_id: str) -> Any:
    args = RunArgs(env_id=env_id, num_envs=2, env_backend="envpool", seed=3)
    return vectors.vector(args, None, view_of(env_id, {}))


@partial(jax.jit, static_argnums=(0, 1))
def rollout(actions: int, pool: XlaPool, standing: Standing, shift: Any) -> tuple[Standing, PoolStep]:
    def step(standing: Standing, t: jax.Array) -> tuple[Standing, PoolStep]:
        return pool.step(standing, (jnp.full(2, t) + shift) % actions)

    return jax.lax.scan(step, standing, jnp.arange(STEPS, dtype=jnp.int32))


@pytest.mark.parametrize(
    ("env_id", "actions"), [("CartPole-v1", 1), ("FrozenLake-v1", 4), ("MiniGrid-Empty-5x5-v0", 3)]
)
def test_compiled_steps_lead_where_the_pools_own_do(env_id: str, actions: int) -> None:
    inside, outside = made(env_id), made(env_id)
    obs = inside.reset(3)
    assert np.array_equal(obs, outside.reset(3))
    pool = PoolRollouts(inside, rollout, actions)
    assert pool.possible and pool.begin(obs, np.int32(0))
    reached: PoolStep = jax.tree.map(np.asarray, pool(np.int32(0)))
    ended = dict(pool.count(reached.paid, reached.over, reached.real))
    # a compiled rollout takes a step more for each episode that has ended: environment by environment
    for env in range(2):
        real = np.flatnonzero(reached.real[:, env])
        alone, taken = made(env_id), real % actions
        alone.reset(3)
        seen = [alone.step(np.full(2, action)) for action in taken]
        for name in ("rewards", "terminations", "truncations"):
            expected = [getattr(step, name)[env] for step in seen]
            assert getattr(reached, name)[real, env].tolist() == pytest.approx(expected), name
        np.testing.assert_allclose(reached.obs[real, env], [step.final_obs[env] for step in seen])
        expected_episodes = [episode for step in seen for episode in step.episodes if episode.env == env]
        assert [episode for some in ended.values() for episode in some if episode.env == env] == expected_episodes
        assert (env_id == "MiniGrid-Empty-5x5-v0") or expected_episodes, "something has ended"
        begun = np.flatnonzero(~reached.real[:, env])
        assert (reached.terminations | reached.truncations)[begun - 1, env].all()


def test_a_used_pool_goes_when_its_environments_are_reset() -> None:
    envs = made("CartPole-v1")
    pool = PoolRollouts(envs, rollout, 2)
    used = []
    for seed in (3, 4):
        assert pool.begin(envs.reset(seed), np.int32(0))
        jax.block_until_ready(pool(np.int32(1)))
        used.append(weakref.ref(envs.pool))
    gc.collect()
    assert [pool() is None for pool in used] == [True, False]


def test_numbers_of_eight_bytes_are_stepped_from_python() -> None:
    """JAX has room for half of each, and EnvPool would write beyond it."""
    assert not PoolRollouts(made("HalfCheetah-v5"), rollout, 2).possible


def test_what_is_compiled_for_a_pool_stays_off_the_disk(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert jax.config.jax_persistent_cache_min_compile_time_secs < 60
    with pools._uncached():
        assert jax.config.jax_persistent_cache_min_compile_time_secs > 3600
    assert jax.config.jax_persistent_cache_min_compile_time_secs < 60
