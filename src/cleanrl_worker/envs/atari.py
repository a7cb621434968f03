"""An Atari game with DQN's preprocessing, on ale-py: four grey frames of 84×84, a frame skip of four.

No-op starts, FIRE if a game waits for it, lives as episodes, the maximum of the last two frames. Rewards are raw:
`envs.vectors.GameEnvs` clips them and counts whole games for training.
"""

import importlib.util
from functools import reduce
from math import gcd
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from cleanrl_worker.envs import pools
from cleanrl_worker.envs.registration import OWN
from cleanrl_worker.envs.vectors import register_plugins

SIZE, STACK = 84, 4
SKIP = 4
NO_OPS = 30
FRAMES = 108_000  # half an hour of play, the usual limit
NO_OP, FIRE = 0, 1  # ale-py's actions


class Atari(gym.Env[np.ndarray, np.int64]):
    """A game, named in any spelling; with `lives`, a lost one ends the episode and a reset continues with the next.

    `game_over` distinguishes the end of a game from that of a life; `ended_game` keeps its value of the last step even
    after a reset. Without `lives`, a step's `lost_life` reports a lost life after which the game continues.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": pools.ATARI_FPS}  # type: ignore[misc]

    def __init__(self, game: str, lives: bool = True, no_ops: int = NO_OPS, render_mode: str | None = None) -> None:
        register_plugins(f"ALE/{pools.atari_game(game)}-v5")
        env_id = pools.find_game(game, pool=False)
        raw: dict[str, Any] = {"frameskip": 1, "repeat_action_probability": 0.0, "obs_type": "grayscale"}
        raw |= {"max_num_frames_per_episode": FRAMES, "disable_env_checker": True}
        self._env = gym.make(env_id, render_mode=render_mode, **raw)
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0, 255, (STACK, SIZE, SIZE), np.uint8)
        self.action_space = self._env.action_space
        self._ale: Any = self._env.unwrapped.ale  # type: ignore[attr-defined]
        self._actions = self._ale.getMinimalActionSet()
        self._waits = FIRE in [int(action.value) for action in self._actions]
        self._lives_end, self._no_ops = lives, no_ops
        height, width = self._ale.getScreenDims()
        self._screens = np.zeros((2, height, width), np.uint8)
        self._shrink = Shrinker(height, width)
        self._stack = np.zeros((STACK, SIZE, SIZE), np.uint8)
        self._lives = 0
        self.game_over = True
        self.ended_game = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start a new game; after a lost life and without a seed, continue with the next life."""
        super().reset(seed=seed)
        if seed is None and self.continues:
            self._go_on()
            return self._stack.copy(), {}
        self._env.reset(seed=seed)
        for _ in range(int(self.np_random.integers(1, self._no_ops + 1)) if self._no_ops else 0):
            self._ale.act(NO_OP)
            if self._ale.game_over():
                self._env.reset()
        if self._waits:
            self._ale.act(FIRE)
        self._look()
        self._stack[:] = self._small()
        self._lives, self.game_over = self._ale.lives(), False
        return self._stack.copy(), {}

    @property
    def continues(self) -> bool:
        """Return True if a reset without a seed continues the same game."""
        return not self.game_over

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, chosen = 0.0, self._actions[int(action)]
        for frame in range(SKIP):
            reward += self._ale.act(chosen)
            over = self._ale.game_over()
            if over or frame >= SKIP - 2:  # if the game ends earlier, the screen at its end
                self._ale.getScreenGrayscale(self._screens[frame % 2])
            if over:
                break
        if frame < SKIP - 1:
            self._screens[1 - frame % 2] = 0  # the other is from the previous step
        truncated = bool(self._ale.game_truncated())
        self.game_over = self.ended_game = bool(self._ale.game_over())
        self._push()
        lives, self._lives = self._lives, self._ale.lives()
        lost = self._lives < lives and not self.game_over
        if lost and not self._lives_end:
            self._go_on()
        terminated = (lost and self._lives_end) or (self.game_over and not truncated)
        told = {"lost_life": True} if lost and not self._lives_end else {}
        return self._stack.copy(), float(reward), terminated, truncated, told

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def _go_on(self) -> None:
        """Start the next life with FIRE if the game waits for it, else with a no-op."""
        self._ale.act(FIRE if self._waits else NO_OP)
        self._look()
        self._push()

    def _look(self) -> None:
        """Read only the current screen."""
        self._screens[0] = 0
        self._ale.getScreenGrayscale(self._screens[1])

    def _push(self) -> None:
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = self._small()

    def _small(self) -> np.ndarray:
        """Return the maximum of the two frames (sprites flicker), downsampled by area."""
        return self._shrink(np.maximum(self._screens[0], self._screens[1]))


