"""The Atari wrappers of Stable-Baselines3 and CleanRL, by their names (Mnih et al. 2015; Machado et al. 2018)."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import gymnasium
import numpy as np

Step = Tuple[Any, Any, bool, bool, Dict[str, Any]]
_Wrapper: Any = gymnasium.Wrapper
_RewardWrapper: Any = gymnasium.RewardWrapper
_ObservationWrapper: Any = gymnasium.ObservationWrapper
NOOP, FIRE, UP = 0, 1, 2


class StickyActionEnv(_Wrapper):
    """A wrapper that repeats the previous action with a given probability."""

    def __init__(self, env: Any, action_repeat_probability: float) -> None:
        super().__init__(env)
        self._probability, self._previous = action_repeat_probability, NOOP

    def reset(self, **options: Any) -> Tuple[Any, Any]:
        self._previous = NOOP
        return self.env.reset(**options)

    def step(self, action: Any) -> Step:
        if self.unwrapped.np_random.random() >= self._probability:
            self._previous = action
        return self.env.step(self._previous)


class NoopResetEnv(_Wrapper):
    """A wrapper that begins an episode with 1 to `noop_max` no-op steps."""

    def __init__(self, env: Any, noop_max: int = 30) -> None:
        super().__init__(env)
        self.noop_max, self.noop_action = noop_max, NOOP
        self.override_num_noops = None

    def reset(self, **options: Any) -> Tuple[Any, Any]:
        obs, info = self.env.reset(**options)
        count = self.override_num_noops or int(self.unwrapped.np_random.integers(1, self.noop_max + 1))
        for _ in range(count):
            obs, _, terminated, truncated, info = self.env.step(self.noop_action)
            if terminated or truncated:
                obs, info = self.env.reset()
        return obs, info


class FireResetEnv(_Wrapper):
    """A wrapper that starts games that wait for FIRE."""

    def reset(self, **options: Any) -> Tuple[Any, Any]:
        obs, info = self.env.reset(**options)
        for action in (FIRE, UP):
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                obs, info = self.env.reset()
        return obs, info


class EpisodicLifeEnv(_Wrapper):
    """A wrapper that ends an episode at the loss of a life, and resets the game only when it is over."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.lives, self.was_real_done = 0, True

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.was_real_done = terminated or truncated
        lives = self.unwrapped.ale.lives()
        lost, self.lives = 0 < lives < self.lives, lives
        return obs, reward, bool(terminated or lost), truncated, info

    def reset(self, **options: Any) -> Tuple[Any, Any]:
        if self.was_real_done:
            obs, info = self.env.reset(**options)
        else:
            obs, _, terminated, truncated, info = self.env.step(NOOP)
            if terminated or truncated:
                obs, info = self.env.reset(**options)
        self.lives = self.unwrapped.ale.lives()
        return obs, info


class MaxAndSkipEnv(_Wrapper):
    """A wrapper that repeats each action `skip` times, and returns the maximum of the last two frames."""

    def __init__(self, env: Any, skip: int = 4) -> None:
        super().__init__(env)
        self._skip = skip

    def step(self, action: Any) -> Step:
        total = 0.0
        frames: List[Any] = []
        for _ in range(self._skip):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            frames = [*frames[-1:], obs]
            if terminated or truncated:
                break
        return np.max(frames, axis=0), total, terminated, truncated, info


class ClipRewardEnv(_RewardWrapper):
    """A wrapper that returns the sign of each reward."""

    def reward(self, reward: Any) -> float:
        return float(np.sign(float(reward)))


class WarpFrame(_ObservationWrapper):
    """A wrapper that returns grey frames, 84 × 84 × 1."""

    def __init__(self, env: Any, width: int = 84, height: int = 84) -> None:
        super().__init__(env)
        self._size = (width, height)
        self.observation_space = gymnasium.spaces.Box(0, 255, (height, width, 1), env.observation_space.dtype)

    def observation(self, frame: Any) -> Any:
        import cv2

        grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
        return cv2.resize(grey, self._size, interpolation=cv2.INTER_AREA)[:, :, None]


class AtariWrapper(_Wrapper):
    """All of these wrappers, in their usual order."""

    def __init__(
        self,
        env: Any,
        noop_max: int = 30,
        frame_skip: int = 4,
        screen_size: int = 84,
        terminal_on_life_loss: bool = True,
        clip_reward: bool = True,
        action_repeat_probability: float = 0.0,
    ) -> None:
        if action_repeat_probability > 0.0:
            env = StickyActionEnv(env, action_repeat_probability)
        if noop_max > 0:
            env = NoopResetEnv(env, noop_max)
        if frame_skip > 1:
            env = MaxAndSkipEnv(env, frame_skip)
        if terminal_on_life_loss:
            env = EpisodicLifeEnv(env)
        if "FIRE" in env.unwrapped.get_action_meanings():
            env = FireResetEnv(env)
        env = WarpFrame(env, screen_size, screen_size)
        super().__init__(ClipRewardEnv(env) if clip_reward else env)
