"""A run in the registry: the same values from the registry itself and over gRPC."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mosaic.trainer.states import ENDED, State


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file or folder that a run created; `path` is relative to the run's folder."""

    kind: str
    path: str
    step: int
    created_at: float


@dataclass(frozen=True, slots=True)
class Run:
    """A run's present state. Times are unix seconds, 0.0 if not yet happened.

    `payload`, `last_values` and `artifacts` are filled by get_run only.
    """

    run_id: str
    state: State
    reason: str = ""
    run_name: str = ""
    worker_type: str = ""
    algo: str = ""
    env_id: str = ""
    seed: int | None = None
    mode: str = "train"
    total_timesteps: int = 0
    priority: int = 0
    attempt: int = 1
    restarts: int = 0
    max_restarts: int = 0
    created_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0
    step: int = 0
    episodes: int = 0
    last_return: float | None = None
    mean_return: float | None = None
    """the newest `charts/mean_return`; the mean of the last 100 episodes if the run logs none"""
    last_length: float | None = None
    sps: float | None = None
    eta_seconds: float | None = None
    exit_code: int | None = None
    signal: str = ""
    queue_position: int = -1
    gpus: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    pid: int = 0
    folder: str = ""
    next_seq: int = 0
    worker_id: str = ""
    registered: bool = False
    agent_id: str = ""
    asked: str = ""
    external: bool = False
    group: str = ""
    """shared by runs that differ only in their seed: a given name, or "#" and a digest"""
    executor: str = "local"
    job: str = ""
    """the cluster's name for the job of its present attempt"""
    node: str = ""
    """the cluster's machine that runs it"""
    stalled: bool = False
    """its step has not grown for longer than its pace explains"""
    stalled_since: float = 0.0
    """time of its last step increase"""
    imported: bool = False
    """rebuilt from a folder: this home's user typed none of the names in its files"""
    curve: tuple[float, ...] = ()
    """its returns in a few points, if a list was requested with them"""
    payload: dict[str, Any] = field(default_factory=dict)
    last_values: dict[str, float] = field(default_factory=dict)
    artifacts: tuple[Artifact, ...] = ()

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def progress(self) -> float | None:
        """Return the progress from 0 to 1; None for a run without a known end."""
        return min(1.0, self.step / self.total_timesteps) if self.total_timesteps > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Return a document for `--json`: every field, and the progress."""
        return {**asdict(self), "state": str(self.state), "progress": self.progress}


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the matching runs, newest first; `next_page` is "" on the last page."""

    runs: tuple[Run, ...]
    next_page: str
    total: int


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a run: kind moved | progress | deleted | marked.

    `run` is its present state, None once deleted.
    """

    cursor: int
    kind: str
    run_id: str
    from_state: State | None
    to_state: State | None
    reason: str
    timestamp: float
    run: Run | None


@dataclass(slots=True)
class Rebuilt:
    """The outcome of a rebuild: ids that got a row, names that got none with the reason, and how many had one."""

    rebuilt: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    known: int = 0


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one metric in the order they were logged; `cursor` requests the points after them."""

    key: str
    steps: npt.NDArray[np.int64]
    times: npt.NDArray[np.float64]
    values: npt.NDArray[np.float64]
    cursor: int
    reset: bool
    total: int
    highest: float | None = None
    """the largest value, if the points are means"""

    def __len__(self) -> int:
        return len(self.values)
