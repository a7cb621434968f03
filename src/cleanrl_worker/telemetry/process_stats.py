"""RAM and GPU memory of a process and its descendants."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil


class Vitals:
    """Memory of a process and its descendants; None if unknown, never an error."""

    def __init__(self) -> None:
        self._gpus: list[Any] | None = None

    def measure(self, pid: int) -> dict[str, float | None]:
        """Return the resident megabytes and the megabytes on all GPUs."""
        import psutil  # 17 ms that a dry run need not pay

        resident, pids = 0, set()
        try:
            root = psutil.Process(pid)
            for process in [root, *root.children(recursive=True)]:
                resident += _resident_bytes(process)
                pids.add(process.pid)
        except psutil.Error:
            return {"rss_mb": None, "gpu_memory_mb": None}
        return {"rss_mb": _megabytes(resident), "gpu_memory_mb": self._gpu_memory(pids)}

    def _gpu_memory(self, pids: set[int]) -> float | None:
        if self._gpus is None:
            self._gpus = _find_gpus()
        used = [entry.usedGpuMemory for gpu in self._gpus for entry in _gpu_processes(gpu) if entry.pid in pids]
        known = [amount for amount in used if amount is not None]
        return _megabytes(sum(known)) if known else None


def free_gpu_memory() -> int | None:
    """Return the free bytes of the GPU that has most; None without a usable GPU."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    return max((amount for gpu in _find_gpus() if (amount := _free_bytes(gpu)) is not None), default=None)


def describe_gpus() -> tuple[list[str], str]:
    """Return the names of this machine's GPUs and the version of their driver; [] and "" without any."""
    gpus = _find_gpus()
    if not gpus:
        return [], ""
    import pynvml

    try:
        return [str(pynvml.nvmlDeviceGetName(gpu)) for gpu in gpus], str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return [], ""


def _resident_bytes(process: psutil.Process) -> int:
    import psutil

    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _find_gpus() -> list[Any]:
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except (pynvml.NVMLError, OSError):  # no library, no driver, no permission
        return []


def _free_bytes(gpu: Any) -> int | None:
    import pynvml

    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(gpu).free)
    except pynvml.NVMLError:
        return None


def _gpu_processes(gpu: Any) -> Iterable[Any]:
    import pynvml

    try:
        return list(pynvml.nvmlDeviceGetComputeRunningProcesses(gpu))
    except pynvml.NVMLError:
        return []


def _megabytes(amount: int) -> float:
    return round(amount / 2**20, 1)
