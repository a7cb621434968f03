"""A run's live view in this process: the frame schedule, the drawing budget, and the reason for missing frames.

Also loaded by file path inside users' own interpreters: Python 3.8, standard library, numpy.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

if __name__.startswith("_mosaic."):
    from _mosaic.ring import FastLaneWriter, RingError
else:
    from mosaic.contract.ring import FastLaneWriter, RingError

INTERVAL_MS = 33
MAX_DIM = 1024  # the width of the widest page; CartPole's 600×400 is not reduced
BUDGET = 0.03
GRID_LIMIT = 8
MOST_TILES, MOST_DIM = 256, 8192  # the shell's limits: scanning more tiles would take longer than a step
PATIENCE = 3  # consecutive failures after which drawing stops
SMOOTHING = 0.1  # weight of a new episode in the rolling return
RATE_SECONDS = 0.5
# A frame of a megabyte evicts the training's data from the CPU caches; reloading it slows down the following steps and
# is not part of a frame's measured time.
AFTERMATH = 1.25


class NoPicture(Exception):
    """An environment that cannot be drawn at all; the text gives the reason."""


class Settings(NamedTuple):
    """Live-view settings from the environment variables."""

    mode: str
    slot: int
    limit: int
    interval: float
    max_dim: int
    budget: float
    first_step: int = 0
    """first step of a script's phase"""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings | None:
        """Return the settings, None if the live view is off."""
        mode = environment.get("GYM_GUI_FASTLANE_VIDEO_MODE") or "single"
        if environment.get("GYM_GUI_FASTLANE_ENABLED") != "1" or mode == "off":
            return None
        return cls(
            mode,
            int(_number(environment, "GYM_GUI_FASTLANE_SLOT", 0)),
            min(MOST_TILES, int(_number(environment, "GYM_GUI_FASTLANE_GRID_LIMIT", GRID_LIMIT)) or GRID_LIMIT),
            _number(environment, "CLEANRL_FASTLANE_INTERVAL_MS", INTERVAL_MS) / 1000,
            min(MOST_DIM, max(16, int(_number(environment, "CLEANRL_FASTLANE_MAX_DIM", MAX_DIM)))),
            min(1.0, max(1e-4, _number(environment, "CLEANRL_FASTLANE_BUDGET", BUDGET))),
            int(_number(environment, "MOSAIC_FIRST_STEP", 0)),
        )


