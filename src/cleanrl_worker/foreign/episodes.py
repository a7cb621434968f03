"""Counts the episodes of a script that reports none: rows of `charts/episodic_return` in its run's metrics."""

from __future__ import annotations

import json
import mmap
import os
import time
from typing import Any, Dict, Tuple

import gymnasium

FIRST_STEP = "MOSAIC_FIRST_STEP"
ENVIRONMENTS = 1024


class Counter:
    """Steps and episodes of all environments of a script, those in forked processes included."""

    def __init__(self) -> None:
        self._path = os.path.join(os.getcwd(), "metrics.jsonl")
        # Without a name, shared with processes that are forked later; each environment has a word of its own.
        self._memory = memoryview(mmap.mmap(-1, 8 * ENVIRONMENTS)).cast("Q")
        self._made = 0
        self._first = int(os.environ.get(FIRST_STEP) or 0)
        self._pid = os.getpid()

    def slot(self) -> int:
        """Return the word of a new environment; processes of an AsyncVectorEnv take theirs by their pid."""
        self._made += 1
        place = self._made if os.getpid() == self._pid else os.getpid()
        return place % ENVIRONMENTS

    def step(self, slot: int, steps: int = 1) -> None:
        """Count steps."""
        self._memory[slot] += steps

    def episode(self, value: float, length: int) -> None:
        """Append a row for an episode that has ended."""
        row: Dict[str, Any] = {"step": self._first + sum(self._memory), "time": time.time()}
        row.update({"charts/episodic_return": value, "charts/episodic_length": length})
        with open(self._path, "ab", buffering=0) as file:
            file.write(json.dumps(row).encode() + b"\n")


class CountedEpisodes(gymnasium.Wrapper):
    """Counts an environment's steps and episodes; what it returns is the environment's own, unchanged."""

    def __init__(self, env: Any, counter: Counter) -> None:
        super().__init__(env)
        self._counter, self._slot = counter, counter.slot()
        self._return, self._length = 0.0, 0

    def reset(self, **options: Any) -> Tuple[Any, Any]:
        self._return, self._length = 0.0, 0
        return self.env.reset(**options)

    def step(self, action: Any) -> Tuple[Any, Any, bool, bool, Dict[str, Any]]:
        answer: Any = self.env.step(action)
        self._counter.step(self._slot)
        self._return += float(answer[1])
        self._length += 1
        if answer[2] or answer[3]:
            self._counter.episode(self._return, self._length)
            self._return, self._length = 0.0, 0
        return (answer[0], answer[1], answer[2], answer[3], answer[4])

    @property
    def spec(self) -> Any:  # type: ignore[override]
        """Return the environment's own: a copy made from it has no such wrapper."""
        return self.env.spec
