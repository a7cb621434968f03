"""Stop signals in the first seconds of a run: to its shell, its algorithm or all its processes, at any moment."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from mosaic.contract.events import replay
from mosaic.contract.paths import RunPaths
from mosaic.trainer.executors.local import catches

REQUEUE = 75
FEW = (0.0, 0.12, 0.7)
MANY = tuple(round(0.05 * n, 2) for n in range(1, 41) if round(0.05 * n, 2) not in FEW)
DELAYS = [*FEW, *(pytest.param(delay, marks=pytest.mark.full) for delay in MANY)]
SIGNALS = [signal.SIGTERM, signal.SIGINT]


_started: list["subprocess.Popen[bytes]"] = []


@pytest.fixture(autouse=True)
def _no_process_stays() -> Iterator[None]:
    """End what a test that failed has left."""
    yield
    while _started:
        process = _started.pop()
        if process.poll() is None:  # the algorithm dies with its shell
            process.kill()
            process.wait(60)


def start(home: Path, command: list[str], until: Callable[..., None]) -> "subprocess.Popen[bytes]":
    """Start a program in a session of its own; it has come to its first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=home,
        env={**os.environ, "MOSAIC_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    _started.append(process)
    until(lambda: process.poll() is not None or catches(process.pid, signal.SIGTERM), 90, "its first line")
    return process


def start_worker(home: Path, until: Callable[..., None]) -> "subprocess.Popen[bytes]":
    config = {"run_id": "early", "algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 50_000_000}
    (home / "config.json").write_text(json.dumps(config))
    return start(home, ["cleanrl_worker.cli", "--config", "config.json"], until)


def send_all(session: int, number: signal.Signals) -> None:
    """Signal every process of a session at once, as a cluster does."""
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session:
                os.kill(pid, number)
        except ProcessLookupError:
            continue


def check_requeued(process: "subprocess.Popen[bytes]", home: Path) -> None:
    errors = process.communicate(timeout=120)[1].decode()
    assert (process.returncode, errors) == (REQUEUE, "")
    log = RunPaths("early", home).events
    events = list(replay(log)) if log.exists() else []
    assert not events or (events[-1].event, events[-1].payload["exit_code"]) == ("run_failed", REQUEUE)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize("everybody", [False, True], ids=["shell", "everybody"])
def test_a_run_that_is_stopped_in_its_first_seconds_asks_to_be_started_again(
    everybody: bool, delay: float, number: signal.Signals, tmp_path: Path, until: Callable[..., None]
) -> None:
    process = start_worker(tmp_path, until)
    time.sleep(delay)
    send_all(process.pid, number) if everybody else process.send_signal(number)
    check_requeued(process, tmp_path)


def algorithms_of(pid: int) -> list[psutil.Process]:
    """Return the shell's children that run an algorithm; git, which it asks for the provenance, is one as well."""
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.Error):
            found += [child] if any("launcher" in word for word in child.cmdline()) else []
    return found


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("delay", DELAYS)
def test_a_stop_signal_to_the_algorithm_itself_is_not_a_failure_either(
    delay: float, number: signal.Signals, tmp_path: Path, until: Callable[..., None]
) -> None:
    process = start_worker(tmp_path, until)
    until(lambda: algorithms_of(process.pid), 90, "the algorithm's process")
    (algorithm,) = algorithms_of(process.pid)
    time.sleep(delay)
    algorithm.send_signal(number)
    check_requeued(process, tmp_path)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("delay", DELAYS)
def test_an_algorithm_that_runs_alone_ends_with_the_same_code(
    delay: float, number: signal.Signals, tmp_path: Path, until: Callable[..., None]
) -> None:
    process = start(tmp_path, ["cleanrl_worker.algorithms.ppo", "--total-timesteps=50000000"], until)
    time.sleep(delay)
    process.send_signal(number)
    check_requeued(process, tmp_path)


def test_a_worker_that_does_not_train_dies_of_sigterm_as_any_program(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-m", "cleanrl_worker.cli", "--list"], stdout=subprocess.PIPE)
    process.terminate()
    assert process.communicate(timeout=120)[0] == b"" and process.returncode == -signal.SIGTERM


def test_a_shell_that_was_started_under_nohup_outlives_its_terminal_from_its_first_line(
    tmp_path: Path, until: Callable[..., None]
) -> None:
    ignoring = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = start_worker(tmp_path, until)
    finally:
        signal.signal(signal.SIGHUP, ignoring)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    process.terminate()
    check_requeued(process, tmp_path)
