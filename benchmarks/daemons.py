"""Daemons to measure: homes, processes, their CPU time, and what switching something on and off in one run shows."""

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil

from mosaic.contract.channel import daemon_card, read_card
from mosaic.trainer.rpc.client import Client


@contextmanager
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as folder:
        yield Path(folder)


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[tuple[Client, psutil.Process]]:
    """A daemon on this home, and a client that it has answered."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mosaic.trainer.daemon", "--home", str(folder), "--listen", "127.0.0.1:0", *arguments],
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        stdout=subprocess.DEVNULL,
    )
    try:
        while read_card(daemon_card(folder)).get("pid") != process.pid:
            assert process.poll() is None
            time.sleep(0.01)
        with Client(home=folder) as client:
            client.health()
            yield client, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process to the nanosecond, where psutil knows only hundredths (Linux: the clock of another pid)."""
    return time.clock_gettime((~pid << 3) | 2)


def megabytes(process: psutil.Process) -> float:
    return round(process.memory_info().rss / 1e6, 1)


def compare(on: Sequence[float], off: Sequence[float]) -> str:
    """What `on` costs more than its neighbours, where blocks of one run alternate and begin with one that is off."""
    neighbours = [(before + after) / 2 for before, after in itertools.pairwise(off)]
    return interval([one / other - 1 for one, other in zip(on, neighbours, strict=False)])


def interval(shares: Sequence[float]) -> str:
    """The median in percent, with the interval in which it lies with 95 % (bootstrap)."""
    values = np.asarray(shares)
    draws = np.random.default_rng(1).choice(values, (10_000, len(values)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return f"{np.median(values):+.2%} ({low:+.2%} to {high:+.2%}, {len(values)} blocks)"
