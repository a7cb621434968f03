"""Statistics over seeds: interquartile mean, bootstrap interval, probability of improvement (arXiv:2108.13264)."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

Statistic = Callable[[np.ndarray], float]


def iqm(scores: ArrayLike) -> float:
    """The mean of the middle half: a quarter of the scores, rounded down, is cut off at either end."""
    ordered = np.sort(_scores(scores))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def bootstrap_interval(
    tasks: Sequence[ArrayLike],
    statistic: Statistic = iqm,
    confidence: float = 0.95,
    samples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """The percentile interval of a statistic over all runs, `tasks` holding the scores of one task's seeds each.

    Runs are drawn again within their task only (stratified), so that no draw favours an easy task. The same scores
    and seed give the same interval.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not {confidence}")
    strata = [_scores(scores) for scores in tasks]
    if not strata:
        raise ValueError("no task to draw from; give the scores of at least one")
    rng = np.random.default_rng(seed)
    drawn = np.concatenate([rng.choice(scores, (samples, len(scores))) for scores in strata], axis=1)
    values = [statistic(row) for row in drawn]
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def probability_of_improvement(ours: Sequence[ArrayLike], theirs: Sequence[ArrayLike]) -> float:
    """How often a run of ours beats one of theirs on the same task, averaged over tasks; a tie counts half."""
    if not ours or len(ours) != len(theirs):
        raise ValueError(f"both sides need the same tasks, at least one: got {len(ours)} and {len(theirs)}")
    wins = []
    for mine, other in zip(ours, theirs, strict=True):
        difference = _scores(mine)[:, None] - _scores(other)[None, :]
        wins.append(np.mean(difference > 0) + 0.5 * np.mean(difference == 0))
    return float(np.mean(wins))


def _scores(scores: ArrayLike) -> np.ndarray:
    array = np.asarray(scores, dtype=float)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"scores must be a list of at least one number, not of shape {array.shape}")
    return array
