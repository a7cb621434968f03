"""A run's live view in the terminal, and as a picture file."""

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np

from mosaic.contract.errors import ConfigError, WorkerError
from mosaic.contract.frames import FastLaneReader, Frame, RingError, Status, encode_png
from mosaic.contract.paths import RunPaths, resolve_home, write_atomic
from mosaic.contract.phases import is_alive

LATEST = "latest"
LINES_BENEATH = 3
FRAMES_PER_SECOND = 30
START_SECONDS = 30.0  # for a run accepted just now, until its algorithm's process has started
ASK_SECONDS = 0.5  # between two checks if a run continues
MARK_SECONDS = 5.0  # between two checks for a stalled run
SILENCE_SECONDS = 10.0  # without a sign of the writer, after which a viewer reports it


def find_run(text: str) -> RunPaths:
    """Return the run of this id, of the only id with this prefix, or for "latest" the one started last."""
    folder = resolve_home() / "var" / "trainer" / "runs"
    runs = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not runs:
        raise ConfigError(f"there are no runs in {folder}; start one with: mosaic train ppo CartPole-v1")
    if text == LATEST:
        return RunPaths(max(runs, key=lambda run: _started(RunPaths(run))))
    found = [text] if text in runs else [run for run in runs if run.lower().startswith(text.lower())]
    if len(found) == 1:
        return RunPaths(found[0])
    if found:
        some = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
        raise ConfigError(f"{len(found)} runs begin with {text!r} ({some}); type more of the id")
    raise ConfigError(f"no run begins with {text!r} in {folder}; the newest is {runs[-1]}, or type: latest")


def watch(
    run: str,
    stream: TextIO | None = None,
    goes_on: Callable[[], bool] = lambda: False,
    mark: Callable[[], str] = lambda: "",
) -> int:
    """Show a run until it ends or the user leaves; return the exit code.

    `goes_on` returns True if another ring will follow the closed one, that of a retry. `mark` returns the daemon's mark
    of the run, "" for most.
    """
    stream = sys.stdout if stream is None else stream
    paths = find_run(run)
    if not stream.isatty():
        raise ConfigError(f"a live picture needs a terminal; for a file, type: mosaic snapshot {paths.run_id} out.png")
    with _open(paths, goes_on) as reader, _screen(stream):
        canvas = TerminalPicture(stream)
        seen, ring, marked = 0, reader.name, -math.inf
        while True:
            frame, status = reader.latest_frame(seen), reader.status()
            if reader.name != ring:  # of the next start; it counts from 1 again
                seen, ring = 0, reader.name
                continue
            ended = status.state == "closed"
            if ended and not (_runs_on(paths) or goes_on()):
                break
            if frame is not None:
                seen = frame.index
            if time.monotonic() - marked > MARK_SECONDS:
                canvas.mark, marked = mark(), time.monotonic()
            canvas.show(frame, status)
            if ended:
                time.sleep(ASK_SECONDS)
            else:
                reader.wait(seen, 0.0 if frame is None else 1 / FRAMES_PER_SECOND)
    print(f"Run {paths.run_id} has ended.", file=stream)
    return 0


def snapshot(run: str, target: Path, seconds: float = 30.0, goes_on: Callable[[], bool] = lambda: False) -> str:
    """Write the next frame of a run as PNG; return a line that describes it. `goes_on` as for `watch`."""
    paths = find_run(run)
    if target.suffix.lower() != ".png":
        raise ConfigError(f"{target}: a snapshot is written as PNG; give a name that ends in .png")
    asked = time.monotonic()
    with _open(paths, goes_on) as reader:
        while True:
            frame, status = reader.latest_frame(), reader.status()
            # a frame drawn before the request may be hours old
            if frame is not None and frame.time >= asked:
                break
            ended = status.state == "closed"
            if time.monotonic() - asked > seconds or (ended and not (_runs_on(paths) or goes_on())):
                waited = f"no frame within {seconds:.0f} s: the run is between two steps, or paused"
                over = "the run has ended" if ended else ""
                raise WorkerError(f"no picture of {paths.run_id}: {over or status.reason or waited}")
            time.sleep(ASK_SECONDS if ended else 0.02)
    write_atomic(target, encode_png(frame.array))
    return f"{target}: {frame.width}×{frame.height}, {numbers(frame, status)}"


def numbers(frame: Frame, status: Status) -> str:
    """Return a frame's numbers as one line."""
    shown = f"{status.label}  " if status.label else ""
    return (
        f"{shown}reward {frame.last_reward:.2f}   return {frame.rolling_return:.1f}   "
        f"{frame.step_rate_hz:,.0f} steps/s   step {frame.step:,}"
    )


