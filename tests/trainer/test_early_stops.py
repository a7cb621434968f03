"""Stop signals in the first seconds of a daemon's runs: they go back into the queue, and no restart is used up."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from mosaic.trainer.executors.local import catches
from mosaic.trainer.states import State

FEW = (0.0, 0.4)
DELAYS = [*FEW, *(pytest.param(0.1 * n, marks=pytest.mark.full) for n in range(1, 21) if 0.1 * n not in FEW)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize("everybody", [False, True], ids=["worker", "everybody"])
def test_a_run_that_a_cluster_stops_in_its_first_seconds_is_queued_again(
    everybody: bool, delay: float, number: signal.Signals, standing: Any, until: Any
) -> None:
    run = standing.client.train("ppo", "CartPole-v1", seed=1, total_timesteps=50_000_000, extras={"max_restarts": 1})
    pid = until(lambda: run.refresh().pid, "a worker")
    time.sleep(delay)
    for one in psutil.pids() if everybody else [pid]:
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(one) == pid:
                os.kill(one, number)
    again = until(lambda: (info := run.refresh()).attempt == 2 and info, "another attempt", 300)
    assert again.restarts == 0 and again.state != State.FAILED
    run.cancel()
    ended = run.wait(300).info
    assert (ended.state, ended.attempt) == (State.CANCELLED, 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_relay_of_a_node_that_is_stopped_amid_its_imports_asks_for_another_start(number: int, until: Any) -> None:
    relay = subprocess.Popen([sys.executable, "-m", "mosaic.trainer.executors.node"], stderr=subprocess.PIPE)
    until(lambda: catches(relay.pid, signal.SIGTERM), "its first line")
    relay.send_signal(number)
    assert relay.communicate(timeout=180)[1] == b"" and relay.returncode == 75
