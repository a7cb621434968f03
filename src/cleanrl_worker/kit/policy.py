"""A policy as evaluation and play see it: observations in, actions out, whatever network stands behind it."""

from collections.abc import Callable, Mapping

import numpy as np

from cleanrl_worker.kit.normalize import ObservationNormalizer

Policy = Callable[[np.ndarray, np.random.Generator | None], np.ndarray]
"""Rows of observations to rows of actions; the generator samples them, None asks for the greedy ones."""


def normalized(policy: Policy, statistics: Mapping[str, np.ndarray]) -> Policy:
    """The policy behind the observation statistics (`mean`, `var`) it was trained with, frozen."""
    normalizer = ObservationNormalizer(np.shape(statistics["mean"]))
    normalizer.statistics.mean = np.asarray(statistics["mean"], np.float64)
    normalizer.statistics.var = np.asarray(statistics["var"], np.float64)
    return lambda obs, rng: policy(normalizer.apply(obs), rng)