class TerminalPicture:
    """A picture in half blocks: the upper half of a cell in its text colour, the lower in its background."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: list[str] = []
        self._size = (0, 0)
        self._frame: Frame | None = None
        self._picture: list[str] = []
        self.mark = ""

    def show(self, frame: Frame | None, status: Status) -> None:
        """Draw the changes: a new frame, the lines below it, and the reason for a missing picture."""
        size = shutil.get_terminal_size()
        if (size.columns, size.lines) != self._size:
            self._size, self._lines, frame = (size.columns, size.lines), [], frame or self._frame
            self._stream.write("\x1b[2J")
        if frame is not None:
            self._frame = frame
            self._picture = half_blocks(frame.array, size.columns, size.lines - LINES_BENEATH)
        lines = [*self._picture, *(line[: size.columns] for line in self._beneath(status))]
        old = self._lines + [""] * (len(lines) - len(self._lines))
        for row, line in enumerate(lines):
            if line != old[row]:
                self._stream.write(f"\x1b[{row + 1};1H{line}\x1b[0m\x1b[K")
        if len(lines) < len(self._lines):
            self._stream.write(f"\x1b[{len(lines) + 1};1H\x1b[J")
        self._lines = lines
        self._stream.flush()

    def _beneath(self, status: Status) -> list[str]:
        said = [] if self._frame is None else [f"{numbers(self._frame, status)}   {status.frame_rate_hz:.1f} frames/s"]
        if status.state == "closed":
            return [*said, "This start of the run has ended; if another follows, it is shown. Ctrl-C ends the view."]
        if self.mark:
            said = [f"{said[0]}   {self.mark}" if said else self.mark]
        if status.note:
            said.append(status.note)
        if status.reason:
            said.append(f"No picture: {status.reason}")
        elif self._frame is None:
            said.append("Waiting for the first frame. Ctrl-C ends the view, not the run.")
        elif status.writer_age > SILENCE_SECONDS:
            said.append(f"Nothing for {status.writer_age:.0f} s: the run is busy, paused, or was killed.")
        return said


def half_blocks(picture: np.ndarray, columns: int, rows: int) -> list[str]:
    """Return the terminal lines that show a picture as large as fits, each cell two pixels."""
    height, width, _ = picture.shape
    scale = min(columns / width, 2 * rows / height)
    wide, high = max(1, int(width * scale)), max(2, int(height * scale) // 2 * 2)
    small = shrunk(picture, high, wide)
    lines = []
    for top, bottom in zip(small[::2].tolist(), small[1::2].tolist(), strict=True):
        cells, last = [], None
        for upper, lower in zip(top, bottom, strict=True):
            colours = (*upper, *lower)
            if colours != last:
                cells.append("\x1b[38;2;{};{};{};48;2;{};{};{}m".format(*colours))
                last = colours
            cells.append("▀")
        lines.append("".join(cells))
    return lines


def shrunk(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the picture in another size, each pixel the mean of its area: thin lines must not vanish."""
    rows, columns = picture.shape[:2]
    sums = np.zeros((rows + 1, columns + 1, 3), np.int64)
    np.cumsum(np.cumsum(picture, axis=0, dtype=np.int64), axis=1, out=sums[1:, 1:])
    top = np.arange(height) * rows // height
    bottom = np.maximum((np.arange(height) + 1) * rows // height, top + 1)
    left = np.arange(width) * columns // width
    right = np.maximum((np.arange(width) + 1) * columns // width, left + 1)
    area = ((bottom - top)[:, None] * (right - left)[None, :])[:, :, None]
    whole = sums[bottom][:, right] - sums[top][:, right] - sums[bottom][:, left] + sums[top][:, left]
    return (whole // area).astype(np.uint8)


@contextmanager
def _screen(stream: TextIO) -> Iterator[None]:
    """Switch to the terminal's alternate screen, without a cursor; the main one is always restored."""
    stream.write("\x1b[?1049h\x1b[?25l")
    try:
        yield
    finally:
        stream.write("\x1b[0m\x1b[?25h\x1b[?1049l")
        stream.flush()


def _open(paths: RunPaths, goes_on: Callable[[], bool]) -> FastLaneReader:
    """Return a reader of a run's ring; wait for a run that has yet to start, by its files or `goes_on`."""
    deadline, told = time.monotonic() + START_SECONDS, False
    while True:
        try:
            return FastLaneReader.open(paths.fastlane)
        except RingError as error:
            is_new = not (paths.fastlane.exists() or paths.analytics.exists()) and time.monotonic() < deadline
            if not (is_new or _runs_on(paths) or goes_on()):
                raise WorkerError(f"run {paths.run_id} cannot be watched: {error}") from None
            if not is_new and not told:
                told = True
                print(f"Waiting for run {paths.run_id} to start. Ctrl-C leaves.", file=sys.stderr)
        time.sleep(0.1 if is_new else ASK_SECONDS)


def _runs_on(paths: RunPaths) -> bool:
    """Return True if a live script's next phase will open another ring."""
    return paths.phases.exists() and is_alive(paths)


def _started(paths: RunPaths) -> float:
    """Return the time of a run's last start, as far as its files show."""
    for path in (paths.fastlane, paths.events, paths.folder):
        try:
            return path.stat().st_mtime
        except OSError:
            continue
    return 0.0
