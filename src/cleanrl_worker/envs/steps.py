"""Optional step telemetry, collected in the training process and sent to its shell in batches."""

from __future__ import annotations

import atexit
import os
import time
from typing import Any

from mosaic.contract import variables
from mosaic.contract.events import to_line

# A batch is a line of some kilobytes, a few times a second: the loop must not wait for its own telemetry.
BATCH_STEPS = 512
BATCH_SECONDS = 0.25


class StepLog:
    """A log of (step, environment, reward, done) of every step, written to the notes file of a run's shell."""

    def __init__(self, path: str, num_envs: int) -> None:
        self.step = 0
        self._path, self._num_envs = path, num_envs
        self._gathered: list[tuple[int, int, float, int]] = []
        self._due = time.monotonic() + BATCH_SECONDS
        atexit.register(self.flush)

    def add(self, rewards: Any, ends: Any) -> None:
        """Add one step of every environment; `ends` is None if no episode ended."""
        self.step += self._num_envs
        done = [False] * self._num_envs if ends is None else ends.tolist()
        self._gathered += [(self.step, env, reward, int(done[env])) for env, reward in enumerate(rewards.tolist())]
        if len(self._gathered) >= BATCH_STEPS or time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Write the collected steps; on a full disk, only these steps are lost."""
        self._due = time.monotonic() + BATCH_SECONDS
        if not self._gathered:
            return
        line = to_line({"event": "step", "payload": {"steps": self._gathered}})
        self._gathered = []
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError:
            return
        try:
            os.write(descriptor, line)
        except OSError:
            pass
        finally:
            os.close(descriptor)


class NoLog:
    """A no-op log for a run without step telemetry."""

    def add(self, rewards: Any, ends: Any) -> None:
        """Do nothing."""


_logs: list[StepLog] = []
_handed_on: list[StepLog] = []


def step_log(num_envs: int) -> StepLog | NoLog:
    """Return a log for a process's first environments, which it trains in; a no-op log for others."""
    path = os.environ.get(variables.MOSAIC_STEP_LOG)
    if _handed_on:
        return _handed_on.pop()
    if not path or _logs:
        return NoLog()
    _logs.append(StepLog(path, num_envs))
    return _logs[0]


def hand_on() -> None:
    """Pass the log of closed environments to the next ones, which must be the same number."""
    _handed_on[:] = _logs


def count_from(step: int) -> None:
    """Set the step count after a resumption or a reset of the environments."""
    for log in _logs:
        log.step = step
