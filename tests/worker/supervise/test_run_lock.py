"""The lock on a run: one live shell, whatever became of the one before."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cleanrl_worker.supervise.run_lock import holding
from mosaic.contract.errors import ConfigError, StorageError
from mosaic.contract.paths import RunPaths

HOLD = """
import sys, time
from cleanrl_worker.supervise.run_lock import holding
from mosaic.contract.paths import RunPaths
with holding(RunPaths("run-1")):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def paths(home: Path) -> RunPaths:
    paths = RunPaths("run-1", home)
    paths.create()
    return paths


def hold_elsewhere() -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_second_shell_is_refused_by_the_pid_of_the_first_until_that_is_dead(paths: RunPaths) -> None:
    with hold_elsewhere() as other:
        try:
            with pytest.raises(ConfigError, match=rf"run run-1 is still alive \(pid {other.pid}\)"), holding(paths):
                pytest.fail("both hold the run")
        finally:
            other.send_signal(signal.SIGKILL)
    assert paths.lock.read_text() == f"{other.pid}\n"
    with holding(paths):
        assert paths.lock.read_text() == f"{os.getpid()}\n"


def test_lock_ends_with_the_run_and_no_child_inherits_it(paths: RunPaths) -> None:
    with holding(paths):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with holding(paths):
            pass
    finally:
        child.kill()
        child.wait()


def test_phases_of_a_script_share_their_run(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_SCRIPT", "1")
    with holding(paths), holding(paths):
        monkeypatch.delenv("MOSAIC_SCRIPT")
        with pytest.raises(ConfigError, match="is still alive"), holding(paths):
            pytest.fail("a run that is no phase must not join them")


def test_lock_that_cannot_be_made_is_a_storage_error(paths: RunPaths) -> None:
    paths.lock.mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*worker\.lock"), holding(paths):
        pytest.fail("there is no lock")
