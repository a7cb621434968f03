"""What the machine has and what runs take of it."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract.errors import WorkerError
from mosaic.trainer.rpc.client import Run, State
from mosaic.web import machine as machine_module
from mosaic.web.machine import MachineReport


def test_the_machine_tells_cpu_memory_and_disk(tmp_path: Path) -> None:
    usage = MachineReport(tmp_path).usage()
    assert usage.cores >= 1 and 0 < usage.memory_used < usage.memory_total
    assert 0 < usage.disk_free <= usage.disk_total and usage.cpu_percent >= 0


def test_every_thread_is_told_how_busy_the_machine_is(tmp_path: Path) -> None:
    machine = MachineReport(tmp_path)
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass
    told: list[float] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: told.append(machine.usage().cpu_percent))
        thread.start()
        thread.join()
    assert all(0 < percent <= 100 for percent in told), told


def test_a_run_is_charged_for_its_process_tree_and_for_no_strangers(tmp_path: Path) -> None:
    script = "import sys; print('up', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "run-7"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline()
        ours = Run("run-7", State.EXECUTING, pid=process.pid)
        strange = Run("other", State.EXECUTING, pid=process.pid)
        found = MachineReport(tmp_path).of_runs([ours, strange, Run("queued", State.INIT)])
        assert found["run-7"].processes == 1 and (found["run-7"].memory or 0) > 10**6
        assert found["other"].memory is None and found["queued"].memory is None
    finally:
        process.communicate()


def test_disk_is_counted_by_run_without_following_links(tmp_path: Path) -> None:
    runs = tmp_path / "var/trainer/runs"
    (runs / "a/logs").mkdir(parents=True)
    (runs / "a/logs/x").write_bytes(b"x" * 1000)
    (runs / "b").mkdir()
    os.symlink("/usr", runs / "a/link")
    os.symlink("/usr", runs / "c")
    found = MachineReport(tmp_path).disk()
    assert set(found.by_run) == {"a", "b"} and 1000 <= found.by_run["a"] < 2000
    assert MachineReport(tmp_path / "nothing").disk().by_run == {}


def test_the_doctor_is_asked_once_and_again_when_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def answer(home: Path) -> dict[str, Any]:
        asked.append(home)
        return {"ok": True, "checks": []}

    monkeypatch.setattr(machine_module, "_ask_doctor", answer)
    machine = MachineReport(tmp_path)
    machine.doctor()
    machine.doctor()
    assert len(asked) == 1
    machine.doctor(anew=True)
    assert len(asked) == 2


def test_the_doctor_reports_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = MachineReport(tmp_path).doctor()
    assert {"python", "disk", "daemon"} <= {check["name"] for check in found["checks"]}
    assert all(check["state"] in ("ok", "note", "trouble") for check in found["checks"])


def test_a_doctor_that_gives_no_report_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(WorkerError, match="run it in a terminal: mosaic doctor"):
        MachineReport(tmp_path).doctor()
