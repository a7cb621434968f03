"""The resources of the machine and their use by runs: GPU, CPU, memory, disk; doctor's report. Blocking."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from mosaic.contract import variables
from mosaic.contract.errors import WorkerError
from mosaic.trainer.rpc.client import Run

# Walking ten thousand run folders takes a second: once a minute is enough.
DISK_SECONDS = 60.0
DOCTOR_SECONDS, DOCTOR_LIMIT = 60.0, 120.0


@dataclass(frozen=True)
class GpuUse:
    """A GPU as its driver reports it."""

    index: int
    name: str
    used_bytes: int
    total_bytes: int
    percent: float | None
    by_pid: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Usage:
    """The use of the complete machine at one moment."""

    cpu_percent: float
    cores: int
    load: float
    memory_used: int
    memory_total: int
    disk_used: int
    disk_total: int
    disk_free: int
    gpus: tuple[GpuUse, ...]


@dataclass(frozen=True)
class RunUse:
    """The resource use of a run's processes; None if they are not on this machine or have ended."""

    cpu_percent: float | None = None
    memory: int | None = None
    gpu_memory: int | None = None
    processes: int = 0


@dataclass(frozen=True)
class DiskUse:
    """The bytes below the runs folder, by run, and the time of the count."""

    by_run: dict[str, int]
    counted_at: float

    @property
    def total(self) -> int:
        return sum(self.by_run.values())


class MachineReport:
    """A report shared by all pages: percentages cover the time since the last call."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._processes: dict[tuple[int, float], psutil.Process] = {}
        self._disk: DiskUse | None = None
        self._doctor: tuple[float, dict[str, Any]] | None = None
        self._counting, self._examining = threading.Lock(), threading.Lock()
        self._times, self._busy = psutil.cpu_times(), 0.0

    def usage(self) -> Usage:
        """Return the use of CPU, memory, disk and GPUs."""
        memory = psutil.virtual_memory()
        disk = shutil.disk_usage(self._home)
        return Usage(
            cpu_percent=self._busy_percent(),
            cores=psutil.cpu_count() or 1,
            load=os.getloadavg()[0],
            memory_used=memory.total - memory.available,
            memory_total=memory.total,
            disk_used=disk.used,
            disk_total=disk.total,
            disk_free=disk.free,
            gpus=tuple(_gpus()),
        )

    def _busy_percent(self) -> float:
        """Return the load of all cores; psutil's own percentage is per thread, and the calling thread varies."""
        with self._lock:
            before, now = self._times, psutil.cpu_times()
            passed = sum(now[:8]) - sum(before[:8])  # guest time is included in user time
            if passed > 0.2:  # of two calls in quick succession, the second returns the first's value
                waiting = sum(getattr(now, kind, 0.0) - getattr(before, kind, 0.0) for kind in ("idle", "iowait"))
                self._times, self._busy = now, 100 * (1 - waiting / passed)
            return self._busy

    def of_runs(self, runs: Sequence[Run], gpus: Iterable[GpuUse] = ()) -> dict[str, RunUse]:
        """Return the use of each live run's process tree."""
        on_gpu: dict[int, int] = {}
        for gpu in gpus:
            for pid, used in gpu.by_pid.items():
                on_gpu[pid] = on_gpu.get(pid, 0) + used
        with self._lock:
            seen: set[tuple[int, float]] = set()
            found = {run.run_id: self._of_run(run, on_gpu, seen) for run in runs}
            self._processes = {key: self._processes[key] for key in seen}
        return found

    def disk(self) -> DiskUse:
        """Return the bytes by run; counted again if the last count is a minute old."""
        with self._counting:  # one walk for concurrent callers
            known = self._disk
            if known is None or time.time() - known.counted_at > DISK_SECONDS:
                known = self._disk = DiskUse(_bytes_by_folder(self._home / "var" / "trainer" / "runs"), time.time())
            return known

    def doctor(self, *, anew: bool = False) -> dict[str, Any]:
        """Return the report of `mosaic doctor`; WorkerError if it does not answer."""
        with self._examining:
            if self._doctor is None or anew or time.monotonic() - self._doctor[0] > DOCTOR_SECONDS:
                self._doctor = (time.monotonic(), _ask_doctor(self._home))
            return self._doctor[1]

    def _of_run(self, run: Run, on_gpu: dict[int, int], seen: set[tuple[int, float]]) -> RunUse:
        if run.pid <= 0:
            return RunUse()
        cpu, memory, gpu, count = 0.0, 0, 0, 0
        with contextlib.suppress(psutil.Error):
            top = psutil.Process(run.pid)
            if run.run_id not in " ".join(top.cmdline()):  # a remote run's pid, or a reused one
                return RunUse()
            for process in (top, *top.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    key = (process.pid, process.create_time())
                    known = self._processes.setdefault(key, process)
                    cpu += known.cpu_percent()
                    memory += known.memory_info().rss
                    gpu += on_gpu.get(process.pid, 0)
                    count += 1
                    seen.add(key)
        return RunUse(cpu, memory, gpu if on_gpu else None, count) if count else RunUse()


def _gpus() -> Iterable[GpuUse]:
    """Yield the GPUs that NVIDIA's driver reports; none without a driver."""
    try:
        import pynvml
    except ImportError:
        return
    try:
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            percent: float | None = None
            by_pid: dict[int, int] = {}
            with contextlib.suppress(pynvml.NVMLError):
                percent = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            with contextlib.suppress(pynvml.NVMLError):
                for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    by_pid[int(process.pid)] = int(process.usedGpuMemory or 0)
            yield GpuUse(
                index, str(pynvml.nvmlDeviceGetName(handle)), int(memory.used), int(memory.total), percent, by_pid
            )
    except (OSError, pynvml.NVMLError):  # no driver, no permission
        return


def _bytes_by_folder(top: Path) -> dict[str, int]:
    """Return the size of each folder in `top`; links are not followed, vanished files are skipped."""
    sizes: dict[str, int] = {}
    with contextlib.suppress(OSError), os.scandir(top) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                sizes[entry.name] = _bytes_below(entry.path)
    return sizes


def _bytes_below(folder: str) -> int:
    total, waiting = 0, [folder]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
    return total


def _ask_doctor(home: Path) -> dict[str, Any]:
    """Run the doctor in its own process: in the layers, the web GUI stands below that command."""
    command = [sys.executable, "-P", "-m", "mosaic.cli", "doctor", "--json"]
    environment = {**os.environ, variables.MOSAIC_HOME: str(home)}
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DOCTOR_LIMIT,
        )
        found = json.loads(done.stdout)
        return {"ok": bool(found["ok"]), "checks": [dict(check) for check in found["checks"]]}
    except subprocess.TimeoutExpired:
        raise WorkerError(f"the doctor did not answer within {DOCTOR_LIMIT:.0f} s; run: mosaic doctor") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise WorkerError("the doctor gave no report; run it in a terminal: mosaic doctor") from None
