"""GPUs through the real daemon, on a machine that this one is not: a thin fake stands for NVIDIA's library."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract.errors import RefusedError
from mosaic.trainer.states import State

NVML = """
import os, types
class NVMLError(Exception):
    pass
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return int(os.environ["FAKE_GPUS"])
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return b"Fake H%d00" % handle
def nvmlDeviceGetUUID(handle): return f"GPU-{handle}f00d"
def nvmlDeviceGetMemoryInfo(handle): return types.SimpleNamespace(total=(handle + 1) << 30)
"""
ONE = {"gpus": {"requested": 1, "mandatory": True}}
ALIVE = {"episodes": 100_000, "pause": 0.05, "say": "CUDA_VISIBLE_DEVICES"}


@pytest.fixture
def environment(environment: dict[str, str]) -> dict[str, str]:
    Path(environment["PYTHONPATH"].split(os.pathsep)[0], "pynvml.py").write_text(NVML)
    return {**environment, "FAKE_GPUS": "2"}


def holders(daemon: Any) -> list[str]:
    return [gpu["run_id"] for gpu in daemon.client.health()["gpus"]]


def sees(daemon: Any, run_id: str) -> str:
    """What the worker found as CUDA_VISIBLE_DEVICES, as it said itself."""
    return str(daemon.paths(run_id).worker_stderr_log.read_text().splitlines()[0])


def test_a_gpu_is_one_runs_alone_waited_for_and_given_on_across_restarts(
    daemon: Any, until: Callable[..., Any], lives: Callable[[int], bool]
) -> None:
    assert [(gpu["name"], gpu["memory_bytes"] >> 30) for gpu in daemon.client.health()["gpus"]] == [
        ("Fake H000", 1),
        ("Fake H100", 2),
    ]
    first, second = (daemon.submit(ALIVE, resources=ONE).run_id for _ in range(2))
    for index, run_id in enumerate((first, second)):
        assert daemon.until_state(run_id, State.EXECUTING).gpus == (index,)
        assert sees(daemon, run_id) == str(index)
    waiting = daemon.submit(ALIVE, resources=ONE).run_id
    optional = daemon.submit({**ALIVE, "episodes": 1}, resources={"gpus": {"requested": 1}}).run_id
    passing = daemon.submit({**ALIVE, "episodes": 1}).run_id
    assert daemon.client.wait_run(passing, 180).state == State.COMPLETED
    daemon.kill()
    daemon.start()
    assert holders(daemon) == [first, second], "adopted runs keep what they have"
    again = daemon.submit({"episodes": 1}).run_id
    daemon.client.wait_run(again, 180)
    assert daemon.client.get_run(waiting).state == daemon.client.get_run(optional).state == State.INIT
    # Killed, not cancelled: what a dead worker held is free.
    os.kill(daemon.client.get_run(second).pid, signal.SIGKILL)
    assert daemon.until_state(waiting, State.EXECUTING).gpus == (1,) and sees(daemon, waiting) == "1"
    assert daemon.client.get_run(second).state == State.FAILED
    daemon.client.cancel_run(first, 5)
    ended = daemon.client.wait_run(optional, 180)
    assert ended.state == State.COMPLETED and sees(daemon, optional) == "0" and ended.warnings == ()
    until(lambda: holders(daemon) == ["", waiting], "the others to be free again")
    daemon.client.cancel_run(waiting, 5)
    daemon.until_state(waiting, State.CANCELLED)
    assert holders(daemon) == ["", ""]


def test_gpus_that_the_machine_lacks_are_refused_or_replaced_with_a_warning(daemon: Any) -> None:
    with pytest.raises(RefusedError, match=r"resources\.gpus: 3 asked for, 2 on this machine"):
        daemon.submit({}, resources={"gpus": {"requested": 3, "mandatory": True}})
    run = daemon.submit({"episodes": 1, "say": "CUDA_VISIBLE_DEVICES"}, resources={"gpus": {"requested": 3}})
    assert "3 asked for, 2 on this machine; this run trains on the CPU" in run.warnings[0]
    assert daemon.client.wait_run(run.run_id, 180).state == State.COMPLETED and sees(daemon, run.run_id) == ""
    for variable, found in (("CUDA_VISIBLE_DEVICES", "0,1"), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")):
        both = daemon.submit({"episodes": 1, "say": variable}, resources={"gpus": {"requested": 2}})
        assert daemon.client.wait_run(both.run_id, 180).state == State.COMPLETED and sees(daemon, both.run_id) == found


@pytest.mark.parametrize(
    ("given", "indices"), [("1", [1]), ("GPU-1f,GPU-0f", [0, 1]), ("1,-1,0", [1]), ("", []), ("NoDevFiles", [])]
)
def test_a_daemon_gives_away_only_what_it_was_given_itself(
    environment: dict[str, str], given: str, indices: list[int]
) -> None:

    code = "from mosaic.trainer.scheduling.gpu import find_gpus; print([gpu.index for gpu in find_gpus()])"
    variables = {**environment, "CUDA_VISIBLE_DEVICES": given}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(indices)
