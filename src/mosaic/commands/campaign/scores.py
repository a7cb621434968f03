"""The scores of a benchmark: IQM and 95 % interval of each combination, as a table, CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mosaic import stats
from mosaic.commands.campaign.combinations import Combination, Matrix
from mosaic.console import short

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from mosaic.trainer.run import Run


@dataclass(frozen=True)
class Score:
    """The scores of one combination's seeds; the score of a run is its return."""

    combination: Combination
    runs: tuple[Run, ...]
    seeds: int
    values: tuple[float, ...]
    iqm: float | None = None
    low: float | None = None
    high: float | None = None

    def count(self, *states: str) -> int:
        return sum(str(run.state) in states for run in self.runs)


def scores_of(matrix: Matrix, found: Mapping[str, Run], *, interval: bool = True) -> list[Score]:
    """Return a score for each combination; only completed runs count."""
    by_combination: dict[str, list[Run]] = {one.label: [] for one in matrix.combinations}
    for cell in matrix.cells():
        if cell.key in found:
            by_combination[cell.combination.label].append(found[cell.key])
    return [_score(one, by_combination[one.label], len(matrix.seeds), interval) for one in matrix.combinations]


def _score(combination: Combination, runs: Sequence[Run], seeds: int, interval: bool) -> Score:
    completed = [run.mean_return for run in runs if str(run.state) == "COMPLETED"]
    values = tuple(value for value in completed if value is not None and math.isfinite(value))
    if not values:
        return Score(combination, tuple(runs), seeds, values)
    low, high = stats.bootstrap_interval([values], samples=2000) if interval and len(values) > 1 else (None, None)
    return Score(combination, tuple(runs), seeds, values, stats.iqm(values), low, high)


def table(scores: Sequence[Score], console: Console) -> RenderableType:
    """Return a table with a row for each combination."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for place, title in enumerate(("algorithm", "environment", "runs", "steps", "IQM", "95 % interval", "")):
        drawn.add_column(title, justify="right" if place in (4, 5) else "left", no_wrap=True, overflow="ellipsis")
    for score in scores:
        algo = score.combination.label.split()[0]
        share = progress(score)
        bar: RenderableType = Text(f"{share:.0%}")
        if console.is_terminal:
            bar = ProgressBar(total=1.0, completed=share, width=10)
        span = f"{short(score.low)} to {short(score.high)}" if score.low is not None else ""
        done = f"{score.count('COMPLETED')} of {score.seeds}"
        drawn.add_row(
            Text(algo, style="cyan"), Text(score.combination.env_id), Text(done), bar,
            Text(short(score.iqm) if score.iqm is not None else ""), Text(span), Text(_troubles(score), style="red"),
        )  # fmt: skip
    return drawn


def progress(score: Score) -> float:
    """Return the progress from 0 to 1 over all seeds; a run that is not submitted yet counts as 0."""
    parts = [1.0 if str(run.state) == "COMPLETED" else run.progress or 0.0 for run in score.runs]
    return sum(parts) / score.seeds if score.seeds else 0.0


def improvements(scores: Sequence[Score]) -> list[str]:
    """Return each algorithm's probability of improvement over the first, on shared environments with several seeds."""
    by_algo: dict[str, dict[str, tuple[float, ...]]] = {}
    for score in scores:
        if len(score.values) > 1:
            by_algo.setdefault(score.combination.label.split()[0], {})[score.combination.env_id] = score.values
    lines: list[str] = []
    first = next(iter(by_algo), "")
    for algo in list(by_algo)[1:]:
        envs = [env_id for env_id in by_algo[algo] if env_id in by_algo[first]]
        if not envs:
            continue
        ours, theirs = ([by_algo[one][env_id] for env_id in envs] for one in (algo, first))
        chance = stats.probability_of_improvement(ours, theirs)
        low, high = stats.improvement_interval(ours, theirs)
        where = envs[0] if len(envs) == 1 else f"{len(envs)} environments"
        lines.append(
            f"a run of {algo} beats one of {first} on {where} with probability {chance:.0%} ({low:.0%} to {high:.0%})"
        )
    return lines


def csv_text(scores: Sequence[Score]) -> str:
    """Return a CSV with a row for each combination, then one for each run."""
    columns = ["kind", "algo", "env_id", "seed", "run_id", "state", "steps", "score", "runs", "iqm", "low", "high"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for score in scores:
        one = score.combination
        numbers = [len(score.values), *map(_cell, (score.iqm, score.low, score.high))]
        writer.writerow(["combination", one.algo, one.env_id, "", "", "", "", "", *numbers])
    for score in scores:
        for run in score.runs:
            told = [run.seed, run.run_id, str(run.state), run.step, _cell(run.mean_return)]
            writer.writerow(["run", score.combination.algo, score.combination.env_id, *told, "", "", "", ""])
    return text.getvalue()


def document(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Return the scores as a JSON document."""
    return [
        {
            "algo": score.combination.algo,
            "env_id": score.combination.env_id,
            "seeds": score.seeds,
            "completed": score.count("COMPLETED"),
            "iqm": score.iqm,
            "interval": None if score.low is None else [score.low, score.high],
            "runs": [
                {"run_id": run.run_id, "seed": run.seed, "state": str(run.state), "score": run.mean_return}
                for run in score.runs
            ],
        }
        for score in scores
    ]


def _troubles(score: Score) -> str:
    words = {"FAILED": "failed", "CANCELLED": "cancelled", "LOST": "lost", "BROKEN": "broken"}
    return ", ".join(f"{count} {word}" for state, word in words.items() if (count := score.count(state)))


def _cell(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else repr(float(value))
