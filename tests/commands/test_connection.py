"""connection: a command that goes on for hours outlives its daemon."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from mosaic.commands.connection import Steady, connect, home_of
from mosaic.trainer.daemon import spawn
from mosaic.trainer.rpc.client import Client


def end(pid: int, number: int) -> None:
    os.kill(pid, number)
    os.waitpid(pid, 0)  # we are its parent


def test_call_waits_for_the_next_daemon_of_the_home_wherever_it_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MOSAIC_TARGET", "MOSAIC_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    spawn(tmp_path, listen="127.0.0.1:0")
    found: list[dict[str, Any]] = []
    with Steady(connect()) as daemon:
        assert home_of(daemon.client) == tmp_path
        first = daemon.call(lambda client: client.health())
        end(first["pid"], signal.SIGKILL)
        asking = threading.Thread(target=lambda: found.append(daemon.call(lambda client: client.health())), daemon=True)
        asking.start()
        spawn(tmp_path, listen="127.0.0.1:0")
        asking.join(120)
    with Client(home=tmp_path) as client:
        pid = client.health()["pid"]
    end(pid, signal.SIGTERM)
    assert [one["pid"] for one in found] == [pid] and pid != first["pid"]
