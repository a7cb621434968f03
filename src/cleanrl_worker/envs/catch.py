"""Catch, our small image game with Atari-like observations that any image algorithm learns within minutes."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

SIZE, STACK = 84, 4
PADDLE, HEIGHT, BALL = 14, 4, 6  # in pixels: large enough for a network's first layer
FALL, MOVE = 6, 7  # pixels per step: a ball falls for 13 steps, in which the paddle can cross the screen
DRIFT = 3  # maximum sideways speed of a ball: several frames are needed to predict its landing
FAR = 22  # minimum distance of the landing from the paddle's start: a random policy catches one in ten
LANDING = -(-(SIZE - HEIGHT - BALL) // FALL)
ROOM = SIZE - BALL
PIXEL = 4  # scale of rendered frames


class Catch(gym.Env[np.ndarray, np.int64]):
    """A falling ball bounces off the walls; a paddle stays, goes left or right. Reward 1 for a catch, −1 for a miss."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 15}  # type: ignore[misc]

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0, 255, (STACK, SIZE, SIZE), np.uint8)
        self.action_space = gym.spaces.Discrete(3)
        self._frames = np.zeros((STACK, SIZE, SIZE), np.uint8)
        self._phase = self._drift = self._steps = self._paddle = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps, self._drift = 0, int(self.np_random.integers(DRIFT + 1))
        distance = 0
        while distance < FAR:
            self._phase = int(self.np_random.integers(2 * ROOM))
            self._paddle = int(self.np_random.integers(SIZE - PADDLE + 1))
            distance = abs(self._ball(LANDING) + BALL // 2 - self._paddle - PADDLE // 2)
        self._frames[:] = self._frame()
        return self._frames.copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._paddle = min(max(self._paddle + (0, -MOVE, MOVE)[int(action)], 0), SIZE - PADDLE)
        self._steps += 1
        landed = self._steps == LANDING
        reward = 0.0
        if landed:
            reward = 1.0 if -BALL < self._ball(LANDING) - self._paddle < PADDLE else -1.0
        self._frames[:-1] = self._frames[1:]
        self._frames[-1] = self._frame()
        return self._frames.copy(), reward, landed, False, {}

    def render(self) -> np.ndarray | None:
        if self.render_mode is None:
            return None
        grey = self._frames[-1].repeat(PIXEL, axis=0).repeat(PIXEL, axis=1)
        return np.repeat(grey[:, :, None], 3, axis=2)

    def _ball(self, steps: int) -> int:
        """Return the ball's left edge after some steps, reflected at the walls."""
        return abs((self._phase + self._drift * steps + ROOM) % (2 * ROOM) - ROOM)

    def _frame(self) -> np.ndarray:
        frame = np.zeros((SIZE, SIZE), np.uint8)
        top, left = FALL * self._steps, self._ball(self._steps)
        frame[top : top + BALL, left : left + BALL] = 255
        frame[SIZE - HEIGHT :, self._paddle : self._paddle + PADDLE] = 160
        return frame