class Lane:
    """Scheduling and publishing of frames; an unwatched step only costs a call of `due`.

    `next` is the time of the next frame: a loop with ten thousand steps a second compares it itself. Not thread-safe.
    Without a writer (no room in shared memory) no frame is ever due.
    """

    def __init__(self, settings: Settings, writer: FastLaneWriter | None, folder: Path) -> None:
        self.settings = settings
        self.writer = writer
        self.pid = os.getpid()
        self.step_rate_hz = 0.0
        self.frame_rate_hz = 0.0
        self._clock = ThreadClock()
        self._notes = folder / "logs" / "notes.jsonl"
        self._said: set[str] = set()
        self._passing = ""  # a temporary reason
        self._counted = (time.monotonic(), 0)
        self._shown_at = 0.0
        self.begin()

    def begin(self, label: str = "") -> None:
        """Reset the view for a new subject: training, an evaluation, a probe."""
        self.next = 0.0 if self.writer is not None else math.inf
        self.rolling_return, self._episodes = 0.0, 0
        self._spent = self._clear_at = 0.0
        self._costs: deque[float] = deque(maxlen=8)
        self._failures = 0
        self._warm = False
        if self.writer is not None:
            self.writer.tell(label=label)

    def due(self) -> bool:
        """Return True if a frame is due and the view is watched."""
        return time.monotonic() >= self.next and self.is_watched()

    def show(self, picture: Callable[[], Any], last_reward: float, steps: int, drawn_at: float | None = None) -> None:
        """Draw and publish a frame; an error costs the frame, never the training.

        `picture` returns a frame, or None if the renderer draws it; `drawn_at` is for a frame whose drawing began
        earlier.
        """
        assert self.writer is not None
        started, clock = time.monotonic(), self._clock.now()
        self._count(started, steps)
        try:
            frame = picture()
            if frame is not None:
                self.publish(frame, last_reward, steps, started if drawn_at is None else drawn_at)
            self._failures = 0
        except (RingError, NoPicture) as error:
            self.give_up(str(error))
        except Exception as error:  # users' own environments may raise anything
            self.writer.drop()
            self._failures += 1
            if self._failures >= PATIENCE:
                self.give_up(f"drawing failed: {type(error).__name__}: {error}")
        self._charge(started, clock)

    def publish(self, frame: Any, last_reward: float, steps: int, drawn_at: float) -> None:
        """Write a drawn frame to the ring."""
        assert self.writer is not None
        colours = fitted(as_colours(frame), self.settings.max_dim)
        self.flowing(drawn_at)
        self.writer.publish(
            np.ascontiguousarray(colours),
            colours.shape[1],
            colours.shape[0],
            last_reward=last_reward,
            rolling_return=self.rolling_return,
            step_rate_hz=self.step_rate_hz,
            frame_rate_hz=self.frame_rate_hz,
            step=self.settings.first_step + steps,
            drawn_at=drawn_at,
        )

    def flowing(self, now: float) -> None:
        """Update the frame rate for a new frame, and clear the reason for missing frames."""
        if self.writer is not None and self.writer.reason:
            self.writer.tell(reason="")
        gap, self._shown_at = now - self._shown_at, now
        rate = 1.0 / max(gap, 1e-3)
        self.frame_rate_hz = 0.9 * self.frame_rate_hz + 0.1 * rate if self.frame_rate_hz and gap < 1.0 else rate

    def clock(self) -> float:
        """Return the time in seconds by which drawing is charged."""
        return self._clock.now()

    def spend(self, seconds: float) -> None:
        """Charge time, by `clock`, that was spent on the current frame before `show`."""
        self._spent += seconds

    def episode(self, ret: float) -> None:
        """Update the rolling return with an ended episode's return."""
        self._episodes += 1
        weight = 1.0 if self._episodes == 1 else SMOOTHING
        self.rolling_return += weight * (ret - self.rolling_return)

    def explain(self, reason: str, quietly: bool = False) -> None:
        """Report the reason for missing frames: in the ring's header and, unless temporary, once as a warning event."""
        reason = " ".join(reason.split())[:500]
        self._passing = reason if quietly else ""
        if self.writer is not None:
            self.writer.tell(reason=reason)
        if quietly or reason in self._said:
            return
        self._said.add(reason)
        note = {"event": "warning", "payload": {"message": f"no live view: {reason}"}}
        try:
            with self._notes.open("a") as notes:
                notes.write(json.dumps(note) + "\n")
        except OSError:
            print(f"no live view: {reason}", file=sys.stderr)

    def give_up(self, reason: str) -> None:
        """Stop drawing the current subject, and report the reason."""
        self.explain(reason)
        self.next = math.inf

    def is_watched(self) -> bool:
        """Return True if the view is watched and within budget; if unwatched, check again a frame interval later."""
        if self.next == math.inf or self.writer is None:
            return False
        if self.writer.watched:
            short = self._clear_at - self._clock.now()
            if short > 0:
                self.next = time.monotonic() + short
            return short <= 0
        self.next = time.monotonic() + self.settings.interval
        if self._passing and self.writer.reason == self._passing:
            self.writer.tell(reason="")  # frames are available, but the view is not watched
        self._passing = ""
        self.writer.beat()
        return False

    def _charge(self, started: float, clock: float) -> None:
        """Schedule the next frame late enough to keep drawing within its share of the thread."""
        now = self._clock.now()
        cost, self._spent = now - clock + self._spent, 0.0
        if self._warm:  # exclude the first, which opens windows and loads fonts
            self._costs.append(cost)
        self._warm = True
        usual = AFTERMATH * usual_cost(self._costs)
        self._clear_at = now + usual / self.settings.budget - usual
        if self.next != math.inf:
            self.next = started + max(self.settings.interval, self._clear_at - clock)

    def _count(self, now: float, steps: int) -> None:
        then, before = self._counted
        if now - then >= RATE_SECONDS:
            self.step_rate_hz = max(0, steps - before) / (now - then)
            self._counted = (now, steps)


