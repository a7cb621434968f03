"""The analysis of several runs: groups of seeds, curves on a common axis, bands, headline numbers. Pure."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mosaic import stats
from mosaic.contract.errors import ConfigError, shown
from mosaic.contract.groups import parse_group, recipe_of
from mosaic.contract.paths import check_run_id
from mosaic.trainer.rpc.client import Run, Series, State

# As many points as a curve of a page's width can show.
POINTS = 200
# More curves are unreadable, and each is a call to the daemon.
MOST_RUNS = 60

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """One metric of one run: its places (steps, or hours since the start) and values."""

    run: Run
    places: Numbers
    values: Numbers
    highest: float | None = None


@dataclass(frozen=True)
class Group:
    """Runs that differ only by their seed, or a single run."""

    key: str
    label: str
    runs: tuple[Run, ...]

    @property
    def counted(self) -> tuple[Run, ...]:
        """Return the runs that count as seeds: repeated runs with the same config, seed and version count once."""
        chosen: dict[object, Run] = {}
        for run in sorted(self.runs, key=lambda run: (run.state == State.COMPLETED, run.created_at, run.run_id)):
            chosen[_identity(run)] = run
        return tuple(run for run in self.runs if run in chosen.values())


@dataclass(frozen=True)
class Band:
    """A group along the common axis; low and high bound the 95 % interval over resampled seeds."""

    group: Group
    places: Numbers
    mean: Numbers
    iqm: Numbers
    mean_low: Numbers
    mean_high: Numbers
    iqm_low: Numbers
    iqm_high: Numbers
    seeds: npt.NDArray[np.int64]

    def line(self, statistic: str) -> tuple[Numbers, Numbers, Numbers]:
        """Return the middle, the lower and the upper edge of one statistic."""
        if statistic == "mean":
            return self.mean, self.mean_low, self.mean_high
        return self.iqm, self.iqm_low, self.iqm_high


@dataclass(frozen=True)
class Headline:
    """The numbers of a run, or the means over a group's."""

    label: str
    runs: int
    final: float | None
    """the newest return of the run"""
    best: float | None
    """the highest one over at least 20 episodes"""
    sps: float | None
    hours: float | None


@dataclass(frozen=True)
class Improvement:
    """The probability that a run of `ours` beats one of `theirs`, by the returns of the runs."""

    ours: str
    theirs: str
    probability: float
    low: float
    high: float


def run_ids_of(text: str) -> list[str]:
    """Return the run ids of an address, each once, in order; ConfigError for an invalid one."""
    found = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if len(found) > MOST_RUNS:
        raise ConfigError(f"{len(found)} runs are too many for one picture; choose up to {MOST_RUNS}")
    return [check_run_id(run_id) for run_id in found]


def of_group(runs: Iterable[Run], name: str) -> list[str]:
    """Return the ids of a group's runs, oldest first; of a retried seed, only the retry."""
    chosen: dict[tuple[str, int | None], Run] = {}
    for run in sorted(runs, key=lambda run: (run.created_at, run.run_id)):
        key = (run.group, run.seed if run.seed is not None else len(chosen))
        if key not in chosen or chosen[key].state in (State.FAILED, State.CANCELLED, State.BROKEN):
            chosen[key] = run
    if len(chosen) > MOST_RUNS:
        raise ConfigError(
            f"{shown(name)} has {len(chosen)} runs, too many for one picture of {MOST_RUNS}; look at one environment "
            "at a time: add &env=… to the address"
        )
    return [run.run_id for run in chosen.values()]


def grouped(runs: Iterable[Run]) -> list[Group]:
    """Group runs by their group, in order of appearance; a run without a group is a group of its own."""
    gathered: dict[str, list[Run]] = {}
    for run in runs:
        gathered.setdefault(run.group or f"run {run.run_id}", []).append(run)
    groups = [Group(key, group_label(found), tuple(found)) for key, found in gathered.items()]
    return _told_apart(groups)


def alone(runs: Iterable[Run]) -> list[Group]:
    """Return each run as its own group."""
    return _told_apart([Group(f"run {run.run_id}", run_label(run), (run,)) for run in runs])


def group_label(runs: Sequence[Run]) -> str:
    """Return the group's name, or its algorithm and environment, with the number of its runs."""
    first = runs[0]
    if len(runs) == 1:
        return run_label(first)
    named = parse_group(first.group)
    name = named.label if named else first.group if not first.group.startswith("#") else what(first)
    seeds = len(Group("", "", tuple(runs)).counted)
    if seeds == len(runs):
        return f"{name} × {len(runs)}"
    return f"{name} × {seeds} ({len(runs)} runs, {seeds} {'seed' if seeds == 1 else 'seeds'} counted)"


