"""Counting the episodes of a whole rollout at once: step by step it would cost a tenth of a compiled rollout."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from cleanrl_worker.envs.episodes import Episode, Episodes
from cleanrl_worker.envs.finite import LARGE


def add_rollout(
    episodes: Episodes, rewards: np.ndarray, ends: np.ndarray, real: np.ndarray | None = None
) -> list[tuple[int, list[Episode]]]:
    """Return the ended episodes by their last steps; all arrays have shape (steps, environments).

    A step with a false `real` only began an episode and does not count in its length.
    """
    found, first = [], 0
    for t in [*np.flatnonzero(ends.any(axis=1)).tolist(), len(ends)]:
        if real is not None:
            episodes.lengths -= (~real[first : t + 1]).sum(axis=0)
        _pass_by(episodes, rewards[first:t])
        if t < len(ends):
            found.append((t, episodes.add(rewards[t], ends[t])))
        first = t + 1
    return found


def _pass_by(episodes: Episodes, rewards: np.ndarray) -> None:
    """Count steps that end no episode."""
    if hasattr(episodes.log, "flush"):  # an active log needs each of them
        for paid in rewards:
            episodes.add(paid, None)
        return
    if not np.vdot(rewards, rewards) < LARGE**2:
        for paid in rewards:
            episodes.add(paid, None)
        return
    episodes.step += rewards.size
    episodes.returns += rewards.sum(axis=0, dtype=np.float64)
    episodes.lengths += len(rewards)


class LastEpisodes:
    """Returns and lengths of the last 20 episodes, saved in checkpoints."""

    def __init__(self) -> None:
        self._returns: deque[float] = deque(maxlen=20)
        self._lengths: deque[int] = deque(maxlen=20)

    def add(self, episodes: Iterable[Episode]) -> None:
        for episode in episodes:
            self._returns.append(episode.ret)
            self._lengths.append(episode.length)

    def means(self) -> dict[str, float]:
        """Return the means by CleanRL's tags, {} before the first episode has ended."""
        if not self._returns:
            return {}
        returns, lengths = float(np.mean(self._returns)), float(np.mean(self._lengths))
        return {"charts/avg_episodic_return": returns, "charts/avg_episodic_length": lengths}

    def state_dict(self) -> dict[str, Any]:
        return {"returns": np.array(self._returns, np.float64), "lengths": np.array(self._lengths, np.int64)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._returns.extend(float(value) for value in state["returns"])
        self._lengths.extend(int(value) for value in state["lengths"])
