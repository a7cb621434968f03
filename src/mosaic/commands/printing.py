"""The output of commands: JSON documents, messages on stderr, sizes, ages, short names of runs."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mosaic.trainer.run import Run

# Eight characters of a ULID's random end: one in 10^12 for a pair.
SHORT = 8
# Longer operations are announced.
PATIENCE = 2.0


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the `--json` flag, which every command has."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def print_json(document: Any) -> None:
    """Print one document and flush; NaN and infinities as the strings that events use, since JSON has none."""
    print(json.dumps(_finite(document), allow_nan=False), flush=True)


def say(text: str) -> None:
    """Print a message on stderr, apart from the command's result."""
    print(f"mosaic: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner, whose text can be changed, on a terminal; elsewhere print a line if the block takes long."""
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(text) as status:
            yield status.update
        return
    timer = threading.Timer(PATIENCE, say, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield lambda text: None
    finally:
        timer.cancel()


def short_id(run_id: str) -> str:
    """Return the end of a run's id, which differs even between runs of the same minute."""
    return run_id if len(run_id) <= SHORT + 4 else run_id[-SHORT:]


def stall_mark(run: Run) -> str:
    """Return the mark beside the state of a stalled run, with the time since its last step; "" for others."""
    from mosaic.console import clock

    return f"STALLED {clock(max(0.0, time.time() - run.stalled_since))}" if run.stalled else ""


def shortest(path: str | Path) -> str:
    """Return the path relative to the current folder if it lies inside it."""
    path = Path(path)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def size(count: float) -> str:
    """Format a byte count with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("the loop returns")


def ago(timestamp: float, now: float | None = None) -> str:
    """Return the age of a timestamp in one unit."""
    seconds = max(0.0, (time.time() if now is None else now) - timestamp)
    for length, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def moment(timestamp: float) -> str:
    """Format a timestamp in local time, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
