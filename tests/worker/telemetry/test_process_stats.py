"""Memory of a process and its descendants."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from cleanrl_worker.telemetry.process_stats import Vitals


def test_memory_counts_children_and_asks_no_gpu_that_is_not_there() -> None:
    eat = "import time; x = bytearray(80_000_000); print(1, flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {eat!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, process_group=0)
    assert process.stdout is not None and process.stdout.readline()
    measured = Vitals().measure(process.pid)
    assert measured["rss_mb"] is not None and 85 < measured["rss_mb"] < 200
    assert measured["gpu_memory_mb"] is None
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert Vitals().measure(process.pid) == {"rss_mb": None, "gpu_memory_mb": None}


def test_gpu_memory_is_that_of_the_processes_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the driver's library: not every machine has a GPU."""
    entries = [
        SimpleNamespace(pid=os.getpid(), usedGpuMemory=3 * 2**20),
        SimpleNamespace(pid=os.getpid(), usedGpuMemory=None),
        SimpleNamespace(pid=1, usedGpuMemory=2**30),
    ]
    driver = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetComputeRunningProcesses=lambda gpu: entries,
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert Vitals().measure(os.getpid())["gpu_memory_mb"] == 6.0

    def broken(*_: object) -> None:
        raise RuntimeError("Driver Not Loaded")

    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlInit"):
        monkeypatch.setattr(driver, name, broken)
        assert Vitals().measure(os.getpid())["gpu_memory_mb"] is None
