"""Runs as table rows: words, a bar, a sparkline; groups of seeds. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from mosaic.trainer.rpc.client import Run, State
from mosaic.web import analytics, words

SPARK_WIDTH, SPARK_HEIGHT = 72, 20
MODES = {"train": "train", "resume_training": "resume", "policy_eval": "evaluation", "script": "script"}
GROUP = "group:"
STALLED_COLOUR = "#A84300"

Row = dict[str, Any]


def row_of(run: Run, states: dict[State, tuple[str, str, str]], now: float) -> Row:
    """Return the row of one run; every text is shown as it is, never as markup."""
    icon, colour, word = states[run.state]
    fraction, told = progress_of(run)
    asked = f"{run.asked} asked" if run.asked and not run.ended else ""
    return {
        "id": run.run_id,
        "kind": "run",
        "href": f"/run/{run.run_id}",
        "state": run.state.value,
        "icon": icon,
        "colour": STALLED_COLOUR if run.stalled else colour,
        "word": ", ".join(filter(None, (word, asked, words.stall_mark(run.stalled_since, now)))),
        "reason": run.reason,
        "name": run.run_name or words.short_id(run.run_id),
        "mode": MODES.get(run.mode, run.mode),
        "algo": run.algo or "–",
        "env": run.env_id or "–",
        "seed": "–" if run.seed is None else str(run.seed),
        "agent": run.agent_id,
        "worker": run.worker_id,
        "fraction": fraction,
        "progress": told,
        "eta": eta_of(run),
        "return": words.number(shown_return(run)),
        "spark": sparkline(run.curve),
        "sps": words.number(None if run.sps is None else round(run.sps)),
        "age": words.age(run.created_at, now),
        "created": words.moment(run.created_at),
        "gpu": ", ".join(map(str, run.gpus)) or "–",
    }


def rows_of(
    runs: Sequence[Run],
    states: dict[State, tuple[str, str, str]],
    now: float,
    *,
    by_group: bool,
    opened: Collection[str],
) -> list[Row]:
    """Return all rows of a page; with groups, a row for each group of several, above its runs if it is open."""
    if not by_group:
        return [row_of(run, states, now) for run in runs]
    rows: list[Row] = []
    for group in analytics.grouped(runs):
        members = [row_of(run, states, now) for run in group.runs]
        if len(members) == 1:
            rows += members
            continue
        rows.append(group_row(group, group.key in opened, now))
        if group.key in opened:
            rows += [{**member, "inside": True} for member in members]
    return rows


def group_row(group: analytics.Group, is_open: bool, now: float) -> Row:
    """Return the row of a group of seeds: the count per state, and the mean of the returns."""
    runs = group.runs
    returns = [value for run in runs if (value := shown_return(run)) is not None and math.isfinite(value)]
    fractions = [part for part, _ in map(progress_of, runs) if part is not None]
    speeds = [run.sps for run in runs if run.sps is not None]
    seeds = sorted(run.seed for run in runs if run.seed is not None)
    counts = Counter(run.state.value.lower() for run in runs)
    counts.update("STALLED" for run in runs if run.stalled)
    mean = sum(returns) / len(returns) if returns else None
    first = runs[0]
    return {
        "id": f"{GROUP}{group.key}",
        "kind": "group",
        "open": is_open,
        "key": group.key,
        "members": [run.run_id for run in runs],
        "word": ", ".join(f"{count} {word}" for word, count in counts.most_common()),
        "name": group.label,
        "mode": MODES.get(first.mode, first.mode),
        "algo": first.algo or "–",
        "env": first.env_id or "–",
        "seed": seeds_told(seeds),
        "agent": first.agent_id if len({run.agent_id for run in runs}) == 1 else "",
        "worker": "",
        "fraction": sum(fractions) / len(fractions) if fractions else None,
        "progress": f"{sum(run.ended for run in runs)} of {len(runs)} ended",
        "eta": "",
        "return": words.number(mean),
        "spark": sparkline(mean_curve([run.curve for run in runs])),
        "sps": words.number(round(sum(speeds) / len(speeds)) if speeds else None),
        "age": words.age(max(run.created_at for run in runs), now),
        "created": "",
        "gpu": ", ".join(map(str, sorted({gpu for run in runs for gpu in run.gpus}))) or "–",
    }


def progress_of(run: Run) -> tuple[float | None, str]:
    """Return the progress as a fraction (None without a total) and in words; an evaluation counts within its batch."""
    unit = "episodes" if run.mode == "policy_eval" else "steps"
    if run.state == State.INIT and run.queue_position >= 0:
        return None, "next in the queue" if run.queue_position == 0 else f"{run.queue_position} before it"
    if run.total_timesteps <= 0:
        return None, f"{words.number(run.step)} {unit}" if run.step else ""
    total, step = run.total_timesteps, run.step
    if run.mode == "policy_eval" and step > total:
        batch, step = divmod(step, total)
        return step / total, f"batch {batch + 1}: {words.number(step)} of {words.number(total)}"
    part = min(1.0, step / total)
    phase = f" · {run.reason}" if run.mode == "script" and run.reason.startswith("phase ") and not run.ended else ""
    return part, f"{_percent(part)} of {words.number(total)}{phase}"


def eta_of(run: Run) -> str:
    """Return the remaining time, or the duration of an ended run."""
    if run.eta_seconds is not None:
        return f"{words.duration(run.eta_seconds)} left"
    if run.ended and run.started_at:
        return f"took {words.duration(max(0.0, run.ended_at - run.started_at))}"
    return ""


def shown_return(run: Run) -> float | None:
    """Return the run's mean return; for an older run without one, the return of its last episode."""
    return run.last_return if run.mean_return is None else run.mean_return


def seeds_told(seeds: Sequence[int]) -> str:
    """Return `1–5` for a complete range, else the first few seeds."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds[:4])) + (" …" if len(seeds) > 4 else "") or "–"


def sparkline(curve: Sequence[float]) -> str:
    """Return the points of an SVG polyline in a box of SPARK_WIDTH × SPARK_HEIGHT; "" with fewer than two points."""
    values = [value for value in curve if math.isfinite(value)]
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    reach, inner = (high - low) or 1.0, SPARK_HEIGHT - 4
    across = SPARK_WIDTH / (len(values) - 1)
    return " ".join(
        f"{place * across:.1f},{2 + inner * (1 - (value - low) / reach) if high > low else SPARK_HEIGHT / 2:.1f}"
        for place, value in enumerate(values)
    )


def mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of several small curves, each stretched to the longest."""
    known = [curve for curve in curves if len(curve) > 1]
    if not known:
        return []
    length = max(map(len, known))
    stretched = [[curve[place * (len(curve) - 1) // (length - 1)] for place in range(length)] for curve in known]
    return [sum(column) / len(column) for column in zip(*stretched, strict=True)]


def _percent(part: float) -> str:
    """Format a percentage: never 100 % before the end, never 0 % after the start."""
    if 0 < part < 1:
        return f"{min(99, max(1, round(100 * part)))} %"
    return f"{part:.0%}".replace("%", " %")
