"""Sampling profiler of a training: a timer inspects the stack twenty times a second and counts the parts.

The loop needs no instrumentation; a sample costs about 20 µs. A thread would be biased: it only runs where the loop
releases the GIL, in torch, and would see little else.
"""

from __future__ import annotations

import atexit
import re
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

EVERY = 0.05
LEAST = 60  # minimum samples for shares: three seconds
IDLE = 200  # samples without the loop on the stack, after which the training counts as ended
PLAIN = "other"

# A sample's part is that of the first frame below the loop that matches (file, functions; none: the whole file).
PARTS = (
    ("transfer", "learn/batches.py", ("draw", "send", "_send", "_send_new")),
    ("transfer", "nets/layers.py", ("refresh", "wait", "numbers")),
    ("inference", "nets/layers.py", ("__call__",)),
    ("inference", "learn/courier.py", ()),
    ("inference", "algorithms/", ("__call__", "act", "choose")),
    ("inference", "nets/grid.py", ("__call__",)),
    ("view", "cleanrl_worker/fastlane/gym_wrapper.py", ()),
    ("view", "cleanrl_worker/fastlane/pacer.py", ()),
    ("view", "cleanrl_worker/play/game_view.py", ()),
    ("view", "cleanrl_worker/fastlane/mujoco_process.py", ()),
    ("environment", "envs/vectors.py", ()),
    ("environment", "envs/pools.py", ()),
    ("environment", "gymnasium/", ()),
    ("update", "algorithms/", ("learn", "learn_critic", "learn_critics", "learn_actor", "update", "clipped_losses")),
    ("update", "learn/optim.py", ()),
    ("sampling", "learn/buffers.py", ()),
    ("sampling", "learn/frame_buffer.py", ()),
    ("checkpoints", "run/training.py", ("checkpoint", "finish")),
    ("logging", "run/training.py", ()),
)
# Code of the loop itself belongs to its section of the file: `# 2 learn`.
SECTION = re.compile(r"^\s*# \d+ (.+)$")
SECTIONS = (
    ("update", ("learn", "update", "advantages", "returns", "move", "auxiliary")),
    ("inference", ("act", "collect", "choose", "plays")),
)
# The metrics are coarser: sampling and transfer count as update.
METRICS = {
    "environment": "env",
    "inference": "inference",
    "update": "update",
    "sampling": "update",
    "transfer": "update",
}
TAGS = ("perf/env", "perf/inference", "perf/update", "perf/other")


def sections_of(file: str) -> list[tuple[int, str]]:
    """Return the first line of each section of an algorithm's loop, with its part."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:  # the file was moved during the run
        return []
    headings = ((number, SECTION.match(line)) for number, line in enumerate(lines, 1))
    return [(number, _part_of_heading(found[1])) for number, found in headings if found]


def part_of(below: Sequence[FrameType], sections: Sequence[tuple[int, str]]) -> str:
    """Return the part being executed; `below` are the frames from the loop's own inwards."""
    for frame in below[1:]:
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        for part, place, functions in PARTS:
            if place in file and (not functions or function in functions):
                return part
    return next((part for first, part in reversed(sections) if first <= (below[0].f_lineno or 0)), PLAIN)


def frames_below(innermost: FrameType | None, loop_file: str) -> list[FrameType]:
    """Return the frames from the loop (`main` of that file) inwards; none if it is not running or is evaluating."""
    frames: list[FrameType] = []
    while innermost is not None:
        frames.append(innermost)
        code = innermost.f_code
        if code.co_name == "main" and code.co_filename == loop_file:
            return frames[::-1]
        if code.co_name == "evaluate":
            break
        innermost = innermost.f_back
    return []


class Split:
    """A profiler of the main thread, active until it is stopped or the loop has ended.

    It uses SIGALRM and its timer; if these are already in use, it stays inactive.
    """

    def __init__(self, loop_file: str) -> None:
        self._file, self._sections = loop_file, sections_of(loop_file)
        self._looks: Counter[str] = Counter()
        self._unseen = 0
        self._runs = False

    def start(self) -> None:
        """Start the timer; a no-op if it is running."""
        if self._runs or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL or any(signal.getitimer(signal.ITIMER_REAL)):
            return
        signal.signal(signal.SIGALRM, self._look)
        signal.siginterrupt(signal.SIGALRM, False)  # restart interrupted system calls
        signal.setitimer(signal.ITIMER_REAL, EVERY, EVERY)
        atexit.register(self.stop)  # a process that has put its handlers away would be killed by the next tick
        self._runs = True

    def stop(self) -> None:
        if self._runs and signal.getsignal(signal.SIGALRM) == self._look:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        atexit.unregister(self.stop)
        self._runs = False

    def shares(self) -> dict[str, float]:
        """Return `perf/…` since the last non-empty result; empty with too few samples."""
        looks = self._looks
        total = looks.total()
        if total < LEAST:
            return {}
        self._looks = Counter()
        grouped: Counter[str] = Counter()
        for part, count in looks.items():
            grouped[f"perf/{METRICS.get(part, PLAIN)}"] += count
        return {tag: round(grouped[tag] / total, 3) for tag in TAGS}

    def _look(self, _number: int, frame: FrameType | None) -> None:
        below = frames_below(frame, self._file)
        self._unseen = 0 if below else self._unseen + 1
        if below:
            self._looks[part_of(below, self._sections)] += 1
        elif self._unseen > IDLE:
            self.stop()


def _part_of_heading(heading: str) -> str:
    words = re.findall(r"[a-z]+", heading.partition(":")[0])
    return next((part for part, known in SECTIONS if set(known) & set(words)), PLAIN)
