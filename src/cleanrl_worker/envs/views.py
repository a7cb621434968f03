"""Views of a run's environments, chosen by their ids and the run's args."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.envs import atari, minigrid, players, procgen
from cleanrl_worker.envs.episodes import View
from cleanrl_worker.envs.vectors import SMALLEST_SIDE, is_image, register_plugins


def view_of(env_id: str, args: Mapping[str, Any]) -> View | None:
    """Return the view of an environment for these args, None if it is used unchanged."""
    if procgen.is_procgen(env_id) or "distribution_mode" in args:  # an algorithm for Procgen: unchanged images
        return procgen.view_of(args)
    if players.is_match(env_id):
        players.register(env_id)
        return players.MatchView()
    if args.get("network") == "image":
        return None if atari.is_game(env_id) else ImageView()
    if args.get("repeat_action_probability"):
        return StickyView(float(args["repeat_action_probability"]))
    return minigrid.view_of(env_id, args)


def shows_images(env_id: str) -> bool:
    """Return True if an environment returns images; False if it is unknown."""
    if procgen.is_procgen(env_id) or atari.is_game(env_id):
        return True
    try:
        register_plugins(env_id)
        env = gym.make(env_id, disable_env_checker=True)
    except (gym.error.Error, ImportError, SystemExit):  # reported when the environments are made
        return False
    env.close()
    return is_image(env.observation_space)


def plays_frames(families: Sequence[str], env_id: str | None, args: Mapping[str, Any]) -> bool:
    """Return True if an algorithm for these families uses this environment with four stacked frames."""
    return "atari" in families or (args.get("network") == "image" and env_id is not None and atari.is_game(env_id))


@dataclass(frozen=True)
class ImageView:
    """A view with unchanged images."""

    def pool(self, env_id: str) -> tuple[str, dict[str, Any]]:
        return env_id, {}

    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        self.space(env.observation_space)
        return env

    def space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        if not is_image(space):
            smallest = f"{SMALLEST_SIDE}×{SMALLEST_SIDE}"
            raise SystemExit(f"the image network needs bytes of {smallest} or more, not {space}; use --network auto")
        return space

    def __call__(self, obs: Any) -> np.ndarray:
        return np.asarray(obs)


@dataclass(frozen=True)
class StickyView:
    """A view of a game with sticky actions: at random, the last action is repeated instead of the new one."""

    probability: float

    def pool(self, env_id: str) -> tuple[str, dict[str, Any]]:
        return env_id, {"repeat_action_probability": self.probability}

    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return gym.wrappers.StickyAction(env, self.probability)

    def space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        return space

    def __call__(self, obs: Any) -> np.ndarray:
        return np.asarray(obs)
