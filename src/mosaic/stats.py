"""Statistics over seeds: interquartile mean, bootstrap interval, probability of improvement (arXiv:2108.13264).

And over the trials of a sweep: the share of the variance that each parameter alone explains.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

Statistic = Callable[[np.ndarray], float]


def iqm(scores: ArrayLike) -> float:
    """Return the interquartile mean: a quarter of the scores, rounded down, is cut off at either end."""
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
    """Return the percentile interval of a statistic over all runs; `tasks` holds the scores of one task's seeds each.

    Runs are resampled within their task only (stratified), so that no sample favours an easy task. The same scores and
    seed give the same interval.
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


def verdict(scores: ArrayLike, published: float, spread: float | None = None) -> str:
    """Return "reached", "not reached" or "undecided": our mean's 95 % interval against a published mean.

    Reached: its lower end is at least the published mean minus a margin. Not reached: its upper end is below that. The
    margin is the published standard deviation, or 5 % of the mean if none is given; so a wide interval of ours stays
    undecided. So does one seed, which has no interval.
    """
    ours = _scores(scores)
    if len(ours) < 2:
        return "undecided"
    low, high = bootstrap_interval([ours], statistic=lambda drawn: float(drawn.mean()))
    needed = published - (0.05 * abs(published) if spread is None else spread)
    return "reached" if low >= needed else "not reached" if high < needed else "undecided"


def bootstrap_band(
    tasks: Sequence[ArrayLike], statistic: str = "iqm", confidence: float = 0.95, samples: int = 1000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a statistic ("mean" or "iqm") over runs at each point of their curves, and its percentile interval there.

    `tasks` holds a row per run and a column per point for each task; NaN marks a run without a value (not begun, or
    ended before). A point counts the runs that have one; without any, all three are NaN. The same rows are resampled
    for all points, so that a band is as smooth as its curves.
    """
    if statistic not in _STATISTICS:
        raise ValueError(f"statistic must be one of {', '.join(_STATISTICS)}, not {statistic!r}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not {confidence}")
    strata = [np.atleast_2d(np.asarray(rows, dtype=float)) for rows in tasks]
    if not strata or len({rows.shape[1] for rows in strata}) != 1 or any(not len(rows) for rows in strata):
        raise ValueError("a band needs at least one task, a row per run, and as many points in each row")
    of_rows = _STATISTICS[statistic]
    present = np.concatenate([np.isfinite(rows) for rows in strata])
    middle, low, high = (np.full(present.shape[1], np.nan) for _ in range(3))
    for pattern in np.unique(present, axis=1).T:
        if not pattern.any():
            continue
        columns = np.flatnonzero((present == pattern[:, None]).all(axis=0))
        kept = np.split(pattern, np.cumsum([len(rows) for rows in strata])[:-1])
        alive = [rows[mask][:, columns] for rows, mask in zip(strata, kept, strict=True) if mask.any()]
        middle[columns] = of_rows(np.concatenate(alive)[None])[0]
        rng = np.random.default_rng(seed)
        chosen = [rng.integers(0, len(rows), (samples, len(rows))) for rows in alive]
        # A few points at a time: all samples of all points at once would take gigabytes.
        for start in range(0, len(columns), _POINTS_AT_ONCE):
            part = slice(start, start + _POINTS_AT_ONCE)
            drawn = [rows[:, part][index] for rows, index in zip(alive, chosen, strict=True)]
            values = of_rows(np.concatenate(drawn, axis=1))
            bounds = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
            low[columns[part]], high[columns[part]] = bounds
    return middle, low, high


def probability_of_improvement(ours: Sequence[ArrayLike], theirs: Sequence[ArrayLike]) -> float:
    """Return how often a run of ours beats one of theirs on the same task, averaged over tasks; a tie counts half."""
    if not ours or len(ours) != len(theirs):
        raise ValueError(f"both sides need the same tasks, at least one: got {len(ours)} and {len(theirs)}")
    wins = []
    for mine, other in zip(ours, theirs, strict=True):
        difference = _scores(mine)[:, None] - _scores(other)[None, :]
        wins.append(np.mean(difference > 0) + 0.5 * np.mean(difference == 0))
    return float(np.mean(wins))


def improvement_interval(
    ours: Sequence[ArrayLike],
    theirs: Sequence[ArrayLike],
    confidence: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile interval of the probability of improvement; runs are resampled within task and side."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not {confidence}")
    probability_of_improvement(ours, theirs)  # refuses incomparable scores
    rng = np.random.default_rng(seed)
    total = np.zeros(samples)
    for mine, other in zip(ours, theirs, strict=True):
        a, b = (rng.choice(_scores(side), (samples, len(_scores(side)))) for side in (mine, other))
        difference = a[:, :, None] - b[:, None, :]
        total += (difference > 0).mean(axis=(1, 2)) + 0.5 * (difference == 0).mean(axis=(1, 2))
    low, high = np.quantile(total / len(ours), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def importance(params: Mapping[str, Sequence[object]], values: ArrayLike) -> dict[str, float]:
    """Return the share of the values' variance that each parameter alone explains, from 0 to 1, the largest first.

    Trials are grouped by one parameter at a time (its choices, or quantiles of its numbers); the measure is omega
    squared of the analysis of variance, which unlike eta squared is near 0 if groups differ by chance alone.
    Interactions of parameters are not detected. {} for fewer than 4 trials, or if all values are equal.
    """
    scores = _scores(values)
    total = float(((scores - scores.mean()) ** 2).sum())
    if len(scores) < _FEWEST_TRIALS or total <= 0 or not np.isfinite(total):
        return {}
    found = {name: _omega_squared(_classes(column), scores, total) for name, column in params.items()}
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _classes(column: Sequence[object]) -> np.ndarray:
    """Return the class of each trial; about as many classes as trials in each, so that means are meaningful."""
    numbers = [value for value in column if isinstance(value, int | float) and not isinstance(value, bool)]
    wanted = max(2, int(np.sqrt(len(column))))
    names = [str(value) for value in column]
    if len(numbers) < len(column) or len(set(names)) <= wanted:
        return np.unique(names, return_inverse=True)[1]
    edges = np.quantile(np.asarray(numbers, dtype=float), np.linspace(0, 1, wanted + 1)[1:-1])
    return np.searchsorted(edges, np.asarray(numbers, dtype=float), side="right")


def _omega_squared(classes: np.ndarray, scores: np.ndarray, total: float) -> float:
    names = np.unique(classes)
    if len(names) < 2 or len(names) >= len(scores):
        return 0.0
    parts = [scores[classes == name] for name in names]
    within = sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
    noise = within / (len(scores) - len(names))
    return float(max(0.0, (total - within - (len(names) - 1) * noise) / (total + noise)))


def _iqm_of_rows(drawn: np.ndarray) -> np.ndarray:
    ordered = np.sort(drawn, axis=1)
    cut = ordered.shape[1] // 4
    return np.asarray(ordered[:, cut : ordered.shape[1] - cut].mean(axis=1))


_POINTS_AT_ONCE = 64
_FEWEST_TRIALS = 4
# Over the runs of an array of draws × runs × points.
_STATISTICS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda drawn: np.asarray(drawn.mean(axis=1)),
    "iqm": _iqm_of_rows,
}


def _scores(scores: ArrayLike) -> np.ndarray:
    array = np.asarray(scores, dtype=float)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"scores must be a list of at least one number, not of shape {array.shape}")
    return array
