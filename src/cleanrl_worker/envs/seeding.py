"""Resets by seed: every episode can be played again from its own."""

from typing import Any

import gymnasium as gym

from cleanrl_worker.envs.episodes import episode_seed


class SeededEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Seeds every episode: the first after a seeded reset with that seed, the following by their number.

    With the state of its generator alone, an episode of BipedalWalker or dm_control cannot be played again. An
    environment that only continues (`continues`: an Atari game after a lost life) is not seeded then.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.step = env.step  # type: ignore[method-assign]  # a wrapper's own call would cost every step
        self._seed: int | None = None
        self._episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._seed, self._episode = seed, 0
        elif self._seed is not None and not getattr(self.env.unwrapped, "continues", False):
            self._episode += 1
            seed = episode_seed(self._seed, self._episode)
        return self.env.reset(seed=seed, options=options)


class NewWorld(gym.Wrapper[Any, Any, Any, Any]):
    """Box2D's world remembers the contacts of past episodes: a reset by seed repeats itself only in a new one."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        inner: Any = self.unwrapped
        if seed is not None:
            inner._destroy()
            inner.world = type(inner.world)(gravity=inner.world.gravity)
        return self.env.reset(seed=seed, options=options)
