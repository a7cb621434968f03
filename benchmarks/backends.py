"""EnvPool and its originals, made alike: what the two EnvPool benchmarks share."""

import importlib
import sys
import types
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

CLASSIC = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1", "MountainCarContinuous-v0")
MUJOCO = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Swimmer-v5", "InvertedPendulum-v5", "Ant-v5")
ATARI = {"Pong-v5": "pong", "Breakout-v5": "breakout"}


def pool(env_id: str, num_envs: int, seed: int, **options: Any) -> Any:
    """An EnvPool of one task, importing that task's family only (all of them take 2 s and 220 MB)."""
    family = "atari" if env_id in ATARI else "mujoco.gym" if env_id in MUJOCO else "classic_control"
    family = "minigrid" if is_grid(env_id) else family
    if "envpool" not in sys.modules:
        sys.modules["envpool.entry"] = types.ModuleType("envpool.entry")
        sys.modules["envpool.python.lax"] = None  # type: ignore[assignment]
    envpool = importlib.import_module("envpool")
    importlib.import_module(f"envpool.{family}.registration")
    return envpool.make_gymnasium(env_id, num_envs=num_envs, seed=seed, **options)


def is_grid(env_id: str) -> bool:
    """Whether observations are MiniGrid's: a dict of cells, direction and mission."""
    return env_id.startswith(("MiniGrid-", "BabyAI-"))


def ale_vector(env_id: str, num_envs: int, mode: AutoresetMode, **options: Any) -> Any:
    """ale-py's own vector environment of the same game."""
    vector_env = importlib.import_module("ale_py.vector_env")
    importlib.import_module("ale_py").ALEInterface.setLoggerMode(2)  # its banner on every construction
    return vector_env.AtariVectorEnv(ATARI[env_id], num_envs, autoreset_mode=mode, **options)


def pool_step(envs: Any, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """One step as SAME_STEP: (observations, final observations, rewards, terminations, truncations); cells of grids.

    A step of the finished ones alone is EnvPool's own automatic reset; `reset(ids)` would start a new Atari game
    after every lost life.
    """
    given, rewards, terminated, truncated, _ = envs.step(actions)
    final = _array(given)
    done = terminated | truncated
    observations = final
    if done.any():
        ids = np.flatnonzero(done).astype(np.int32)
        observations = final.copy()
        observations[ids] = _array(envs.step(actions[ids], ids)[0])
    return observations, final, rewards, terminated, truncated


def _array(obs: Any) -> np.ndarray:
    array: np.ndarray = obs["image"] if isinstance(obs, dict) else obs
    return array


def random_actions(space: gym.Space[Any], rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Uniform actions, the same for both sides."""
    if isinstance(space, gym.spaces.Discrete):
        return rng.integers(0, int(space.n), shape)
    assert isinstance(space, gym.spaces.Box)
    return rng.uniform(space.low, space.high, (*shape, *space.shape)).astype(space.dtype)
