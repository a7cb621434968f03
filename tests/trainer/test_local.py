"""Processes of runs: identity, trees, signals."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract.errors import StorageError, WorkerError
from mosaic.trainer.executors.contract import Launch
from mosaic.trainer.executors.local import Exit, Identity, LocalExecutor, elapsed_seconds, processes_of, start_ticks


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., tuple[LocalExecutor, Identity]]]:
    begun: list[tuple[LocalExecutor, Identity]] = []

    def one(code: str, nonce: str = "n0nce", **environment: str) -> tuple[LocalExecutor, Identity]:
        executor = LocalExecutor()
        variables = {**os.environ, "MOSAIC_ATTEMPT": nonce, **environment}
        command = [sys.executable, "-c", code]
        files = (tmp_path, tmp_path / "out", tmp_path / "err")
        identity = executor.start(Launch("r", "n0nce", tuple(command), variables, *files))
        begun.append((executor, identity))
        return executor, identity

    yield one
    for executor, identity in begun:
        executor.kill_tree(identity, "n0nce")


def test_a_worker_leads_a_session_of_its_own_and_has_no_pipes(start: Any, tmp_path: Path) -> None:
    executor, identity = start("import os, sys; print(os.getsid(0) == os.getpid()); sys.exit(5)")
    while executor.alive(identity):
        time.sleep(0.02)
    assert executor.exit(identity) == Exit(5) == executor.exit(identity)
    assert (tmp_path / "out").read_text() == "True\n"
    executor.forget(identity)
    assert executor.exit(identity) == Exit(None)


def test_the_signal_that_ended_a_child_is_named(start: Any) -> None:
    executor, identity = start("import time; time.sleep(600)")
    os.kill(identity.pid, signal.SIGKILL)
    while executor.alive(identity):
        time.sleep(0.02)
    assert executor.exit(identity) == Exit(-9, "SIGKILL")


def test_identity_is_more_than_a_pid(start: Any) -> None:
    executor, identity = start("import time; time.sleep(600)")
    assert executor.alive(identity) and LocalExecutor().alive(identity)
    stranger = Identity(identity.pid, identity.start_ticks + 1, identity.boot_id)
    assert not LocalExecutor().alive(stranger)
    assert not LocalExecutor().alive(Identity(identity.pid, identity.start_ticks, "another boot"))
    LocalExecutor().terminate(stranger)
    assert executor.alive(identity)
    assert 0 <= elapsed_seconds(identity) < 600


def test_the_tree_is_found_by_descent_by_session_and_by_nonce(start: Any, lives: Callable[[int], bool]) -> None:
    code = (
        "import subprocess, sys, time\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "subprocess.Popen(sleep, process_group=0)\n"
        "subprocess.Popen(sleep, start_new_session=True)\n"
        "subprocess.Popen(['sh', '-c', 'sleep 600 & exec sleep 600'])\n"
        "time.sleep(600)\n"
    )
    executor, identity = start(code)
    end = time.monotonic() + 180
    while len(processes_of(identity, "n0nce")) < 5:
        assert time.monotonic() < end
        time.sleep(0.05)
    pids = [process.pid for process in processes_of(identity, "n0nce")]
    os.kill(identity.pid, signal.SIGKILL)
    while executor.alive(identity):
        time.sleep(0.02)
    assert len(processes_of(identity, "n0nce")) == 4, "orphans are found by the nonce"
    assert executor.kill_tree(identity, "n0nce", 30)
    assert not any(map(lives, pids))


def test_a_process_is_found_again_by_its_nonce(start: Any) -> None:
    _, identity = start("import time; time.sleep(600)", nonce="an0ther")
    end = time.monotonic() + 180
    while LocalExecutor().find("an0ther") != identity:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert LocalExecutor().find("never given") is None and LocalExecutor().find("") is None
    LocalExecutor().kill_tree(identity, "an0ther")


def test_a_dead_child_that_nobody_reaped_does_not_live() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    end = time.monotonic() + 180
    while start_ticks(child.pid) is not None:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert start_ticks(child.pid, dead=True) is not None or not Path("/proc").exists()
    child.wait()
    assert start_ticks(child.pid) is None and start_ticks(-1) is None


def test_what_cannot_be_started_is_said_clearly(tmp_path: Path) -> None:
    executor = LocalExecutor()
    with pytest.raises(WorkerError, match="cannot start '/no/such/python'"):
        executor.start(Launch("r", "n", ("/no/such/python",), {}, tmp_path, tmp_path / "out", tmp_path / "err"))
    with pytest.raises(StorageError, match="cannot write"):
        executor.start(Launch("r", "n", ("x",), {}, tmp_path, tmp_path / "missing" / "out", tmp_path / "err"))
