"""Energy that the GPU used between two moments, where it reports it."""

import shutil
import subprocess
import time
from typing import Any

SAMPLE_SECONDS = 10.0  # nvidia-smi takes about 0.1 s
JOULES = 3.6e6  # in a kWh


class Meter:
    """Counts the energy of the first GPU: by NVML's counter, else by samples of nvidia-smi's power, else not at all."""

    def __init__(self, *, gpu: bool) -> None:
        self._counter = _energy_counter() if gpu else None
        self._start = self._millijoules()
        smi = shutil.which("nvidia-smi") if gpu and self._counter is None else None
        self._smi, self._joules, self._sampled_at = smi, 0.0, time.monotonic()
        self._samples = 0

    def sample(self) -> None:
        """Add the power of the time since the last sample; a no-op where there is a counter."""
        passed = time.monotonic() - self._sampled_at
        if self._smi is None or passed < SAMPLE_SECONDS:
            return
        command = [self._smi, "--query-gpu=power.draw", "--format=csv,noheader,nounits", "--id=0"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        self._sampled_at = time.monotonic()
        try:
            self._joules += float(answer.stdout.strip()) * passed
            self._samples += 1
        except ValueError:  # "[N/A]": this GPU does not report its power
            self._smi = None

    def kwh(self) -> float | None:
        """Return the energy since the start, None where it is unknown."""
        if (now := self._millijoules()) is not None and self._start is not None:
            return (now - self._start) / 1000 / JOULES
        return self._joules / JOULES if self._samples else None

    def _millijoules(self) -> float | None:
        return None if self._counter is None else self._counter()


def _energy_counter() -> Any:
    """Return a function for the millijoules since the driver was loaded, None without NVML or its counter."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except (pynvml.NVMLError, OSError):  # no driver, no permission, or a GPU older than Volta
        return None
    return lambda: float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
