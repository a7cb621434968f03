"""An Atari game as DQN's authors prepared it, frame by frame on ale-py: four grey screens of 84×84, one action in four.

No-op starts, FIRE where a game waits for it, lives as episodes, the larger of the last two frames. Rewards are the
game's own: whoever trains clips them and counts whole games (`envs.vectors.GameEnvs`).
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
    """One game, named in any spelling; with `lives`, a lost one ends the episode and a reset goes on with the next.

    `game_over` tells the end of a game from that of a life; `ended_game` is what it was in the last step, also when
    another game has begun since. Without `lives`, a step's `lost_life` tells of one after which the game goes on.
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
        """Start a new game; after a lost life, and without a seed, the next life of the same one."""
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
        """Return True while a reset without a seed is the next life of the same game."""
        return not self.game_over

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, chosen = 0.0, self._actions[int(action)]
        for frame in range(SKIP):
            reward += self._ale.act(chosen)
            over = self._ale.game_over()
            if over or frame >= SKIP - 2:  # of an end before the last two frames, the screen that was reached
                self._ale.getScreenGrayscale(self._screens[frame % 2])
            if over:
                break
        if frame < SKIP - 1:
            self._screens[1 - frame % 2] = 0  # the other is of the step before
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
        """Start the next life, for which some games wait: FIRE, or a frame of nothing."""
        self._ale.act(FIRE if self._waits else NO_OP)
        self._look()
        self._push()

    def _look(self) -> None:
        """Take the present screen alone."""
        self._screens[0] = 0
        self._ale.getScreenGrayscale(self._screens[1])

    def _push(self) -> None:
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = self._small()

    def _small(self) -> np.ndarray:
        """The larger of the two frames (sprites flicker), each pixel the mean of the area that it covers."""
        return self._shrink(np.maximum(self._screens[0], self._screens[1]))


def is_game(env_id: str) -> bool:
    """Return True for a game of frames that `vectors.atari` makes: one of Atari's in any spelling, or one of ours."""
    if env_id in OWN or env_id.startswith("ALE/") or "NoFrameskip" in env_id:
        return True
    if env_id in gym.registry or not env_id.endswith("-v5") or importlib.util.find_spec("ale_py") is None:
        return False
    # EnvPool's spelling, Pong-v5, is that of MuJoCo's robots as well
    register_plugins(f"ALE/{pools.atari_game(env_id)}-v5")
    return pools.same_game(env_id, (name for name in gym.registry if name.startswith("ALE/"))) is not None


class Shrinker:
    """Makes 84×84 pixels of screens of one size, each the mean of the area it covers: bit for bit what OpenCV makes.

    OpenCV, which the other backends use, computes in float32. Whole numbers are faster, and exact: they give the same
    but where a mean lies half-way between two numbers. There alone it matters how float32 rounds.
    """

    def __init__(self, height: int, width: int) -> None:
        (_, tall), (_, wide) = parts(height), parts(width)
        # Of 250 rows, the most there are, this is 5,000: any other mean is 1 / 5,000 or more from half-way, and float32
        # errs by less, nine roundings of 255 (1.4e-4).
        self._area = tall * wide
        self._kind = np.min_scalar_type(256 * self._area)
        self._rows, self._columns = Axis(height, width, self._kind), Axis(width, SIZE, self._kind)
        # by pixel, column after column: where the columns and rows that it covers lie, and its shares of both
        x, y = np.divmod(np.arange(SIZE * SIZE), SIZE)
        at = self._columns.at[:, None, x] + width * self._rows.at[None, :, y]
        self._at = np.ascontiguousarray(at.transpose(2, 0, 1))
        self._across = np.ascontiguousarray(self._columns.shares[:, x].T[:, :, None])
        self._down = np.ascontiguousarray(self._rows.shares[:, y].T)

    def __call__(self, screen: np.ndarray) -> np.ndarray:
        # columns as rows: lines in one piece of memory are quickly gathered and added
        half = np.ascontiguousarray(self._rows.sums(screen.astype(self._kind)).T)
        raised = self._columns.sums(half) + self._area // 2
        means = raised // self._area
        if (halfway := np.flatnonzero(means * self._area == raised)).size:
            means.reshape(-1)[halfway] = self._as_float32(screen, halfway)
        return means.T.astype(np.uint8, order="C")

    def _as_float32(self, screen: np.ndarray, pixels: np.ndarray) -> np.ndarray:
        """These pixels in OpenCV's order: the columns of an area one after the other, then its rows."""
        seen = screen.reshape(-1).take(self._at.take(pixels, axis=0)) * self._across.take(pixels, axis=0)
        half = reduce(np.add, seen.swapaxes(0, 1)) * self._down.take(pixels, axis=0)
        return np.rint(reduce(np.add, half.T))


class Axis:
    """Which lines of a screen (rows, or columns) each of 84 pixels covers, and how much of each: 0 of some."""

    def __init__(self, lines: int, length: int, kind: np.dtype[Any]) -> None:
        line, pixel = parts(lines)
        begins = pixel * np.arange(SIZE)
        most = int((-(-(begins + pixel) // line) - begins // line).max())
        at = begins // line + np.arange(most)[:, None]
        covered = np.minimum(begins + pixel, (at + 1) * line) - np.maximum(begins, at * line)
        covered = np.maximum(covered, 0)
        self.at = np.minimum(at, lines - 1)
        self.shares = (covered / pixel).astype(np.float32)
        # written out for every pixel of a line: numpy is twice as fast with it
        self._weights = np.repeat(covered[:, :, None], length, axis=2).astype(kind)
        self._gathered = np.empty_like(self._weights)

    def sums(self, lines: np.ndarray) -> np.ndarray:
        """What lies on the 84, by the parts of a line that they cover."""
        lines.take(self.at, axis=0, out=self._gathered, mode="clip")  # other modes go through a buffer
        np.multiply(self._gathered, self._weights, out=self._gathered)
        return reduce(np.add, self._gathered)


def parts(lines: int) -> tuple[int, int]:
    """The least numbers of parts that make up a line of a screen, and one of the 84 pixels."""
    common = gcd(lines, SIZE)
    return SIZE // common, lines // common
