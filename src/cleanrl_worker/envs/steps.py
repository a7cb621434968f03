"""Steps as telemetry: gathered in the training process and handed to its shell in batches, where they are asked for."""

from __future__ import annotations

import atexit
import os
import time
from typing import Any

from mosaic.contract import variables
from mosaic.contract.events import to_line

# A batch is a line of some kilobytes, a few of them a second: the loop must not wait for its own telemetry.
BATCH_STEPS = 512
BATCH_SECONDS = 0.25


class StepLog:
    """Writes (step, environment, reward, done) of every step to the file that a run's shell reads notes from."""

    def __init__(self, path: str, num_envs: int) -> None:
        self.step = 0
        self._path, self._num_envs = path, num_envs
        self._gathered: list[tuple[int, int, float, int]] = []
        self._due = time.monotonic() + BATCH_SECONDS
        atexit.register(self.flush)

    def add(self, rewards: Any, ends: Any) -> None:
        """One step of every environment; both are arrays, `ends` None where none ended."""
        self.step += self._num_envs
        done = [False] * self._num_envs if ends is None else ends.tolist()
        self._gathered += [(self.step, env, reward, int(done[env])) for env, reward in enumerate(rewards.tolist())]
        if len(self._gathered) >= BATCH_STEPS or time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Hand over what was gathered; a full disk costs these steps and nothing else."""
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
    """What a run gets that did not ask for steps."""

    def add(self, rewards: Any, ends: Any) -> None:
        """Nothing is written."""


_logs: list[StepLog] = []
_handed_on: list[StepLog] = []


def step_log(num_envs: int) -> StepLog | NoLog:
    """A log for the environments that a process makes first, which are those it trains in."""
    path = os.environ.get(variables.MOSAIC_STEP_LOG)
    if _handed_on:
        return _handed_on.pop()
    if not path or _logs:
        return NoLog()
    _logs.append(StepLog(path, num_envs))
    return _logs[0]


def hand_on() -> None:
    """The environments that had the log are closed: the same number of others, made next, go on with it."""
    _handed_on[:] = _logs


def count_from(step: int) -> None:
    """The run stands at this step: it was resumed, or its environments start anew."""
    for log in _logs:
        log.step = step