def is_game(env_id: str) -> bool:
    """Return True for a game that `vectors.atari` makes: one of Atari's in any spelling, or one of ours."""
    if env_id in OWN or env_id.startswith("ALE/") or "NoFrameskip" in env_id:
        return True
    if env_id in gym.registry or not env_id.endswith("-v5") or importlib.util.find_spec("ale_py") is None:
        return False
    # EnvPool's spelling, Pong-v5, matches MuJoCo's ids as well
    register_plugins(f"ALE/{pools.atari_game(env_id)}-v5")
    return pools.same_game(env_id, (name for name in gym.registry if name.startswith("ALE/"))) is not None


class Shrinker:
    """Area downsampling of screens of one size to 84×84, bit-identical to OpenCV.

    OpenCV, which the other backends use, computes in float32. Integers are faster, and exact: the result only differs
    where a mean is half-way between two integers. Only there does float32's rounding matter.
    """

    def __init__(self, height: int, width: int) -> None:
        (_, tall), (_, wide) = parts(height), parts(width)
        # For 250 rows, the maximum, this is 5,000: any other mean is at least 1 / 5,000 from half-way, and float32's
        # error is smaller, nine roundings of 255 (1.4e-4).
        self._area = tall * wide
        self._kind = np.min_scalar_type(256 * self._area)
        self._rows, self._columns = Axis(height, width, self._kind), Axis(width, SIZE, self._kind)
        # by pixel, in column order: the offsets of its columns and rows, and its shares of both
        x, y = np.divmod(np.arange(SIZE * SIZE), SIZE)
        at = self._columns.at[:, None, x] + width * self._rows.at[None, :, y]
        self._at = np.ascontiguousarray(at.transpose(2, 0, 1))
        self._across = np.ascontiguousarray(self._columns.shares[:, x].T[:, :, None])
        self._down = np.ascontiguousarray(self._rows.shares[:, y].T)

    def __call__(self, screen: np.ndarray) -> np.ndarray:
        # transposed: contiguous lines are fast to gather and add
        half = np.ascontiguousarray(self._rows.sums(screen.astype(self._kind)).T)
        raised = self._columns.sums(half) + self._area // 2
        means = raised // self._area
        if (halfway := np.flatnonzero(means * self._area == raised)).size:
            means.reshape(-1)[halfway] = self._as_float32(screen, halfway)
        return means.T.astype(np.uint8, order="C")

    def _as_float32(self, screen: np.ndarray, pixels: np.ndarray) -> np.ndarray:
        """Return these pixels computed in OpenCV's order: the columns of an area first, then its rows."""
        seen = screen.reshape(-1).take(self._at.take(pixels, axis=0)) * self._across.take(pixels, axis=0)
        half = reduce(np.add, seen.swapaxes(0, 1)) * self._down.take(pixels, axis=0)
        return np.rint(reduce(np.add, half.T))


class Axis:
    """The lines of a screen (rows or columns) that each of 84 pixels covers, with their shares, possibly 0."""

    def __init__(self, lines: int, length: int, kind: np.dtype[Any]) -> None:
        line, pixel = parts(lines)
        begins = pixel * np.arange(SIZE)
        most = int((-(-(begins + pixel) // line) - begins // line).max())
        at = begins // line + np.arange(most)[:, None]
        covered = np.minimum(begins + pixel, (at + 1) * line) - np.maximum(begins, at * line)
        covered = np.maximum(covered, 0)
        self.at = np.minimum(at, lines - 1)
        self.shares = (covered / pixel).astype(np.float32)
        # repeated for every pixel of a line: twice as fast in numpy
        self._weights = np.repeat(covered[:, :, None], length, axis=2).astype(kind)
        self._gathered = np.empty_like(self._weights)

    def sums(self, lines: np.ndarray) -> np.ndarray:
        """Return the sums for the 84 pixels, weighted by the covered parts of each line."""
        lines.take(self.at, axis=0, out=self._gathered, mode="clip")  # other modes use a buffer
        np.multiply(self._gathered, self._weights, out=self._gathered)
        return reduce(np.add, self._gathered)


def parts(lines: int) -> tuple[int, int]:
    """Return the minimum numbers of equal parts in a line of a screen, and in one of the 84 pixels."""
    common = gcd(lines, SIZE)
    return SIZE // common, lines // common
