"""EnvPool's XLA interface: its steps as part of a compiled rollout.

EnvPool begins the next episode in the step after the one that ended it, and ignores that step's action. A rollout
contains such steps; `PoolStep.real` masks them for learning.
"""

import contextlib
import importlib
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from cleanrl_worker.envs.episodes import Episode, StagedEnvs
from cleanrl_worker.envs.minigrid import GridView
from cleanrl_worker.envs.pools import PoolEnvs
from cleanrl_worker.envs.rollouts import add_rollout


class Standing(NamedTuple):
    """The state of a pool between two steps."""

    handle: jax.Array
    """EnvPool's own; passing it from step to step keeps their order"""
    obs: jax.Array
    ended: jax.Array
    """true if the next step begins an episode"""


class PoolStep(NamedTuple):
    """The result of one action in every environment."""

    obs: jax.Array
    """for an ended episode, its last observation: the next one's first follows a step later"""
    rewards: jax.Array
    terminations: jax.Array
    truncations: jax.Array
    real: jax.Array
    """false for a step that only began an episode"""
    paid: jax.Array
    """raw rewards"""
    over: jax.Array
    """true if a whole game has ended, not just a life"""


class XlaPool:
    """The steps of one pool, to be traced into a compiled function.

    It holds only a weak reference to the pool: JAX keeps traced objects forever, and a used pool must be freed.
    """

    def __init__(self, envs: PoolEnvs) -> None:
        template = importlib.import_module("envpool.python.xla_template")
        self._pool = weakref.ref(envs.pool)
        self._functions = template.make_xla(envs.pool)
        self._lives: bool = envs.lives
        self._seen: Any = _view_of(envs)

    def stand(self, obs: np.ndarray) -> Standing:
        """Return the state of a pool right after a reset."""
        return Standing(jnp.asarray(self._functions.handle), jnp.asarray(obs), jnp.zeros(len(obs), bool))

    def step(self, now: Standing, actions: jax.Array) -> tuple[Standing, PoolStep]:
        pool: Any = self._pool()
        handle, *given = self._functions.recv(self._functions.send(now.handle, *pool._from(actions, None)))
        seen, rewards, terminations, truncations, info = pool._to(given, reset=False, return_info=True)
        obs, real, ends = self._seen(seen).astype(now.obs.dtype), ~now.ended, terminations | truncations
        over = (info["terminated"] > 0) | truncations if self._lives else ends
        paid = info["reward"] if self._lives else rewards
        reached = PoolStep(obs, rewards, terminations, truncations, real, paid * real, over & real)
        return Standing(handle, obs, ends), reached


class PoolRollouts:
    """An algorithm's rollout function, compiled together with the steps of its pool of environments.

    `function` accepts (agent, pool, standing, …) and returns (standing, results). It is recompiled for each pool: the
    pool's address is part of the compiled code, so a cache entry could never be reused.
    """

    def __init__(self, envs: Any, function: Any, agent: Any) -> None:
        self._envs, self._function, self._agent = envs, function, agent
        self._told = False

    @property
    def possible(self) -> bool:
        """Return True if XLA can step the current environments."""
        return _pool_of(self._envs) is not None

    def begin(self, obs: np.ndarray, *given: Any) -> bool:
        """Compile the function after a reset, for its arguments; return False if XLA cannot step the environments."""
        envs = _pool_of(self._envs)
        if envs is None:
            return False
        pool = XlaPool(envs)
        self._standing = pool.stand(obs)
        started = time.monotonic()
        if not self._told:
            print("compiling the rollout …", flush=True)
        with _uncached():
            self._compiled = self._function.lower(self._agent, pool, self._standing, *given).compile()
        if not self._told:
            print(f"compiled the rollout in {time.monotonic() - started:.1f} s", flush=True)
        self._told = True
        envs.count = partial(add_rollout, envs.episodes)
        return True

    def __call__(self, *given: Any) -> Any:
        self._standing, results = self._compiled(self._standing, *given)
        return results

    @property
    def obs(self) -> jax.Array:
        """Return the current observations."""
        return self._standing.obs

    def count(self, paid: Any, over: Any, real: Any) -> list[tuple[int, list[Episode]]]:
        """Return the episodes that ended in a rollout, by step; arrays have shape (steps, environments)."""
        envs: Any = self._envs.envs if isinstance(self._envs, StagedEnvs) else self._envs
        found: list[tuple[int, list[Episode]]] = envs.count(np.asarray(paid), np.asarray(over), np.asarray(real))
        return found


def _pool_of(envs: Any) -> PoolEnvs | None:
    """Return the pool inside a run's environments if XLA can step it, else None."""
    if isinstance(envs, StagedEnvs):
        envs = envs.envs
    pool = envs if isinstance(envs, PoolEnvs) else getattr(envs, "envs", None)  # possibly wrapped by the live view
    if not isinstance(pool, PoolEnvs) or pool.film is not None or _view_of(pool) is None:
        return None
    # EnvPool supports this interface on Linux only; its GPU path is untested here.
    if sys.platform != "linux" or jax.default_backend() != "cpu":
        return None
    # 8-byte values of EnvPool have 4 in JAX's default mode, and EnvPool writes past the buffer: MuJoCo, DM Control
    specs = [spec for _, (_, both, _) in pool.pool._xla() for side in both for spec in side]
    return pool if all(np.dtype(dtype).itemsize < 8 for dtype, _ in specs) else None


def _view_of(envs: PoolEnvs) -> Callable[[Any], jax.Array] | None:
    """Return a jnp function from the pool's observations to the learner's, None if unknown."""
    with warnings.catch_warnings():  # float64 bounds cast to float32 spaces: nothing a user can change
        warnings.simplefilter("ignore", UserWarning)
        space = envs.pool.observation_space
    if isinstance(space, gym.spaces.Discrete):
        return partial(jax.nn.one_hot, num_classes=int(space.n))
    if isinstance(space, gym.spaces.Box):
        return jnp.asarray
    plain_grid = isinstance(envs.seen, GridView) and not envs.seen.mission
    return envs.seen if plain_grid else None  # type: ignore[return-value]


@contextlib.contextmanager
def _uncached() -> Iterator[None]:
    """Disable JAX's persistent cache inside, where this code could never be reused."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, 1e9)
    try:
        yield
    finally:
        jax.config.update(name, before)
