"""Where a training's time goes: the shares are those of the work, and the timer is in nobody's way."""

import importlib.util
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.run import split
from cleanrl_worker.run.split import Split

LOOP = """
import time

def main(told, limit):
    while not (shares := told.shares()) and time.monotonic() < limit:
        # 1 act
        sum(range(2_000))
        # 2 learn: much longer
        sum(range(200_000))
        # 3 log, checkpoint
    return shares
"""


def loop_in(folder: Path):
    file = folder / "loop.py"
    file.write_text(LOOP)
    spec = importlib.util.spec_from_file_location("loop_of_a_test", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_shares_are_those_of_the_sections_of_the_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(split, "EVERY", 0.005)
    loop = loop_in(tmp_path)
    told = Split(loop.__file__)
    told.start()
    try:
        shares = loop.main(told, time.monotonic() + 120)
    finally:
        told.stop()
    assert list(shares) == list(split.TAGS) and sum(shares.values()) == pytest.approx(1.0, abs=0.01)
    assert shares["perf/update"] > 2 * shares["perf/inference"] and shares["perf/env"] == 0.0
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_alarm_of_somebody_else_is_left_alone():
    def mine(_number, _frame):
        pass

    before = signal.signal(signal.SIGALRM, mine)
    try:
        told = Split(__file__)
        told.start()
        assert signal.getsignal(signal.SIGALRM) is mine and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        told.stop()
        assert signal.getsignal(signal.SIGALRM) is mine and not told.shares()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_process_that_never_stops_it_ends_as_it_wants_to():
    program = """
import sys, threading, time
from cleanrl_worker.run import split
split.EVERY = 0.001
split.Split("nowhere.py").start()
threading.Thread(target=time.sleep, args=(0.2,)).start()
sys.exit(7)
"""
    assert subprocess.run([sys.executable, "-c", program], stdin=subprocess.DEVNULL).returncode == 7


@pytest.mark.parametrize("name", DEFAULT_ALGO_REGISTRY)
def test_every_algorithm_says_where_it_acts_and_where_it_learns(name):
    file = importlib.util.find_spec(DEFAULT_ALGO_REGISTRY[name]).origin
    assert {"inference", "update"} <= {part for _, part in split.sections_of(file)}


def test_a_heading_that_names_both_counts_for_learning_and_a_plain_one_for_neither(tmp_path):
    file = tmp_path / "headings.py"
    file.write_text("# 1 collect and learn at once\n# 2 log, checkpoint\n# 3 choose: then learn\nnot # 4 learn\n")
    assert split.sections_of(str(file)) == [(1, "update"), (2, "other"), (3, "inference")]
    assert split.sections_of(str(tmp_path / "gone.py")) == []
