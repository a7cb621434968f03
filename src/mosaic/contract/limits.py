"""What numbers a parameter takes: said once, beside its default, and kept by forms, dry runs and the run itself."""

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
    """From `least` to `most`, both included, more than `above`, less than `below`, a divisor of `divides`.

    A bound may be another parameter, or a product: "num_envs * num_steps". COMPUTED means that the run computes the
    parameter: it is to be left alone.
    """

    least: Bound = None
    most: Bound = None
    above: Bound = None
    below: Bound = None
    divides: str | None = None

    @property
    def refers(self) -> bool:
        """Whether other parameters decide."""
        return any(isinstance(bound, str) for bound in (self.least, self.most, self.above, self.below, self.divides))

    def refusal(self, value: float, other: Callable[[str], Any]) -> str | None:
        """Why `value` is refused, None where it is not; `other` gives another parameter's value, None if unknown."""
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
    """What a bound is beside the other parameters; None where there is none, or one of them is not known."""
    if not isinstance(bound, str):
        return bound
    names = (name.strip() for name in bound.split("*"))
    factors = [int(name) if name.isdecimal() else other(name) for name in names]
    return None if None in factors else math.prod(factors)


def _told(number: float | None, bound: Bound) -> str:
    number = int(number) if isinstance(number, float) and number.is_integer() and isinstance(bound, str) else number
    return f"{number} ({bound})" if isinstance(bound, str) else f"{number}"


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
    """Refuse what `lonely_row` speaks of."""
    if why := lonely_row(batch_size, num_minibatches):
        raise SystemExit(why)


def check_batch(batch_size: int) -> None:
    """Refuse what `lonely_batch` speaks of."""
    if why := lonely_batch(batch_size):
        raise SystemExit(why)


def batch_trouble(value_of: Callable[[str], Any]) -> str | None:
    """Why advantages cannot be normalised as these parameters say; None where they can, or one is not known."""
    envs, steps, pieces = (value_of(name) for name in ("num_envs", "num_steps", "num_minibatches"))
    if not (envs and steps and pieces):
        return None
    if value_of("adv_norm_fullbatch") and (why := lonely_batch(envs * steps)):
        return why
    return lonely_row(envs * steps, pieces) if value_of("norm_adv") else None


def frequent_checkpoints(every: int, limit: float | None, num_envs: int, episodes: int) -> str | None:
    """Return the warning where scheduled checkpoints come sooner than an episode of each environment; else None."""
    if not limit or not 0 < every < limit * num_envs:
        return None
    wait = f"checkpoints wait for {episodes} mean episodes of each (checkpoint_episodes)"
    return (
        f"checkpoint_every={every:,} is less than one episode of up to {limit:,.0f} steps in each of {num_envs:,} "
        f"environments ({limit * num_envs:,.0f} steps), and a checkpoint cuts those under way: "
        + (wait if episodes else "raise it, or leave checkpoint_episodes at 20")
    )


def lonely_batch(batch_size: int) -> str | None:
    """Why a batch is not to be normalised as a whole; None if it may."""
    if batch_size != 1:
        return None
    return "a batch of one row (num_envs * num_steps) cannot be normalised; add --no-adv-norm-fullbatch"


def lonely_row(batch_size: int, num_minibatches: int) -> str | None:
    """Why a batch is not to be cut so: a minibatch has a single row where advantages are normalised; None if it may."""
    rows = batch_size // num_minibatches
    if 1 not in (rows, batch_size % rows):
        return None
    return (
        f"--num-minibatches={num_minibatches} cuts a batch of {batch_size} rows (num_envs * num_steps) so that a "
        "minibatch has one row, whose advantage cannot be normalised; change one of the three, or add --no-norm-adv"
    )
