"""The finite guard: the first NaN or infinity ends a run, with the step, the environment and the value."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, Literal

import numpy as np

from mosaic.contract.errors import shown

LARGE = 1e6  # larger rewards make a value network's targets jump: suggest scaling once
TOO_LARGE = 1e18  # of an observation: a layer's sums of squares and products would exceed float32
MAY_BE_NAN = ("losses/explained_variance",)  # if all returns are equal


class NotFinite(SystemExit):
    """A NaN or infinity found by the guard; the process ends with exit code 1 and this line."""


class Guard:
    """A check of a run's numbers. With `warn`, it counts non-finite values and lets the run continue."""

    def __init__(self, mode: Literal["stop", "warn"] = "stop", env_id: str = "the environment") -> None:
        self.stops, self.env_id = mode == "stop", env_id
        self.count = 0
        self.notes: list[str] = []
        """warnings not yet emitted by the run; each kind once"""
        self._hinted = False

    def check_rewards(self, rewards: np.ndarray, step: int) -> None:
        """Refuse rewards that are not finite, also as the networks' float32; warn of very large ones."""
        with np.errstate(over="ignore"):
            self._check(rewards.astype(np.float32), step, "reward", rewards)
        if not self._hinted and (abs(rewards) >= LARGE).any():
            self._hinted = True
            largest = rewards.flat[abs(rewards).argmax()]
            self.notes.append(f"{self.env_id} gave a reward of {largest:g} at step {step:,}: scale rewards to about 1")

    def check_obs(self, obs: np.ndarray, step: int) -> None:
        """Refuse observations that are not finite, also as the networks' float32."""
        with np.errstate(over="ignore"):
            seen = obs.astype(np.float32)
        self._check(np.where(abs(seen) > TOO_LARGE, np.inf, seen), step, "observation", obs)

    def check_losses(self, values: Mapping[str, float], step: int) -> None:
        """Refuse losses that are not finite."""
        for tag, value in values.items():
            if tag.startswith("losses/") and tag not in MAY_BE_NAN and not isfinite(value):
                self._found(f"{tag} is {value} at step {step:,}: lower learning_rate, or scale the rewards")
                return

    def check_weights(self, arrays: Mapping[str, Any], step: int) -> bool:
        """Return True if all weights are finite; refuse them otherwise, or with `warn` return False."""
        for name, value in arrays.items():
            found = np.asarray(value)
            if found.dtype.kind == "f" and not np.isfinite(found).all():
                bad = found[~np.isfinite(found)].flat[0]
                self._found(f"the weight {name} is {bad} at step {step:,}: lower learning_rate; nothing is saved of it")
                return False
        return True

    def _check(self, seen: np.ndarray, step: int, what: str, given: np.ndarray | None = None) -> None:
        bad = ~np.isfinite(seen)
        if not bad.any():
            return
        place = tuple(int(index) for index in np.argwhere(bad)[0])
        value = (seen if given is None else given)[place]
        where = f", value {', '.join(map(str, place[1:]))}" if len(place) > 1 else ""
        self._found(
            f"{self.env_id} gave {what} {value} at step {step:,} in environment {place[0]}{where}: "
            f"a finite float32 below 1e18 is needed; mend the environment, or go on with --nonfinite=warn",
            int(bad.sum()),
        )

    def _found(self, text: str, count: int = 1) -> None:
        if self.stops:
            raise NotFinite(text)
        if not self.count:
            self.notes.append(f"{text}; this and what follows is only counted (--nonfinite=warn)")
        self.count += count


def wrong_step(env_id: str, index: int, space: Any, obs: Any, reward: Any) -> SystemExit:
    """Return the refusal of a step outside the environment's own spaces."""
    if isinstance(reward, bool | int | float | np.number) or (isinstance(reward, np.ndarray) and reward.ndim == 0):
        came = f"an observation of shape {np.shape(obs)}" if hasattr(obs, "shape") else f"the observation {shown(obs)}"
        came += f" and type {obs.dtype}" if hasattr(obs, "dtype") else ""
        return SystemExit(f"{env_id} gave {came} in environment {index}; its observation space is {space}")
    return SystemExit(f"{env_id} gave the reward {shown(reward)} in environment {index}; one number is needed")
