"""Seeded resets: every episode can be replayed from its own seed."""

from typing import Any

import gymnasium as gym

from cleanrl_worker.envs.episodes import episode_seed


class SeededEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that seeds every episode: the first with a reset's seed, the following by their number.

    The generator's state alone cannot replay an episode of BipedalWalker or dm_control. An environment that only
    continues (`continues`: an Atari game after a lost life) is not reseeded.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.step = env.step  # type: ignore[method-assign]  # a wrapper's own method would slow down every step
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
    """A wrapper that recreates Box2D's world at seeded resets: it keeps past contacts, so a seed would not repeat."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        inner: Any = self.unwrapped
        if seed is not None:
            inner._destroy()
            inner.world = type(inner.world)(gravity=inner.world.gravity)
        return self.env.reset(seed=seed, options=options)
