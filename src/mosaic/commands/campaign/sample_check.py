"""The survey of a sweep's dry run: trials from all over the space, and the worker's verdict on them."""

from __future__ import annotations

import argparse
import itertools
import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence

from mosaic.commands.campaign.optuna_study import Spec
from mosaic.commands.campaign.trials import show_params
from mosaic.commands.run.dry_run import refusals
from mosaic.commands.run.settings import payload_of
from mosaic.contract.errors import ConfigError
from mosaic.contract.sweeps import Dimension, Value

# Each check is a process of a third of a second, four at once; a grid of three by four is checked completely.
MOST_ASKED = 12

Params = dict[str, Value]


def survey(spec: Spec, args: argparse.Namespace) -> str:
    """Return a summary of the trials that the worker would refuse, "" for none; ConfigError if no trial can run."""
    trials, whole = trials_across(spec.space)
    payloads = [payload_of(spec.config_of(params, spec.seeds[0]), args) for params in trials]
    reasons = refusals(payloads, "asking the worker whether it would run a trial")
    return judge(trials, reasons, whole)


def trials_across(space: Sequence[Dimension], most: int = MOST_ASKED) -> tuple[list[Params], bool]:
    """Return trials of a space, and True if they are all of it; a large space is sampled, identically each time."""
    values = [one.values(most) for one in space]
    few = [known for known in values if known is not None]
    if len(few) == len(values) and math.prod(map(len, few)) <= most:
        found: Iterable[tuple[Value, ...]] = itertools.product(*few)
        return [_named(space, chosen) for chosen in found], True
    corners = _corners(len(space))
    places = [*corners, *_spread(len(space), most - len(corners))]
    trials = [_named(space, [one.at(share) for one, share in zip(space, place, strict=True)]) for place in places]
    return list({str(params): params for params in trials}.values()), False


def judge(trials: Sequence[Params], reasons: Sequence[str], whole: bool) -> str:
    """Summarize the worker's verdicts; `whole` means that `trials` are the complete space.

    If a sample was refused completely, other trials may still run, unless all got the same reason and it names no
    varied parameter: the environment causes it, for example.
    """
    refused = [(params, why) for params, why in zip(trials, reasons, strict=True) if why]
    if not refused:
        return ""
    params, why = refused[0]
    example = f"would be refused, as with {show_params(params)}: {why}"
    if len(refused) < len(trials):
        return f"{len(refused)} of {len(trials)} trials across the space {example}"
    if len(set(reasons)) == 1 and (whole or not _names_one(why, params)):
        raise ConfigError(why)
    if whole:
        raise ConfigError(f"all {len(trials)} trials of the space {example}")
    return f"all {len(trials)} trials that were asked for across the space {example}; others may run"


def _named(space: Sequence[Dimension], values: Iterable[Value]) -> Params:
    return {one.name: value for one, value in zip(space, values, strict=True)}


def _corners(count: int) -> list[list[float]]:
    """Return corners of a space of `count` parameters in which neighbours meet in all four ways; for two, all of
    them.
    """
    found = [[pair[place % 2] for place in range(count)] for pair in itertools.product((0.0, 1.0), repeat=2)]
    return found if count > 1 else found[::3]  # one parameter has two ends


def _spread(count: int, rows: int) -> list[list[float]]:
    """Return a Latin hypercube: each parameter takes each of `rows` places once, in an order of its own."""
    draw = random.Random(0)
    columns = [draw.sample(range(rows), rows) for _ in range(count)]
    return [[(column[row] + 0.5) / rows for column in columns] for row in range(rows)]


def _names_one(why: str, params: Mapping[str, Value]) -> bool:
    """Return True if a reason names a varied parameter, as `num_envs`, `--num-envs` or `--no-num-envs`."""
    words = {word.replace("-", "_").strip("_") for word in re.findall(r"[\w-]+", why)}
    words |= {word.removeprefix("no_") for word in words}
    return any(name.removeprefix("extras.") in words for name in params)
