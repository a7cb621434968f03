"""A daemon for the commands' tests, the tiny worker of the trainer's tests, and the command in this process."""

import os
import runpy
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mosaic import cli
from mosaic.trainer.daemon import spawn
from mosaic.trainer.rpc.client import Client
from mosaic.trainer.run import Run

TESTS = Path(__file__).resolve().parents[1]
SRC = TESTS.parent / "src"


@dataclass
class Place:
    """A home with a running daemon, and the variables under which commands find it."""

    home: Path
    variables: dict[str, str]

    def client(self) -> Client:
        return Client(home=self.home)


@dataclass
class Told:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One daemon for all tests of a process; runs in it see the tiny worker besides the real one."""
    top = tmp_path_factory.mktemp("commands")
    home = top / "home"
    home.mkdir()
    plugins = runpy.run_path(str(TESTS / "trainer" / "conftest.py"))["install_tiny_worker"](top)
    variables = {
        "MOSAIC_HOME": str(home),
        "XDG_STATE_HOME": str(top / "state"),
        "PYTHONPATH": f"{plugins}{os.pathsep}{SRC}",
        "COLUMNS": "100",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MOSAIC_TARGET", "MOSAIC_TOKEN", "WANDB_API_KEY"):
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        spawn(home, listen="127.0.0.1:0", arguments=["--slots", "4"])
    yield Place(home, variables)
    with Client(home=home) as client:
        for run in client.list_runs(states=["INIT", "HANDSHAKE", "READY", "EXECUTING", "PAUSED"]).runs:
            client.cancel_run(run.run_id, 0.0)
        for run in client.list_runs().runs:
            client.wait_run(run.run_id, 180)
        pid = client.health()["pid"]
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)


@pytest.fixture
def mosaic(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Told]:
    """The command, against that daemon, from a folder that is not its home."""
    for name, value in place.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(place.variables["PYTHONPATH"].split(os.pathsep)[0])
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Told:
        capsys.readouterr()
        code = cli.main(list(words))
        captured = capsys.readouterr()
        return Told(code, captured.out, captured.err)

    return call


@pytest.fixture
def name() -> str:
    """For a sweep or a benchmark; another in each try of a test, since the daemon keeps what an earlier one left."""
    return f"try-{os.urandom(4).hex()}"


@pytest.fixture
def client(place: Place) -> Iterator[Client]:
    with place.client() as one:
        yield one


@pytest.fixture
def start(client: Client) -> Callable[..., Run]:
    """Submit a run of the tiny worker; `until` waits for a state, by default for its end."""

    def submit(until: str = "", **extras: Any) -> Run:
        config = {"algo": "tiny", "env_id": "CartPole-v1", "total_timesteps": 100, "seed": 1, "extras": extras}
        run_id = client.submit_run(config).run_id
        end = time.monotonic() + 180
        while True:
            run = client.get_run(run_id)
            if str(run.state) == until or run.ended:
                return run
            assert time.monotonic() < end, f"{run_id} is {run.state} after 180 s"
            time.sleep(0.05)

    return submit
