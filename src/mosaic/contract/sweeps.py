"""A sweep's summary, from the command that runs it to pages: `var/sweeps/NAME/summary.json`, rewritten whole."""

from __future__ import annotations

import time
from fractions import Fraction
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from mosaic.contract.errors import ConfigError, shown
from mosaic.contract.fields import MANIFEST_BYTES, read_bytes
from mosaic.contract.groups import check_name
from mosaic.contract.paths import write_atomic

VERSION = 1
TrialState = Literal["running", "complete", "pruned", "failed"]
Value = bool | int | float | str | None


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Dimension(_Part):
    """One parameter that varies: between two bounds, or among choices."""

    name: str
    kind: Literal["float", "int", "choice"]
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    choices: tuple[Value, ...] = ()

    @property
    def told(self) -> str:
        """Return a short description of the range."""
        if self.kind == "choice":
            return " | ".join(map(str, self.choices))
        words = [f"{self.low:.6g} to {self.high:.6g}"]
        words += ["by factors"] if self.log else []
        words += [f"in steps of {self.step:g}"] if self.step else []
        return ", ".join(words)

    def at(self, share: float) -> Value:
        """Return the value at a fraction of the range: 0 is the first, 1 the last."""
        if self.kind == "choice":
            return self.choices[round(share * (len(self.choices) - 1))]
        if self.log:
            value = min(self.high, self.low * (self.high / self.low) ** share)  # powers may end a hair above
            return round(value) if self.kind == "int" else value
        if self._stride is None:
            return self.low + share * (self.high - self.low)
        return self._after(round(Fraction(share) * self._strides))

    def values(self, most: int) -> tuple[Value, ...] | None:
        """Return all possible values, in order; None if they are more than `most`."""
        if self.kind == "choice":
            return self.choices if len(self.choices) <= most else None
        if self._stride is None or self._strides >= most:
            return None
        return tuple(self._after(count) for count in range(self._strides + 1))

    @property
    def _stride(self) -> Fraction | None:
        """Return the exact decimal step between values: in floats 1 // 0.1 is 9."""
        if self.step:
            return Fraction(str(self.step))
        return Fraction(1) if self.kind == "int" else None

    @property
    def _strides(self) -> int:
        return int((Fraction(str(self.high)) - Fraction(str(self.low))) // (self._stride or 1))

    def _after(self, strides: int) -> Value:
        value = Fraction(str(self.low)) + strides * (self._stride or 1)
        return int(value) if self.kind == "int" else float(value)


class Trial(_Part):
    """One set of parameters, and its result; `value` of a pruned one is its last report."""

    number: int
    state: TrialState
    params: dict[str, Value] = {}
    value: float | None = None
    runs: tuple[str, ...] = ()
    reason: str = ""


class Summary(_Part):
    """A sweep's current state."""

    version: int = VERSION
    name: str
    algo: str
    env_id: str
    metric: str
    last: int
    direction: Literal["maximize", "minimize"]
    seeds: tuple[int, ...]
    total_timesteps: int
    wanted: int
    space: tuple[Dimension, ...]
    trials: tuple[Trial, ...] = ()
    importance: dict[str, float] = {}
    best: int | None = None
    defaults: int | None = None
    """the trial with the algorithm's defaults; None if they lie outside the space"""
    command: str = ""
    """the command that trains with the best parameters"""
    updated_at: float = 0.0

    def best_trial(self) -> Trial | None:
        return next((trial for trial in self.trials if trial.number == self.best), None)

    def default_trial(self) -> Trial | None:
        """Return the trial with the defaults, the baseline for all others, once it is complete."""
        found = (trial for trial in self.trials if trial.number == self.defaults and trial.state == "complete")
        return next(found, None)

    def count(self, state: TrialState) -> int:
        return sum(trial.state == state for trial in self.trials)


def sweeps_folder(home: Path) -> Path:
    return home / "var" / "sweeps"


def summary_file(home: Path, name: str) -> Path:
    return sweeps_folder(home) / check_name(name) / "summary.json"


def write_summary(home: Path, summary: Summary) -> None:
    """Publish the current state for pages."""
    fresh = summary.model_copy(update={"updated_at": time.time()})
    write_atomic(summary_file(home, summary.name), fresh.model_dump_json(indent=1) + "\n")


def read_summary(home: Path, name: str) -> Summary:
    """Return a sweep of this home; raise ConfigError if it does not exist, or cannot be read."""
    path = summary_file(home, name)
    try:
        if path.exists():
            return Summary.model_validate_json(read_bytes(path, "summary", MANIFEST_BYTES))
    except (OSError, ValueError):  # of pydantic and of the border, too
        raise ConfigError(f"{path} cannot be read; `mosaic sweep --name {name}` writes it anew") from None
    raise ConfigError(f"no sweep {shown(name)} in {home}; start one with: mosaic sweep ALGO ENV")


def list_sweeps(home: Path) -> list[str]:
    """Return the names of a home's sweeps, the most recently updated first."""
    files = sorted(sweeps_folder(home).glob("*/summary.json"), key=_moved, reverse=True)
    return [file.parent.name for file in files]


def _moved(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # gone meanwhile
        return 0.0
