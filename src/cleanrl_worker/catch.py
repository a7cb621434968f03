"""Catch: a small image game of ours, seen like an Atari game, that any image algorithm learns within minutes."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

SIZE, STACK = 84, 4
PADDLE, BALL = 6, 3  # widths in pixels, such that playing at random catches one ball in ten
FALL, MOVE = 5, 6  # pixels a step: a ball is in the air for 16 steps, in which the paddle crosses the screen
DRIFT = 3  # the fastest that a ball moves sideways: where it lands is told by several frames, not by one
HEIGHT = 3
PIXEL = 4  # a pixel of the game in a picture for people


class Catch(gym.Env[np.ndarray, np.int64]):
    """A ball falls, bouncing off the walls; a paddle stays, goes left or right. 1 for a catch, −1 for a miss."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 15}  # type: ignore[misc]

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0, 255, (STACK, SIZE, SIZE), np.uint8)
        self.action_space = gym.spaces.Discrete(3)
        self._frames = np.zeros((STACK, SIZE, SIZE), np.uint8)
        self._ball = self._drift = self._top = self._paddle = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        ball, drift, paddle = self.np_random.random(3)
        self._ball = int(ball * (SIZE - BALL + 1))
        self._drift = int(drift * (2 * DRIFT + 1)) - DRIFT
        self._top = 0
        self._paddle = int(paddle * (SIZE - PADDLE + 1))
        self._frames[:] = self._frame()
        return self._frames.copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._paddle = min(max(self._paddle + (0, -MOVE, MOVE)[int(action)], 0), SIZE - PADDLE)
        self._top += FALL
        self._ball += self._drift
        if not 0 <= self._ball <= SIZE - BALL:
            wall = 0 if self._ball < 0 else SIZE - BALL
            self._ball, self._drift = 2 * wall - self._ball, -self._drift
        landed = self._top + BALL >= SIZE - HEIGHT
        reward = 0.0
        if landed:
            reward = 1.0 if -BALL < self._ball - self._paddle < PADDLE else -1.0
        self._frames[:-1] = self._frames[1:]
        self._frames[-1] = self._frame()
        return self._frames.copy(), reward, landed, False, {}

    def render(self) -> np.ndarray | None:
        if self.render_mode is None:
            return None
        grey = self._frames[-1].repeat(PIXEL, axis=0).repeat(PIXEL, axis=1)
        return np.repeat(grey[:, :, None], 3, axis=2)

    def _frame(self) -> np.ndarray:
        frame = np.zeros((SIZE, SIZE), np.uint8)
        frame[self._top : self._top + BALL, self._ball : self._ball + BALL] = 255
        frame[SIZE - HEIGHT :, self._paddle : self._paddle + PADDLE] = 160
        return frame