def run_label(run: Run) -> str:
    seed = "" if run.seed is None else f" · seed {run.seed}"
    return f"{run.run_name or what(run)}{seed}"


def what(run: Run) -> str:
    """Return algorithm and environment; an evaluation is marked."""
    words = [part for part in (run.algo, run.env_id) if part]
    return " ".join([*words, "(Eval)"] if run.mode == "policy_eval" else words) or run.run_id


def trace_of(run: Run, series: Series, axis: str = "step") -> Trace:
    """Return a curve by steps, or by hours since the run started."""
    if axis == "time":
        # A resumed run keeps its predecessor's points: the clock starts with the first of them.
        places = (series.times - series.times[0]) / 3600 if len(series) else series.times
    else:
        places = series.steps.astype(np.float64)
    return Trace(run, np.asarray(places, np.float64), series.values, series.highest)


def common_axis(traces: Iterable[Trace], points: int = POINTS) -> Numbers:
    """Return equally spaced places from the first to the last of all traces."""
    spans = [(trace.places[0], trace.places[-1]) for trace in traces if len(trace.places)]
    if not spans:
        return np.empty(0)
    low, high = min(span[0] for span in spans), max(span[1] for span in spans)
    return np.linspace(low, high, points) if high > low else np.array([high])


def on_axis(trace: Trace, axis: Numbers, smoothing: float = 0.0) -> Numbers:
    """Return a curve on a common axis: the mean around each place, NaN before its start and after its end.

    `smoothing` from 0 to below 1 is the weight of the past in an exponential average.
    """
    finite = np.isfinite(trace.values)
    places, values = trace.places[finite], trace.values[finite]
    found = np.full(len(axis), np.nan)
    if not len(values) or not len(axis):
        return found
    width = axis[1] - axis[0] if len(axis) > 1 else 1.0
    bins = np.clip(np.rint((places - axis[0]) / width).astype(np.int64), 0, len(axis) - 1)
    counts = np.bincount(bins, minlength=len(axis))
    sums = np.bincount(bins, weights=values, minlength=len(axis))
    known = counts > 0
    found[known] = sums[known] / counts[known]
    first, last = np.flatnonzero(known)[[0, -1]]
    inside = np.arange(first, last + 1)
    found[inside] = np.interp(inside, np.flatnonzero(known), found[known])
    return smoothed(found, smoothing)


def smoothed(values: Numbers, weight: float) -> Numbers:
    """Return an exponential average without bias to the start; gaps stay gaps."""
    if weight <= 0:
        return values
    result = values.copy()
    average = total = 0.0
    for place, value in enumerate(values):
        if math.isnan(value):
            continue
        average = weight * average + (1 - weight) * value
        total = weight * total + (1 - weight)
        result[place] = average / total
    return result


def band_of(group: Group, traces: Mapping[str, Trace], axis: Numbers, smoothing: float = 0.0) -> Band | None:
    """Return mean, IQM and their 95 % intervals over a group's seeds; None if no seed has a point."""
    rows = [on_axis(traces[run.run_id], axis, smoothing) for run in group.counted if run.run_id in traces]
    if not rows or not np.isfinite(rows).any():
        return None
    curves = np.array(rows)
    seeds = np.isfinite(curves).sum(axis=0)
    if len(rows) == 1:  # nothing to resample
        one = curves[0]
        return Band(group, axis, one, one, one, one, one, one, seeds)
    # The seeds of one configuration are one task: resampled among themselves.
    mean, mean_low, mean_high = stats.bootstrap_band([curves], "mean")
    iqm, iqm_low, iqm_high = stats.bootstrap_band([curves], "iqm")
    return Band(group, axis, mean, iqm, mean_low, mean_high, iqm_low, iqm_high, seeds)


def headline(run: Run, highest: float | None = None, now: float | None = None) -> Headline:
    """Return the numbers of one run; `highest` is its best return."""
    return Headline(run_label(run), 1, run.mean_return, highest, run.sps, hours(run, now))


def group_headline(group: Group, of_runs: Sequence[Headline]) -> Headline:
    """Return the means over the counted runs of a group; the best is the best of all."""
    bests = [one.best for one in of_runs if one.best is not None]
    final, sps, length = (_mean(getattr(one, name) for one in of_runs) for name in ("final", "sps", "hours"))
    return Headline(group.label, len(of_runs), final, max(bests, default=None), sps, length)


def hours(run: Run, now: float | None = None) -> float | None:
    """Return the hours from the run's start to its end, or to now."""
    if not run.started_at:
        return None
    end = run.ended_at or (time.time() if now is None else now)
    return max(0.0, end - run.started_at) / 3600


