"""Running statistics that keep observations and rewards near unit scale."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cleanrl_worker.run.policy import scaled


class RunningStatistics:
    """Mean and variance of everything seen, merged batch by batch (Chan et al. 1979)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)
        self.count = 1e-4  # a whiff of the prior, so that the first division is defined

    def update(self, batch: np.ndarray) -> None:
        """Rows of `batch` are samples."""
        if len(batch) == 1:  # one environment, the usual case in continuous control: no sums over rows
            self.merge(batch[0], 0.0, 1)
        else:
            mean = batch.mean(axis=0)
            self.merge(mean, ((batch - mean) ** 2).sum(axis=0), len(batch))

    def merge(self, mean: np.ndarray, spread: Any, rows: int) -> None:
        """Take `rows` samples into account, of which the mean and the sum of squared distances from it are known."""
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
    """Observations to zero mean and unit variance, clipped to ±10; the statistics travel with the policy."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.statistics = RunningStatistics(shape)

    def observe(self, obs: np.ndarray) -> np.ndarray:
        """Take new observations into the statistics and normalise them."""
        self.statistics.update(obs)
        return self.apply(obs)

    def frozen(self) -> dict[str, np.ndarray]:
        """What a saved policy needs of the statistics."""
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
        self.returns[ends] = 0.0  # the next episode's sum starts anew
        small = rewards / np.sqrt(self.statistics.var + 1e-8)
        return np.minimum(np.maximum(small, -10.0), 10.0)

    def restart(self) -> None:
        """Every environment was reset: all sums start anew."""
        self.returns[:] = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Without the sums of the episodes under way: whoever restores this starts new ones."""
        return {"statistics": self.statistics.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.statistics.load_state_dict({key.removeprefix("statistics/"): value for key, value in state.items()})
