"""A slice of training: workers run until a moment, save a checkpoint, and what was measured is appended to a log."""

import contextlib
import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rows.energy import Meter
from rows.queued import Row
from rows.training import Training

SRC = Path(__file__).parents[2] / "src"
POLL_SECONDS = 0.1
GRACE_SECONDS = 120.0  # at most, to reach the next scheduled checkpoint
GRACE_SHARE = 0.25  # of a slice
SAVING_SHARE = 0.8  # of the grace period: a run reaches its next scheduled checkpoint in it, or saves at once
PR_SET_PDEATHSIG = 1
_NOT_INHERITED = ("MOSAIC_", "CLEANRL_", "GYM_GUI_", "TRACK_", "WANDB_")


@dataclass
class Slice:
    """The measurements of a slice."""

    began: float
    seconds: float = 0.0
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)
    """by seed: from, to"""
    exact: dict[str, bool] = field(default_factory=dict)
    kwh: float | None = None
    commit: str = ""
    machine: str = ""
    failed: str = ""
    """the last line of a worker that ended with an error"""
    interrupted: bool = False
    """a signal stopped it before its time"""


class Pace:
    """Watches the checkpoints of a run to foresee the next one."""

    def __init__(self, one: Training, step: int, now: float) -> None:
        self._one, self._step, self._at, self._interval = one, step, now, 0.0

    def is_last_before(self, end: float) -> bool:
        """Return True if a checkpoint was just saved, and the next one would come after `end`."""
        folder, now = self._one.paths.checkpoints, time.monotonic()
        newest = max((int(path.name) for path in folder.glob("[0-9]*")), default=0)
        if newest <= self._step:
            return False
        self._interval = max(self._interval, now - self._at)  # the first holds the start, too
        self._step, self._at = newest, now
        return now + self._interval > end


def run_slice(
    trainings: Sequence[Training], seconds: float, commit: str, *, last: bool = False, grace: float | None = None
) -> Slice:
    """Train these seeds side by side for so many seconds at most, and log the slice.

    A seed whose next scheduled checkpoint will not fit is stopped after the one before it, but not in its last slice.
    """
    row, work = trainings[0].row, trainings[0].work
    grace = min(GRACE_SECONDS, GRACE_SHARE * seconds) if grace is None else grace
    found = Slice(time.time(), commit=commit, machine=machine())
    earlier = slices_of(row, work)
    begins = [one.progress(since(earlier, one.seed)) for one in trainings]
    meter, clock = Meter(gpu=row.device == "gpu"), time.monotonic()
    with _stop_signals() as stopped, contextlib.ExitStack() as stack:
        workers = [
            _start(stack, one, one.write_config(begin, round(grace, 1)), os.getpid())
            for one, begin in zip(trainings, begins, strict=True)
        ]
        paces, asked = [Pace(one, begin.step, clock) for one, begin in zip(trainings, begins, strict=True)], set[int]()
        while any(worker.poll() is None for worker in workers):
            passed = time.monotonic() - clock
            for number, (worker, pace) in enumerate(zip(workers, paces, strict=True)):
                late = not last and pace.is_last_before(clock + seconds - (1 - SAVING_SHARE) * grace)
                if number not in asked and (late or stopped or passed > seconds - grace):
                    asked.add(number)
                    worker.send_signal(signal.SIGTERM)  # the worker ends its algorithm by force after the grace period
            meter.sample()
            time.sleep(POLL_SECONDS)
        found.interrupted = bool(stopped)
    found.seconds, found.kwh = round(time.monotonic() - clock, 2), meter.kwh()
    for number, (one, begin, worker) in enumerate(zip(trainings, begins, workers, strict=True)):
        end = one.newest() if last else one.progress(begin.step)
        found.steps[str(one.seed)], found.exact[str(one.seed)] = (begin.step, end.step), end.exact
        if worker.returncode and number not in asked:
            found.failed = f"seed {one.seed}: {_last_words(one, worker.returncode)}"
    _append(log_of(row, work), found)
    return found


def slices_of(row: Row, work: Path) -> list[Slice]:
    """Return the slices of a row that were logged; a line that was cut short is ignored."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in log_of(row, work).read_text().splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                found.append(Slice(**entry | {"steps": {k: tuple(v) for k, v in entry["steps"].items()}}))
    return found


def since(slices: Sequence[Slice], seed: int) -> int:
    """Return the step at which the last slice of a seed began."""
    return next((one.steps[str(seed)][0] for one in reversed(slices) if str(seed) in one.steps), 0)


def log_of(row: Row, work: Path) -> Path:
    """Return the path of a row's log of slices."""
    return work / "slices" / f"{row.key}.jsonl"


def machine() -> str:
    """Return the hardware that speed depends on; no host name."""
    gpu = ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        gpu = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()[0]
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    return ", ".join(filter(None, (gpu, f"{os.cpu_count()} × {cpu}")))


def environment(home: Path) -> dict[str, str]:
    """Return the variables of a worker: this checkout's sources, and none of this user's settings of other runs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
    path = os.pathsep.join(filter(None, (str(SRC), kept.get("PYTHONPATH", ""))))
    return {**kept, "PYTHONPATH": path, "MOSAIC_HOME": str(home)}


def _start(stack: contextlib.ExitStack, one: Training, config: Path, parent: int) -> subprocess.Popen[bytes]:
    output = stack.enter_context(open(_output(one), "wb"))

    def die_with_parent() -> None:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)

    return subprocess.Popen(
        [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(config)],
        env=environment(one.work),
        cwd=one.work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=output,
        start_new_session=True,  # Ctrl-C reaches this process alone, which stops the worker gently
        preexec_fn=die_with_parent if sys.platform == "linux" else None,
    )


def _output(one: Training) -> Path:
    path = one.work / "logs" / f"{one.paths.run_id}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _last_words(one: Training, code: int) -> str:
    for path in (one.paths.stderr_log, _output(one)):
        with contextlib.suppress(OSError):
            if lines := [line for line in path.read_text(errors="replace").splitlines() if line.strip()]:
                return lines[-1].strip()[:300]
    return f"the worker ended with code {code}"


def _append(path: Path, found: Slice) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(vars(found)) + "\n")
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM while a slice runs: its workers still save their checkpoints."""
    received: list[int] = []

    def note(number: int, _frame: Any) -> None:
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
