"""Limits of a parameter: declared once, beside its default, and enforced by forms, dry runs and the run itself."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mosaic.contract.flags import option

Bound = float | str | None


@dataclass(frozen=True)
class Limits:
    """A range: from `least` to `most`, both included, more than `above`, less than `below`, a divisor of `divides`.

    A bound may be another parameter, or a product: "num_envs * num_steps". COMPUTED means that the run computes the
    parameter: do not set it.
    """

    least: Bound = None
    most: Bound = None
    above: Bound = None
    below: Bound = None
    divides: str | None = None

    @property
    def refers(self) -> bool:
        """Return True if a bound depends on other parameters."""
        return any(isinstance(bound, str) for bound in (self.least, self.most, self.above, self.below, self.divides))

    def refusal(self, value: float, other: Callable[[str], Any]) -> str | None:
        """Return why `value` is refused, else None; `other` returns another parameter's value, None if unknown."""
        least, most, above, below, whole = (
            number_of(bound, other) for bound in (self.least, self.most, self.above, self.below, self.divides)
        )
        inside = (least is None or least <= value) and (most is None or value <= most)  # NaN is within nothing
        if inside and (above is None or above < value) and (below is None or value < below):
            return (
                f"a divisor of {_told(whole, self.divides)} is needed, not {value}" if whole and whole % value else None
            )
        if self == COMPUTED:
            return f"the run computes it from other parameters; leave it out (given: {value})"
        if above is not None and not above < value:
            return f"more than {_told(above, self.above)} is needed, not {value}"
        if below is not None and not value < below:
            return f"less than {_told(below, self.below)} is needed, not {value}"
        if most is None:
            return f"{_told(least, self.least)} or more is needed, not {value}"
        if least is None:
            return f"{_told(most, self.most)} or less is needed, not {value}"
        return f"a number between {_told(least, self.least)} and {_told(most, self.most)} is needed, not {value}"


def number_of(bound: Bound, other: Callable[[str], Any]) -> float | None:
    """Return a bound's value, given the other parameters; None if it is absent, or one of them is unknown."""
    if not isinstance(bound, str):
        return bound
    names = (name.strip() for name in bound.split("*"))
    factors = [int(name) if name.isdecimal() else other(name) for name in names]
    return None if None in factors else math.prod(factors)


def _told(number: float | None, bound: Bound) -> str:
    number = int(number) if isinstance(number, float) and number.is_integer() and isinstance(bound, str) else number
    return f"{number} ({bound})" if isinstance(bound, str) else f"{number}"


COMPUTED = Limits(0, 0)  # set by the run itself


def require_within(args: Any) -> None:
    """Refuse values of a dataclass beyond the limits in its fields' annotations."""
    for name, hint in typing.get_type_hints(type(args), include_extras=True).items():
        value = getattr(args, name)
        for limits in (extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Limits)):
            if why := limits.refusal(value, lambda other: getattr(args, other)):
                raise SystemExit(f"{option(name)}: {why}")
        if isinstance(value, float) and math.isnan(value):
            raise SystemExit(f"{option(name)}: a number is needed, not {value}")


def settle_frames(args: Any) -> None:
    """Convert Atari's total_frames to steps, four frames each, if an algorithm accepts both."""
    frames = getattr(args, "total_frames", 0)
    if not frames:
        return
    if args.total_timesteps != type(args).total_timesteps:
        raise SystemExit("--total-frames and --total-timesteps are both given; give one (a step is four frames)")
    if frames < 4:
        raise SystemExit(f"--total-frames must be at least 4, which is one step, not {frames}")
    args.total_timesteps, args.total_frames = frames // 4, 0  # a resumed run is given the steps


def check_minibatches(batch_size: int, num_minibatches: int) -> None:
    """Refuse a batch that `lonely_row` rejects."""
    if why := lonely_row(batch_size, num_minibatches):
        raise SystemExit(why)


def check_batch(batch_size: int) -> None:
    """Refuse a batch that `lonely_batch` rejects."""
    if why := lonely_batch(batch_size):
        raise SystemExit(why)


def batch_trouble(value_of: Callable[[str], Any]) -> str | None:
    """Return why advantages cannot be normalised with these parameters; None if they can, or one is unknown."""
    envs, steps, pieces = (value_of(name) for name in ("num_envs", "num_steps", "num_minibatches"))
    if not (envs and steps and pieces):
        return None
    if value_of("adv_norm_fullbatch") and (why := lonely_batch(envs * steps)):
        return why
    return lonely_row(envs * steps, pieces) if value_of("norm_adv") else None


def frequent_checkpoints(every: int, limit: float | None, num_envs: int, episodes: int) -> str | None:
    """Return the warning if scheduled checkpoints come sooner than an episode of each environment; else None."""
    if not limit or not 0 < every < limit * num_envs:
        return None
    wait = f"checkpoints wait for {episodes} mean episodes of each (checkpoint_episodes)"
    return (
        f"checkpoint_every={every:,} is less than one episode of up to {limit:,.0f} steps in each of {num_envs:,} "
        f"environments ({limit * num_envs:,.0f} steps), and a checkpoint cuts those under way: "
        + (wait if episodes else "raise it, or leave checkpoint_episodes at 20")
    )


def lonely_batch(batch_size: int) -> str | None:
    """Return why a batch cannot be normalised as a whole; None if it can."""
    if batch_size != 1:
        return None
    return "a batch of one row (num_envs * num_steps) cannot be normalised; add --no-adv-norm-fullbatch"


def lonely_row(batch_size: int, num_minibatches: int) -> str | None:
    """Return why a split is refused: a minibatch with a single row cannot normalise advantages; None if it is fine."""
    rows = batch_size // num_minibatches
    if 1 not in (rows, batch_size % rows):
        return None
    return (
        f"--num-minibatches={num_minibatches} cuts a batch of {batch_size} rows (num_envs * num_steps) so that a "
        "minibatch has one row, whose advantage cannot be normalised; change one of the three, or add --no-norm-adv"
    )
