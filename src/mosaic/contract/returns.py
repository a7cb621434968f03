"""The return of a run: its tags, and its newest and best value computed from logged rows."""

from __future__ import annotations

import math
from collections import deque

EPISODE_RETURNS = ("charts/episodic_return", "eval/episode_return")
EPISODE_LENGTHS = ("charts/episodic_length", "eval/episode_length")
MEAN_RETURN = "charts/mean_return"
"""the mean over all episodes since the last row, or over the last 100 if these are more"""
RECENT_EPISODES = 100  # as many as the benchmarks of Gymnasium and CleanRL average over
BEST_EPISODES = 20  # with fewer, no best is chosen


class RunReturn:
    """A run's return, updated by rows or events: its logged MEAN_RETURN, else the mean of recent episodes."""

    def __init__(self) -> None:
        self.episodes = 0
        self.last: float | None = None
        """of one episode"""
        self.restart()

    def restart(self) -> None:
        """Forget all but the counts: returns of different environments are not comparable."""
        self.behind = 0
        """episodes since then"""
        self.best: float | None = None
        self._logged: float | None = None
        self._recent: deque[float] = deque(maxlen=RECENT_EPISODES)

    @property
    def value(self) -> float | None:
        """Return the newest value, None before the first episode has ended."""
        if self._logged is not None:
            return self._logged
        return sum(self._recent) / len(self._recent) if self._recent else None

    def add_episode(self, value: float) -> None:
        """Add the return of one episode."""
        self.episodes += 1
        self.behind += 1
        self.last = value
        self._recent.append(value)
        if self._logged is None and self.behind >= BEST_EPISODES:
            self._consider(self.value)

    def add_mean(self, value: float, episodes: int | None = None) -> None:
        """Add a mean that the run logged, with its number of episodes if known."""
        if self._logged is None:
            self.best = None  # of another figure
        self._logged = value
        if (self.behind if episodes is None else episodes) >= BEST_EPISODES:
            self._consider(value)

    def _consider(self, value: float | None) -> None:
        if value is not None and math.isfinite(value):
            self.best = value if self.best is None else max(self.best, value)