def improvement(ours: Group, theirs: Group) -> Improvement:
    """Compare two groups on the environments that both have; ConfigError if they share none."""
    tasks = sorted({run.env_id for run in ours.runs} & {run.env_id for run in theirs.runs})
    mine, other = ([_scores(side, env_id) for env_id in tasks] for side in (ours, theirs))
    both = [(a, b) for a, b in zip(mine, other, strict=True) if a and b]
    if not both:
        raise ConfigError(
            f"{shown(ours.label)} and {shown(theirs.label)} have no environment in common with returns on both sides; "
            "choose groups of one environment"
        )
    first, second = [a for a, _ in both], [b for _, b in both]
    low, high = stats.improvement_interval(first, second)
    return Improvement(ours.label, theirs.label, stats.probability_of_improvement(first, second), low, high)


def curves_csv(metric: str, place: str, bands: Sequence[Band], traces: Mapping[str, Trace]) -> str:
    """Return a CSV with every band along the axis, then every run's own points."""
    columns = ["kind", "group", "run_id", "seed", "metric", place, "value", "mean", "mean_low", "mean_high"]
    columns += ["iqm", "iqm_low", "iqm_high", "seeds"]
    rows: list[list[object]] = []
    for band in bands:
        told = (band.mean, band.mean_low, band.mean_high, band.iqm, band.iqm_low, band.iqm_high)
        for point in np.flatnonzero(band.seeds):
            numbers = [_cell(column[point]) for column in told]
            rows.append(
                ["group", band.group.label, "", "", metric, _cell(band.places[point]), "", *numbers, band.seeds[point]]
            )
    for band in bands:
        for run in band.group.runs:
            if (trace := traces.get(run.run_id)) is None:
                continue
            seed = "" if run.seed is None else run.seed
            for where, value in zip(trace.places, trace.values, strict=True):
                row = ["run", band.group.label, run.run_id, seed, metric, _cell(where), _cell(value)]
                rows.append([*row, *[""] * 7])
    return _csv(columns, rows)


def headlines_csv(rows: Sequence[tuple[str, Headline]]) -> str:
    """Return the page's table as CSV; the first of each pair is a run id, or "" for a group."""
    columns = ["label", "run_id", "runs", "return", "best", "steps_per_second", "hours"]
    return _csv(
        columns,
        [[one.label, run_id, one.runs, *map(_cell, (one.final, one.best, one.sps, one.hours))] for run_id, one in rows],
    )


def _scores(group: Group, env_id: str) -> list[float]:
    found = [run.mean_return for run in group.counted if run.env_id == env_id]
    return [score for score in found if score is not None and math.isfinite(score)]


def _told_apart(groups: Sequence[Group]) -> list[Group]:
    """Return groups with unique labels: equal labels get the differing settings, or a number."""
    result = []
    for group in groups:
        alike = [one for one in groups if one.label == group.label]
        label = group.label
        if len(alike) > 1:
            differs = [_differs(one, alike) for one in alike]
            place = alike.index(group)
            label += f" · {differs[place]}" if len({*differs}) == len(alike) else f" ({place + 1})"
        result.append(Group(group.key, label, group.runs))
    return result


def _differs(group: Group, alike: Sequence[Group]) -> str:
    """Return the settings in which groups differ, at most three, with this group's values."""
    every = [_settings(one.runs[0]) for one in alike]
    names = sorted({name for one in every for name in one if len({str(other.get(name)) for other in every}) > 1})
    ours = _settings(group.runs[0])
    return ", ".join(f"{name}={shown(ours[name])}" if name in ours else f"{name} default" for name in names[:3])


def _identity(run: Run) -> object:
    """Return the key that equal runs share; a run without a fetched payload equals no other."""
    metadata = run.payload.get("metadata") or {}
    config = (metadata.get("worker") or {}).get("config")
    if run.seed is None or not config:
        return run.run_id
    recipe = json.dumps(recipe_of(config), sort_keys=True, default=str)
    return run.mode, recipe, run.seed, (metadata.get("ui") or {}).get("version")


def _settings(run: Run) -> dict[str, object]:
    """Return the parameters and extras of a run; {} if its payload was not fetched."""
    try:
        config = run.payload["metadata"]["worker"]["config"]
        extras = dict(config.get("extras") or {})
        params = dict(extras.pop("algo_params", None) or {})
        return {"total_timesteps": config.get("total_timesteps"), **extras, **params}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None


def _cell(value: float | None) -> object:
    """Return a number's exact text; "" for none."""
    return "" if value is None or math.isnan(value) else repr(float(value))


def _csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_harmless(cell) for cell in row] for row in rows)
    return text.getvalue()


def _harmless(cell: object) -> object:
    """Quote a text that a spreadsheet would read as a formula; labels come from other users."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "@", "\t", "\r") else cell
