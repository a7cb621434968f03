"""How a run sees its environments, chosen by their ids and the run's args."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.kit.episodes import View
from cleanrl_worker.wrappers import minigrid, players, procgen


def view_of(env_id: str, args: Mapping[str, Any]) -> View | None:
    """How a run of these args sees this environment; None where it is taken as it is."""
    if procgen.is_procgen(env_id) or "distribution_mode" in args:  # an algorithm for Procgen: images as they are
        return procgen.view_of(args)
    if players.is_match(env_id):
        players.register(env_id)
        return players.MatchView()
    if args.get("repeat_action_probability"):
        return StickyView(float(args["repeat_action_probability"]))
    return minigrid.view_of(env_id, args)


@dataclass(frozen=True)
class StickyView:
    """A game of frames whose actions stick: now and then the last one is taken again instead of the new one."""

    probability: float

    def pool(self, env_id: str) -> tuple[str, dict[str, Any]]:
        return env_id, {"repeat_action_probability": self.probability}

    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return gym.wrappers.StickyAction(env, self.probability)

    def space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        return space

    def __call__(self, obs: Any) -> np.ndarray:
        return np.asarray(obs)
