"""PettingZoo's multiplayer Atari games: one environment in which all players act simultaneously."""

import importlib
import importlib.util
from collections import deque
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.envs.atari import SIZE, SKIP, STACK, Shrinker
from cleanrl_worker.envs.pools import nearest

FRAMES = STACK
"""stacked screens of an observation"""


def is_match(env_id: str) -> bool:
    """Return True if an id is spelled like PettingZoo's: pong_v3, boxing_v2."""
    name, _, version = env_id.rpartition("_v")
    return name.isidentifier() and name.islower() and version.isdecimal()


def register(env_id: str) -> int:
    """Register this game with Gymnasium and return its number of players; refuse an unavailable game."""
    if env_id not in gym.registry:
        _register(env_id)
    match = Match(env_id)
    match.close()
    return len(match.players)


def _register(env_id: str) -> None:
    for package, extra in (("pettingzoo", "multiagent"), ("multi_agent_ale_py", "multiagent"), ("ale_py", "atari")):
        if importlib.util.find_spec(package) is None:
            install = f"pip install 'mosaic-rl[{extra}]'"
            raise SystemExit(f"{env_id} needs {package.replace('_', '-')}: {install}")
    folder = Path(importlib.import_module("pettingzoo.atari").__file__ or "").parent
    games = sorted(path.stem for path in folder.glob("*_v[0-9].py"))
    if env_id not in games:
        raise SystemExit(f"{env_id!r} is no game of PettingZoo{nearest(env_id, games) or ': ' + ', '.join(games)}")
    gym.register(env_id, entry_point=f"{__name__}:Match", kwargs={"game": env_id})


class Match(gym.Env[np.ndarray, np.ndarray]):
    """A game with simultaneous actions; the reward is the first player's, `rewards` holds those of all.

    A player observes four grey screens of 84×84 and, as all see the same, one plane per player: 1 for its own, 0 for
    the others. The game ends for all players when it ends for one.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(self, game: str, render_mode: str | None = None) -> None:
        module = importlib.import_module(f"pettingzoo.atari.{game}")
        roms = Path(importlib.import_module("ale_py").__file__ or "").parent / "roms"
        # the parallel game inside PettingZoo's turn-based one, whose action checks are not needed here
        self._game: Any = module.raw_env(auto_rom_install_path=str(roms)).env
        self.players: list[str] = list(self._game.possible_agents)
        self.render_mode = render_mode
        self.rewards = np.zeros(len(self.players))
        """rewards of the last step by player, even if it ended the game"""
        height, width, _ = self._game.observation_space(self.players[0]).shape
        self._shrink = Shrinker(height, width)
        planes = np.eye(len(self.players), dtype=np.uint8)[:, :, None, None]
        self._planes = np.broadcast_to(planes, (*planes.shape[:2], SIZE, SIZE))
        self._stack: deque[np.ndarray] = deque(maxlen=FRAMES)
        shape = (len(self.players), FRAMES + len(self.players), SIZE, SIZE)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        actions = [int(self._game.action_space(player).n) for player in self.players]
        self.action_space = gym.spaces.MultiDiscrete(actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        screens, _ = self._game.reset(seed=None if seed is None else seed % 2**31)  # the emulator's seeds have 31 bits
        screen = self._seen(screens[self.players[0]])
        self._stack.extend([screen] * FRAMES)
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        chosen = dict(zip(self.players, (int(one) for one in action), strict=True))
        self.rewards = np.zeros(len(self.players))
        shown: list[np.ndarray] = []
        terminated = truncated = False
        for _ in range(SKIP):
            screens, rewards, terminations, truncations, _ = self._game.step(chosen)
            self.rewards += [rewards[player] for player in self.players]
            shown.append(screens[self.players[0]])
            terminated, truncated = any(terminations.values()), any(truncations.values())
            if terminated or truncated:
                break
        self._stack.append(self._seen(np.maximum.reduce(shown[-2:])))
        return self._obs(), float(self.rewards[0]), terminated, truncated and not terminated, {}

    def render(self) -> np.ndarray:
        return np.asarray(self._game.ale.getScreenRGB())

    def close(self) -> None:
        self._game.close()

    def _seen(self, screen: np.ndarray) -> np.ndarray:
        """Return the blue channel of a screen, downsampled by area to 84×84."""
        return self._shrink(screen[:, :, 2])

    def _obs(self) -> np.ndarray:
        frames = np.broadcast_to(np.stack(self._stack), (len(self.players), FRAMES, SIZE, SIZE))
        return np.concatenate([frames, self._planes], axis=1)


class MatchView:
    """A view with unchanged observations, one part per player. It keeps the created matches in order."""

    def __init__(self) -> None:
        self.matches: list[Match] = []

    def pool(self, env_id: str) -> tuple[str, dict[str, Any]]:
        raise SystemExit(f"EnvPool has no games for several players such as {env_id}: use --env-backend auto")

    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        assert isinstance(env.unwrapped, Match)
        self.matches.append(env.unwrapped)
        return env

    def space(self, space: gym.Space[Any]) -> gym.spaces.Box:
        assert isinstance(space, gym.spaces.Box)
        return space

    def __call__(self, obs: Any) -> np.ndarray:
        return np.asarray(obs)
