"""MiniGrid's and BabyAI's observations as one array: the cells around the agent and, optionally, the mission."""

import contextlib
import io
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import gymnasium as gym
import numpy as np

WORDS = 72
"""maximum words of a mission in an observation; the longest of BabyAI's levels fit"""
# Words are hashed to 1 to 255 without a vocabulary: the first initial checksum without collisions among MiniGrid's and
# BabyAI's own words.
SALT = 649


def is_grid(env_id: str) -> bool:
    """Return True if an environment is one of MiniGrid's or BabyAI's."""
    return env_id.startswith(("MiniGrid-", "BabyAI-"))


def view_of(env_id: str, args: Mapping[str, Any]) -> "GridView | None":
    """Return the view of an environment for these args, None if observations are used unchanged."""
    network = args.get("network", "auto")
    if network != "grid" and not is_grid(env_id):
        return None
    return GridView(mission=bool(args.get("mission")), flat=network not in ("grid", "auto"))


@dataclass(frozen=True)
class GridView:
    """An agent's view of a grid world, for any backend."""

    mission: bool = False
    """append the words of the instruction to the cells"""
    flat: bool = False
    """flatten the cells, for a network that does not support grids"""

    def pool(self, env_id: str) -> tuple[str, dict[str, Any]]:
        return env_id, {}

    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return GridObservation(env, self)

    def space(self, space: gym.Space[Any]) -> gym.spaces.Box:
        """Return the view's observation space; refuse one that is not a grid."""
        cells = space["image"] if isinstance(space, gym.spaces.Dict) and "image" in space.spaces else None
        if not isinstance(cells, gym.spaces.Box) or len(cells.shape) != 3 or cells.shape[2] != 3:
            raise SystemExit(f"the grid network needs MiniGrid's observations, not {space}; use --network auto")
        size = int(np.prod(cells.shape)) + WORDS * self.mission
        return gym.spaces.Box(0, 255, (size,) if self.mission or self.flat else cells.shape, np.uint8)

    def __call__(self, obs: Mapping[str, Any]) -> np.ndarray:
        """Return the view of one Gymnasium observation, or of EnvPool's batch."""
        cells: np.ndarray = obs["image"]
        many = cells.shape[:-3]
        if not self.mission:
            return cells.reshape(*many, -1) if self.flat else cells
        texts = [row.tobytes().rstrip(b"\0").decode() for row in obs["mission"]] if many else [obs["mission"]]
        words = np.array([word_numbers(text) for text in texts], np.uint8).reshape(*many, WORDS)
        return np.concatenate([cells.reshape(*many, -1), words], axis=-1)


class GridObservation(gym.Wrapper[np.ndarray, Any, Any, Any]):
    """A grid world with a `GridView`; BabyAI's prints during level generation are discarded."""

    def __init__(self, env: gym.Env[Any, Any], view: GridView) -> None:
        super().__init__(env)
        self._view = view
        self.observation_space = view.space(env.observation_space)

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        with contextlib.redirect_stdout(io.StringIO()):
            given: tuple[Any, dict[str, Any]] = self.env.reset(**options)
        return self._view(given[0]), given[1]

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        given: tuple[Any, Any, bool, bool, dict[str, Any]] = self.env.step(action)
        return self._view(given[0]), *given[1:]


@lru_cache(maxsize=4096)
def word_numbers(mission: str) -> tuple[int, ...]:
    """Return the words of a mission as numbers from 1 to 255, padded with 0."""
    words = re.findall(r"[a-z]+", mission.lower())[:WORDS]
    return (*(zlib.crc32(word.encode(), SALT) % 255 + 1 for word in words), *(0,) * (WORDS - len(words)))
