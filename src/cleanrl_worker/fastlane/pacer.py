"""One run's live view in this process: when a frame is due, what it may cost, and why there is none.

Loaded by file path inside people's own interpreters, too: Python 3.8, standard library, numpy.
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
MAX_DIM = 1024  # as wide as the widest page shows it; CartPole's 600×400 stays whole
BUDGET = 0.03
GRID_LIMIT = 8
MOST_TILES, MOST_DIM = 256, 8192  # what the shell lets pass: looking through more tiles would take longer than a step
PATIENCE = 3  # failures in a row after which drawing is given up
SMOOTHING = 0.1  # weight of a new episode in the rolling return
RATE_SECONDS = 0.5
# A picture of a megabyte pushes what training was working on out of the processor's caches; fetching that again falls
# into the steps that follow, not into the time that a frame is seen to take.
AFTERMATH = 1.25


class NoPicture(Exception):
    """What is to be shown cannot be drawn at all; the text says why."""


class Settings(NamedTuple):
    """How a run is shown, as its environment variables say."""

    mode: str
    slot: int
    limit: int
    interval: float
    max_dim: int
    budget: float
    first_step: int = 0
    """where a script's phase goes on counting"""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings | None:
        """None where the live view is off."""
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
    """Decides when to draw and publishes what was drawn; `due` is all that an unwatched step costs.

    `next` is the time of the next frame: a loop that is stepped ten thousand times a second compares it itself. For one
    thread at a time. Without a writer (no room in shared memory) nothing is ever due.
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
        self._passing = ""  # a reason that ends by itself
        self._counted = (time.monotonic(), 0)
        self._shown_at = 0.0
        self.begin()

    def begin(self, label: str = "") -> None:
        """Show something else from now on: training, an evaluation, a probe."""
        self.next = 0.0 if self.writer is not None else math.inf
        self.rolling_return, self._episodes = 0.0, 0
        self._spent = self._clear_at = 0.0
        self._costs: deque[float] = deque(maxlen=8)
        self._failures = 0
        self._warm = False
        if self.writer is not None:
            self.writer.tell(label=label)

    def due(self) -> bool:
        """Whether a frame is to be drawn now: its time has come, and somebody looks."""
        return time.monotonic() >= self.next and self.is_watched()

    def show(self, picture: Callable[[], Any], last_reward: float, steps: int, drawn_at: float | None = None) -> None:
        """Draw and publish; whatever goes wrong costs a frame, never the training.

        `picture` returns a frame, or None when it handed the drawing over to the renderer; `drawn_at` is for one whose
        drawing began before.
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
        except Exception as error:  # people's own environments may raise anything
            self.writer.drop()
            self._failures += 1
            if self._failures >= PATIENCE:
                self.give_up(f"drawing failed: {type(error).__name__}: {error}")
        self._charge(started, clock)

    def publish(self, frame: Any, last_reward: float, steps: int, drawn_at: float) -> None:
        """Put a drawn frame into the ring."""
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
        """Note that a frame comes: the rate, and an end to reasons why none does."""
        if self.writer is not None and self.writer.reason:
            self.writer.tell(reason="")
        gap, self._shown_at = now - self._shown_at, now
        rate = 1.0 / max(gap, 1e-3)
        self.frame_rate_hz = 0.9 * self.frame_rate_hz + 0.1 * rate if self.frame_rate_hz and gap < 1.0 else rate

    def clock(self) -> float:
        """Seconds by which drawing is charged."""
        return self._clock.now()

    def spend(self, seconds: float) -> None:
        """Time, by `clock`, that went into the frame under way before `show`."""
        self._spent += seconds

    def episode(self, ret: float) -> None:
        """An episode has ended with this return."""
        self._episodes += 1
        weight = 1.0 if self._episodes == 1 else SMOOTHING
        self.rolling_return += weight * (ret - self.rolling_return)

    def explain(self, reason: str, quietly: bool = False) -> None:
        """Say why no frame comes: in the ring's header and, unless it will pass, once as a warning event."""
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
        """Draw no more of what is shown now, and say why."""
        self.explain(reason)
        self.next = math.inf

    def is_watched(self) -> bool:
        """Whether somebody looks; when nobody does, the next look is a frame's time away."""
        if self.next == math.inf or self.writer is None:
            return False
        if self.writer.watched:
            short = self._clear_at - self._clock.now()
            if short > 0:
                self.next = time.monotonic() + short
            return short <= 0
        self.next = time.monotonic() + self.settings.interval
        if self._passing and self.writer.reason == self._passing:
            self.writer.tell(reason="")  # there is something to be seen, only nobody who looks
        self._passing = ""
        self.writer.beat()
        return False

    def _charge(self, started: float, clock: float) -> None:
        """Put the next frame so far off that drawing stays within its share of the thread."""
        now = self._clock.now()
        cost, self._spent = now - clock + self._spent, 0.0
        if self._warm:  # the first one opens windows and loads fonts: no measure of the next
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
    """What a frame costs on average; one that met a page fault or a collection of garbage counts as three at most."""
    if not costs:
        return 0.0
    middle = sorted(costs)[len(costs) // 2]
    return sum(min(cost, 3 * middle) for cost in costs) / len(costs)


class ThreadClock:
    """Seconds of this thread without those in which it waited for a core.

    On a crowded machine a frame is drawn between two preemptions, while training is what gets preempted: by the wall
    clock drawing would take more than its share of what the thread gets. Where the system does not tell how long it
    waited, this is the wall clock.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._file = -1

    def now(self) -> float:
        if self._pid != os.getpid():  # a fork has a thread of its own
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
    """Frames side by side in floor(sqrt(n)) rows, each in a cell of the largest one's size; black where none is."""
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
    """Every n-th pixel, so that no side is longer than allowed."""
    every = -(-max(frame.shape[:2]) // max_dim)
    return frame[::every, ::every] if every > 1 else frame


def as_colours(frame: Any) -> np.ndarray:
    """A picture as bytes of shape (height, width, 3); ValueError for what is none."""
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
    """A variable's number; one that cannot be read is as good as absent (the shell has refused it before)."""
    try:
        value = float(environment.get(name) or default)
    except ValueError:
        return default
    return value if value >= 0 and math.isfinite(value) else default
