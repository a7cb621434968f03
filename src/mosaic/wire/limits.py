"""What numbers a parameter takes: said once, beside its default, and kept by forms, dry runs and the run itself."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mosaic.wire.flags import option


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


COMPUTED = Limits(0, 0)  # what a run sets itself


def require_within(args: Any) -> None:
    """Refuse values of a dataclass beyond the limits that its fields are annotated with."""
    for name, hint in typing.get_type_hints(type(args), include_extras=True).items():
        value = getattr(args, name)
        for limits in (extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Limits)):
            if why := limits.refusal(value, lambda other: getattr(args, other)):
                raise SystemExit(f"{option(name)}: {why}")
        if isinstance(value, float) and math.isnan(value):
            raise SystemExit(f"{option(name)}: a number is needed, not {value}")


def settle_frames(args: Any) -> None:
    """Atari's frames, four a step, as steps where an algorithm takes both."""
    frames = getattr(args, "total_frames", 0)
    if not frames:
        return
    if args.total_timesteps != type(args).total_timesteps:
        raise SystemExit("--total-frames and --total-timesteps are both given; give one (a step is four frames)")
    if frames < 4:
        raise SystemExit(f"--total-frames must be at least 4, which is one step, not {frames}")
    args.total_timesteps, args.total_frames = frames // 4, 0  # a resumed run is given the steps


def check_minibatches(batch_size: int, num_minibatches: int) -> None:
    """Refuse to cut a batch so that a minibatch has a single row where advantages are normalised."""
    rows = batch_size // num_minibatches
    if 1 in (rows, batch_size % rows):
        raise SystemExit(
            f"--num-minibatches={num_minibatches} cuts a batch of {batch_size} rows (num_envs * num_steps) so that a "
            "minibatch has one row, whose advantage cannot be normalised; change one of the three, or add --no-norm-adv"
        )
