"""What numbers a parameter takes: said once, beside its default, and kept by forms, dry runs and the run itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Limits:
    """From `least` to `most`, both included; `most` may be a product of other parameters: "num_envs * num_steps".

    Limits that leave a single number mean that the run computes the parameter: it is to be left alone.
    """

    least: float
    most: float | str | None = None

    def refusal(self, value: float, other: Callable[[str], Any]) -> str | None:
        """Why `value` is refused, None where it is not; `other` gives another parameter's value, None if unknown."""
        most = self._most(other)
        if self.least <= value and (most is None or value <= most):  # NaN is within nothing
            return None
        if most == self.least:
            return f"the run computes it from other parameters; leave it out (given: {value})"
        if most is None:
            return f"{self.least} or more is needed, not {value}"
        product = f" ({self.most})" if isinstance(self.most, str) else ""
        return f"a number between {self.least} and {most}{product} is needed, not {value}"

    def _most(self, other: Callable[[str], Any]) -> float | None:
        if not isinstance(self.most, str):
            return self.most
        factors = [other(name.strip()) for name in self.most.split("*")]
        return None if None in factors else math.prod(factors)
