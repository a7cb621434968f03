"""Energy of the GPU; nvidia-smi is a stand-in, since this machine has no GPU."""

import time
from pathlib import Path

import pytest
from rows import energy


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "nvidia-smi"
    path.write_text("#!/bin/sh\necho 360.0\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(energy, "_energy_counter", lambda: None)
    monkeypatch.setattr(energy, "SAMPLE_SECONDS", 0.0)
    return path


def test_power_is_summed_over_time_where_there_is_no_counter(smi: Path) -> None:
    began = time.monotonic()
    meter = energy.Meter(gpu=True)
    time.sleep(0.1)
    meter.sample()
    found = meter.kwh()
    assert found is not None and 360 * 0.1 <= found * energy.JOULES <= 360 * (time.monotonic() - began)


def test_a_gpu_that_does_not_report_its_power_leaves_the_energy_unknown(smi: Path) -> None:
    smi.write_text("#!/bin/sh\necho '[N/A]'\n")
    meter = energy.Meter(gpu=True)
    meter.sample()
    assert meter.kwh() is None


def test_the_counter_is_preferred_and_a_cpu_has_no_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    millijoules = iter([1_000.0, 3_600_001_000.0])
    monkeypatch.setattr(energy, "_energy_counter", lambda: lambda: next(millijoules))
    assert energy.Meter(gpu=True).kwh() == pytest.approx(1.0)
    assert energy.Meter(gpu=False).kwh() is None
