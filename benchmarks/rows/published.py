"""Returns that others report, read from published.json: figures with their sources, and random play."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "published.json"


@dataclass(frozen=True)
class Figure:
    """A published mean over seeds, at one step of training."""

    mean: float
    std: float | None
    env_id: str
    steps: int
    source: str
    """whose, of how many seeds, measured how"""
    random: float | None = None
    """the mean return of random actions, where it is known"""

    @property
    def beats_random(self) -> bool:
        """Return True unless random play is within one published standard deviation."""
        return self.random is None or self.mean > self.random + (self.std or 0.0)


def find(algo: str, env_id: str, steps: int | None = None, label: str = "") -> Figure | None:
    """Return the figure of an algorithm on an environment of any version; at that step where one is given there."""
    document = _document()
    task = task_of(env_id)
    found = [one for one in document["figures"] if one["algo"] == algo and task_of(one["env_id"]) == task]
    found = [one for one in found if one.get("label", "") == label] or [one for one in found if "label" not in one]
    if not found:
        return None
    near = [one for one in found if steps is not None and abs(one["steps"] - steps) <= 0.05 * one["steps"]]
    same = [one for one in near or found if one["env_id"] == env_id]  # a source may list two versions
    best = (same or near or found)[0]
    source = document["sources"][best["source"]]
    seeds = best.get("seeds", source.get("seeds"))
    parts = (source["name"], f"{seeds} seed{'s' * (seeds != 1)}" if seeds else "", best.get("note", ""))
    return Figure(
        best["mean"],
        best.get("std"),
        best["env_id"],
        best["steps"],
        ", ".join(filter(None, parts)),
        document["random"].get(task),
    )


def task_of(env_id: str) -> str:
    """Return an environment's name without namespace, `NoFrameskip` and version: figures differ in those."""
    return re.sub(r"(NoFrameskip)?-v\d+$", "", env_id.rpartition("/")[2])


@cache
def _document() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text()))
