"""MiniGrid's and BabyAI's observations as one array: the cells around the agent and, if asked, the mission's words."""

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
"""words of a mission that an observation holds; the longest of BabyAI's levels fit"""
# A word becomes a number from 1 to 255 without a list of words: the first start of the checksum with which no two of
# MiniGrid's and BabyAI's own words meet.
SALT = 649


def is_grid(env_id: str) -> bool:
    """Whether an environment is one of MiniGrid's or BabyAI's."""
    return env_id.startswith(("MiniGrid-", "BabyAI-"))


def view_of(env_id: str, args: Mapping[str, Any]) -> "GridView | None":
    """How a run of these args sees this environment; None where observations are taken as they are."""
    network = args.get("network", "auto")
    if network != "grid" and not is_grid(env_id):
        return None
    return GridView(mission=bool(args.get("mission")), flat=network not in ("grid", "auto"))


@dataclass(frozen=True)
class GridView:
    """What an agent sees of a grid world, whoever runs it."""

    mission: bool = False
    """the words of the instruction follow the cells"""
    flat: bool = False
    """one row of numbers, for a network that knows no grids"""

    def pool(self, env_id: str) -> tuple[str, dict[str, Any]]:
        return env_id, {}

    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return GridObservation(env, self)

    def space(self, space: gym.Space[Any]) -> gym.spaces.Box:
        """What becomes of an observation space; one line for what is no grid."""
        cells = space["image"] if isinstance(space, gym.spaces.Dict) and "image" in space.spaces else None
        if not isinstance(cells, gym.spaces.Box) or len(cells.shape) != 3 or cells.shape[2] != 3:
            raise SystemExit(f"the grid network needs MiniGrid's observations, not {space}; use --network auto")
        size = int(np.prod(cells.shape)) + WORDS * self.mission
        return gym.spaces.Box(0, 255, (size,) if self.mission or self.flat else cells.shape, np.uint8)

    def __call__(self, obs: Mapping[str, Any]) -> np.ndarray:
        """One observation of Gymnasium, or EnvPool's of many environments."""
        cells: np.ndarray = obs["image"]
        many = cells.shape[:-3]
        if not self.mission:
            return cells.reshape(*many, -1) if self.flat else cells
        texts = [row.tobytes().rstrip(b"\0").decode() for row in obs["mission"]] if many else [obs["mission"]]
        words = np.array([word_numbers(text) for text in texts], np.uint8).reshape(*many, WORDS)
        return np.concatenate([cells.reshape(*many, -1), words], axis=-1)


class GridObservation(gym.Wrapper[np.ndarray, Any, Any, Any]):
    """A grid world seen through a `GridView`; what BabyAI prints while it looks for a level is dropped."""

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
    """The words of a mission as numbers from 1 to 255, filled up with 0."""
    words = re.findall(r"[a-z]+", mission.lower())[:WORDS]
    return (*(zlib.crc32(word.encode(), SALT) % 255 + 1 for word in words), *(0,) * (WORDS - len(words)))
