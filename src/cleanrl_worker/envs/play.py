"""Playing whole episodes with a policy, each with its own seed.

An episode depends only on its seed and the policy, so it can be replayed. Therefore observations are never batched:
the last bits of a matrix product depend on its number of rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from cleanrl_worker.envs import pools, vectors
from cleanrl_worker.envs.episodes import VectorEnvs, View
from cleanrl_worker.envs.episodes import episode_seed as episode_seed

if TYPE_CHECKING:
    from cleanrl_worker.run.policy import Policy


class Played(NamedTuple):
    """A finished episode; its return is the sum of raw rewards. A reset with `seed` replays it."""

    episode: int
    seed: int
    ret: float
    discounted: float
    length: int


class Game(Protocol):
    """An environment that plays one episode after the other; observations and actions are single rows."""

    single_observation_space: Any
    single_action_space: Any
    lost_life: bool
    """true if the last step ended an episode only for the learner: memories are reset, as in training"""

    def start(self, episode: int, seed: int) -> np.ndarray: ...

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Return the observation, the raw reward, and True if the episode has ended."""
        ...

    def close(self) -> None: ...


def make_game(
    env_id: str, *, atari: bool, backend: str = "auto", video_folder: Path | None = None, view: View | None = None
) -> Game:
    """Return the environment as in training, but with raw rewards and whole games."""
    if atari and pools.plays(env_id, backend):
        return VectorGame(pools.make_games(env_id, 1, 0, video_folder, clip=False, view=view))
    if atari or backend != "envpool":
        return FlatGame(vectors.EnvMaker(env_id, video_folder, view=view, frames=atari))
    return VectorGame(pools.make_seen(env_id, 1, 0, video_folder, view))


def for_episode(policy: Policy) -> Policy:
    """Return the policy for a new episode; a recurrent one's `begin` returns one with an empty memory."""
    begin: Callable[[], Policy] = getattr(policy, "begin", lambda: policy)
    return begin()


def play_episode(
    policy: Policy,
    game: Game,
    episode: int,
    seed: int,
    greedy: bool = False,
    gamma: float = 0.99,
    max_steps: int = 0,
    stops: Sequence[threading.Event] = (),
    tell: Callable[[int], None] | None = None,
) -> Played | None:
    """Play one episode to its end or to `max_steps` (0: no limit); return None if stopped early.

    `tell` is called with the steps so far, every 100 steps.
    """
    rng = None if greedy else np.random.default_rng(seed)
    acting, obs = for_episode(policy), game.start(episode, seed)
    ret = discounted = 0.0
    weight, length, ended = 1.0, 0, False
    while not ended and (length < max_steps or not max_steps):
        if any(stop.is_set() for stop in stops):
            return None
        obs, reward, ended = game.step(acting(obs, rng))
        if game.lost_life:
            acting = for_episode(policy)
        ret += reward
        discounted += weight * reward
        weight *= gamma
        length += 1
        if tell is not None and length % 100 == 0:
            tell(length)
    return Played(episode, seed, ret, discounted, length)


class FlatGame:
    """A Gymnasium environment as in training; filmed if a folder is given, with episodes numbered in order."""

    lost_life = False

    def __init__(self, make: vectors.EnvMaker) -> None:
        with vectors.plain_refusals(make.env_id):
            self.env = make()
        self.single_observation_space: Any = self.env.observation_space
        self.single_action_space: Any = self.env.action_space
        self._discrete = isinstance(self.single_action_space, gym.spaces.Discrete)

    def start(self, episode: int, seed: int) -> np.ndarray:
        return np.asarray(self.env.reset(seed=seed)[0])[None]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        obs, reward, terminated, truncated, info = self.env.step(action.tolist()[0] if self._discrete else action[0])
        self.lost_life = info.get("lost_life") is True
        return np.asarray(obs)[None], float(reward), bool(terminated or truncated)

    def close(self) -> None:
        self.env.close()


class VectorGame:
    """A vector of one environment, for those only available as vectors."""

    lost_life = False

    def __init__(self, envs: VectorEnvs) -> None:
        self.envs = envs
        self.single_observation_space: Any = envs.single_observation_space
        self.single_action_space: Any = envs.single_action_space

    def start(self, episode: int, seed: int) -> np.ndarray:
        return self.envs.reset(seed)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        reached = self.envs.step(action)
        self.lost_life = bool(reached.terminations[0]) and not reached.episodes
        return reached.obs, float(reached.rewards[0]), bool(reached.episodes)

    def close(self) -> None:
        self.envs.close()
