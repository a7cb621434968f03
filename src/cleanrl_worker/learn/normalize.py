"""Running normalization of observations and rewards."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cleanrl_worker.run.policy import scaled


class RunningStatistics:
    """Mean and variance of all samples, merged batch by batch (Chan et al. 1979)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)
        self.count = 1e-4  # a small prior, so that the first division is defined

    def update(self, batch: np.ndarray) -> None:
        """Update the statistics; rows of `batch` are samples."""
        if len(batch) == 1:  # one environment, the usual case in continuous control: no reduction needed
            self.merge(batch[0], 0.0, 1)
        else:
            mean = batch.mean(axis=0)
            self.merge(mean, ((batch - mean) ** 2).sum(axis=0), len(batch))

    def merge(self, mean: np.ndarray, spread: Any, rows: int) -> None:
        """Merge `rows` samples, given their mean and their sum of squared deviations from it."""
        total = self.count + rows
        delta = mean - self.mean
        spread = self.var * self.count + spread
        self.mean = self.mean + delta * (rows / total)
        self.var = (spread + delta * delta * (self.count * rows / total)) / total
        self.count = total

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "var": self.var, "count": float(self.count)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in ("mean", "var"):
            if np.shape(state[name]) != self.mean.shape:
                raise ValueError(f"size mismatch for {name}: {np.shape(state[name])}, not {self.mean.shape}")
        self.mean, self.var = np.array(state["mean"]), np.array(state["var"])
        self.count = float(state.get("count", 1.0))


class ObservationNormalizer:
    """Observations scaled to zero mean and unit variance, clipped to ±10; the policy file includes the statistics."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.statistics = RunningStatistics(shape)

    def observe(self, obs: np.ndarray) -> np.ndarray:
        """Update the statistics with new observations and normalise them."""
        self.statistics.update(obs)
        return self.apply(obs)

    def frozen(self) -> dict[str, np.ndarray]:
        """Return the statistics for a saved policy."""
        return {"mean": self.statistics.mean, "var": self.statistics.var}

    def apply(self, obs: np.ndarray) -> np.ndarray:
        return scaled(obs, self.statistics.mean, self.statistics.var)


class RewardNormalizer:
    """Rewards divided by the standard deviation of the discounted return so far, clipped to ±10."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.gamma = gamma
        self.returns = np.zeros(num_envs)
        self.statistics = RunningStatistics(())

    def observe(self, rewards: np.ndarray, ends: np.ndarray) -> np.ndarray:
        self.returns = self.returns * self.gamma + rewards
        self.statistics.update(self.returns)
        self.returns[ends] = 0.0  # the next episode's sum starts at 0
        small = rewards / np.sqrt(self.statistics.var + 1e-8)
        return np.minimum(np.maximum(small, -10.0), 10.0)

    def restart(self) -> None:
        """Reset all sums after a reset of every environment."""
        self.returns[:] = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the sums of running episodes: a restored run starts new ones."""
        return {"statistics": self.statistics.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.statistics.load_state_dict({key.removeprefix("statistics/"): value for key, value in state.items()})
