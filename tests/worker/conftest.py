"""A home for runs, and real shells that host tiny algorithms written on the spot."""

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mosaic.contract.events import Event, decode
from mosaic.contract.metrics import read_rows
from mosaic.contract.paths import RunPaths

# What the command line does with a runtime, without the command line.
HOST = """
import json, subprocess, sys
from cleanrl_worker.config.config import parse_worker_config
from cleanrl_worker.runtime import CleanRLWorkerRuntime
from mosaic.contract.errors import MosaicError

try:
    CleanRLWorkerRuntime(parse_worker_config(json.loads(sys.argv[1])), **json.loads(sys.argv[2])).run()
except subprocess.CalledProcessError as error:
    sys.exit(error.returncode if error.returncode > 0 else 128 - error.returncode)
except MosaicError as error:
    print(error, file=sys.stderr)
    sys.exit(1)
"""

# First lines of every tiny algorithm: its flags, and a way to write rows as real ones do.
PRELUDE = """
import argparse, json, os, signal, subprocess, sys, time

parser = argparse.ArgumentParser()
parser.add_argument("--env-id")
parser.add_argument("--total-timesteps", type=int)
parser.add_argument("--seed", type=int)

def row(step, **tags):
    line = {"step": step, "time": time.time(), **{tag.replace("__", "/"): value for tag, value in tags.items()}}
    with open("metrics.jsonl", "ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\\n")

def episode(step, value):
    row(step, charts__episodic_return=value, charts__episodic_length=10)

def forever():
    step = 0
    while True:
        step += 1
        episode(step, float(step))
        time.sleep(0.02)
"""


class HostedRun:
    """A shell process with its algorithm, and what they leave behind."""

    def __init__(self, process: subprocess.Popen[bytes], paths: RunPaths) -> None:
        self.process = process
        self.paths = paths

    def wait(self, seconds: float = 120.0) -> int:
        self.process.wait(seconds)
        return self.process.returncode

    def log(self) -> list[Event]:
        try:
            lines = self.paths.events.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [decode(line) for line in lines if line.endswith(b"\n")]

    def events(self, kind: str | None = None) -> list[Event]:
        """Without the warning that the tiny algorithm, which makes no environment, cannot be watched."""
        found = [event for event in self.log() if "no live view" not in str(event.payload.get("message"))]
        return [event for event in found if kind in (None, event.event)]

    def first(self, kind: str, seconds: float = 90.0) -> Event:
        until(lambda: self.events(kind), seconds, f"a {kind} event; there are {[e.event for e in self.events()]}")
        return self.events(kind)[0]

    def rows(self) -> list[dict[str, Any]]:
        return read_rows(self.paths.metrics)

    @property
    def algorithm_pid(self) -> int:
        return int(self.first("run_started").payload["algorithm_pid"])


def until(happens: Callable[[], object], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def lives(pid: int) -> bool:
    """Whether a process runs or is stopped; what is dead and not yet reaped does not count."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., None]:
    """`until(happens, seconds, what)` waits, and fails naming what did not happen."""
    return until


@pytest.fixture(name="lives")
def lives_fixture() -> Callable[[int], bool]:
    """`lives(pid)`: a zombie does not."""
    return lives


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty MOSAIC_HOME, and a HOME in which nobody ever logged in anywhere."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "TRACK_WANDB", "TRACK_TENSORBOARD", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("MOSAIC_HOME", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    (tmp_path / "nobody").mkdir()
    return folder


@pytest.fixture
def write_algorithm(tmp_path: Path) -> Callable[..., Path]:
    """Writes `tiny_algorithm.py`, whose main() is the given body after the prelude."""

    def write(body: str) -> Path:
        folder = tmp_path / "modules"
        folder.mkdir(exist_ok=True)
        source = folder / "tiny_algorithm.py"
        main = textwrap.indent("args = parser.parse_args()\n" + textwrap.dedent(body), "    ")
        source.write_text(f'"""A tiny algorithm."""\n{PRELUDE}\ndef main():\n{main}\n')
        return source

    return write


@pytest.fixture
def start_run(home: Path, write_algorithm: Callable[..., Path]) -> Iterator[Callable[..., HostedRun]]:
    """Starts a shell that hosts a tiny algorithm; whatever still runs at the end is killed."""
    started: list[HostedRun] = []

    def start(
        body: str | None = None,
        extras: dict[str, Any] | None = None,
        *,
        run_id: str = "run-1",
        algo: str = "tiny",
        total_timesteps: int = 100,
        env_id: str = "CartPole-v1",
        environment: dict[str, str] | None = None,
        stdout: Any = subprocess.DEVNULL,
        payload: dict[str, Any] | None = None,
        through: Path | None = None,
        **options: Any,
    ) -> HostedRun:
        modules = write_algorithm(body).parent if body is not None else home
        config = {"run_id": run_id, "algo": algo, "env_id": env_id, "seed": 1, "extras": extras or {}}
        config["total_timesteps"] = total_timesteps
        given = config if payload is None else {**payload, "metadata": {"worker": {"config": config}}}
        path = os.pathsep.join(filter(None, (str(modules), os.environ.get("PYTHONPATH"))))
        options = {"algo_registry": {"tiny": "tiny_algorithm"}, "grace_seconds": 90, **options}
        process = subprocess.Popen(
            [sys.executable, *([str(through)] if through else []), "-c", HOST, json.dumps(given), json.dumps(options)],
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
        started.append(HostedRun(process, RunPaths(run_id, home)))
        return started[-1]

    yield start
    for run in started:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()