def usual_cost(costs: Sequence[float]) -> float:
    """Return the mean cost of a frame, outliers (page faults, garbage collection) clipped to three times the median."""
    if not costs:
        return 0.0
    middle = sorted(costs)[len(costs) // 2]
    return sum(min(cost, 3 * middle) for cost in costs) / len(costs)


class ThreadClock:
    """A clock of this thread in seconds, without its waits for a core.

    On a busy machine a frame is drawn between two preemptions, while the training is preempted: by the wall clock,
    drawing would get more than its share of the thread's time. If the system does not report the waits, this is the
    wall clock.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._file = -1

    def now(self) -> float:
        if self._pid != os.getpid():  # a fork has another thread
            self._pid = os.getpid()
            try:
                self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._file = -1
        try:
            waited = int(os.pread(self._file, 100, 0).split()[1]) / 1e9 if self._file >= 0 else 0.0
        except (OSError, ValueError, IndexError):
            waited = 0.0
        return time.monotonic() - waited


def tiled(frames: Sequence[Any], max_dim: int) -> np.ndarray:
    """Return frames tiled in floor(sqrt(n)) rows, in cells of the largest frame's size; missing ones are black."""
    pictures = [None if frame is None else as_colours(frame) for frame in frames]
    rows = math.isqrt(len(pictures))
    columns = -(-len(pictures) // rows)
    height = max((picture.shape[0] for picture in pictures if picture is not None), default=1)
    width = max((picture.shape[1] for picture in pictures if picture is not None), default=1)
    every = max(1, -(-max(rows * height, columns * width) // max_dim))
    height, width = -(-height // every), -(-width // every)
    whole = np.zeros((rows * height, columns * width, 3), np.uint8)
    for index, picture in enumerate(pictures):
        if picture is not None:
            small = picture[::every, ::every]
            top, left = index // columns * height, index % columns * width
            whole[top : top + small.shape[0], left : left + small.shape[1]] = small
    return whole


def fitted(frame: np.ndarray, max_dim: int) -> np.ndarray:
    """Return a frame downsampled to every n-th pixel, with no side longer than `max_dim`."""
    every = -(-max(frame.shape[:2]) // max_dim)
    return frame[::every, ::every] if every > 1 else frame


def as_colours(frame: Any) -> np.ndarray:
    """Return a frame as uint8 of shape (height, width, 3); raise ValueError if it is not an image."""
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim not in (2, 3) or not frame.size:
        raise ValueError(f"render() gave no picture of bytes but {_described(frame)}")
    if frame.ndim == 2:
        frame = frame[:, :, None]
    if frame.shape[2] == 1:
        return np.repeat(frame, 3, axis=2)
    if frame.shape[2] < 3:
        raise ValueError(f"render() gave a picture with {frame.shape[2]} channels, not 3")
    return frame[:, :, :3]


def _described(frame: Any) -> str:
    shape = f"an array of {frame.dtype} of shape {frame.shape}" if isinstance(frame, np.ndarray) else ""
    return shape or type(frame).__name__


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    """Return a variable's number, the default if it is unreadable (the shell has refused it before)."""
    try:
        value = float(environment.get(name) or default)
    except ValueError:
        return default
    return value if value >= 0 and math.isfinite(value) else default
