"""Homes, daemons, and a tiny worker that is found through the entry point and does as its config says."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mosaic.contract.channel import daemon_card, read_card
from mosaic.contract.events import Event
from mosaic.contract.paths import RunPaths
from mosaic.trainer.rpc.client import Client
from mosaic.trainer.run import Run
from mosaic.trainer.states import State

SRC = Path(__file__).resolve().parents[2] / "src"

# A worker in a few lines. `extras` say what it does: episodes N, pause (seconds between
#   two), exit code, child (a process that outlives SIGTERM; or the file in which it notes it), stubborn (ignores it),
#   silent (emits nothing), checkpoints (writes one at half-way and resumes from it), crash_at (dies there, once),
#   policy (the path that it says it saved), scale (of its returns), spread (of its returns, by the seed),
#   gate (a file: it stands still after step gate_at, 2 when not given, until that is there)
WORKER = '''
"""A tiny worker."""
import argparse, json, os, signal, subprocess, sys, time
from pathlib import Path
from mosaic.contract.events import EventLog, cut_torn_tail
from mosaic.contract.metrics import encode_row, encode_resumed
from mosaic.contract.paths import RunPaths

def get_worker_metadata():
    from mosaic.contract.workers import WorkerCapabilities
    return WorkerCapabilities(
        worker_type="tiny", label="Tiny", supported_paradigms=("sequential",), env_families=("gymnasium",),
        action_spaces=("discrete",), observation_spaces=("vector",),
        command=(sys.executable, "-P", "-m", "tiny_worker"),
        schema=lambda: {"tiny": {"fields": [{"name": "total_timesteps", "default": 100}]}})

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--emit-summary", action="store_true")
    parser.add_argument("--grpc", action="store_true")
    parser.add_argument("--grpc-target")
    args = parser.parse_args()
    config = json.loads(Path(args.config).read_text())
    extras = config.get("extras") or {}
    if config.get("algo") != "tiny":
        print(f"tiny-worker: unknown algo {config.get('algo')!r}; did you mean 'tiny'?", file=sys.stderr)
        return 2
    config["seed"] = 7 if config.get("seed") is None else config["seed"]
    if args.dry_run:
        print(json.dumps({"status": "dry-run", "config": config, "warnings": extras.get("warn", [])}))
        return 0
    return run(config, extras, RunPaths(config["run_id"]))

def run(config, extras, paths):
    asked = []
    if not extras.get("foreign"):
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda number, frame: asked.append(number))
    if extras.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if extras.get("say"):
        print(os.environ.get(extras["say"], "not there"), file=sys.stderr, flush=True)
    if extras.get("child"):
        code = "import signal, sys, time; signal.signal(15, lambda *_: open(sys.argv[1], 'w')); time.sleep(600)"
        note = extras["child"] if isinstance(extras["child"], str) else os.devnull
        subprocess.Popen([sys.executable, "-c", code, note], process_group=0)
    if extras.get("silent"):
        time.sleep(extras.get("pause", 0))
        return extras.get("exit", 0)
    cut_torn_tail(paths.metrics)
    log = EventLog(paths.events, config["run_id"])
    first, total = 1, extras.get("episodes", 3)
    log.append("run_started", {"pid": os.getpid(), "seed": config["seed"]})
    mark = paths.checkpoints / "half"
    with open(paths.metrics, "ab", buffering=0) as metrics:
        if extras.get("mode") == "resume_training":
            first = int(next(paths.checkpoints.glob("*/state.json")).parent.name) + 1
            metrics.write(encode_resumed(first - 1))
            log.append("resumed", {"step": first - 1, "exact": True})
        for step in range(first, total + 1):
            while asked:
                number = asked.pop(0)
                if number == signal.SIGTERM:
                    log.append("run_failed", {"exit_code": extras.get("stop_code", 143), "signal": "SIGTERM"})
                    return extras.get("stop_code", 143)
                if number == signal.SIGUSR1:
                    log.append("paused", {"step": step})
                    while not asked:
                        time.sleep(0.01)
                else:
                    log.append("continued", {"step": step})
            value = step * extras.get("scale", 1.0) + config["seed"] * extras.get("spread", 0.0)
            episode = {"charts/episodic_return": value, "charts/episodic_length": 9.0}
            metrics.write(encode_row(step, time.time(), episode))
            metrics.write(encode_row(step, time.time(), {"charts/SPS": 100.0, "losses/loss": 1.0 / step}))
            log.append("episode", {"step": step, "return": value, "length": 9})
            if extras.get("checkpoints") and step == total // 2 and first == 1:
                folder = paths.checkpoints / str(step)
                folder.mkdir(parents=True)
                (folder / "state.json").write_text("{}")
                log.append("checkpoint", {"step": step, "path": str(folder), "exact": True})
            if step == extras.get("crash_at") and first == 1 and not mark.exists():
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.touch()
                code = extras.get("crash_code")
                if code is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                log.append("run_failed", {"exit_code": code, "signal": None})
                return code
            while step == extras.get("gate_at", 2) and not os.path.exists(extras.get("gate", "/")):
                time.sleep(0.02)
            time.sleep(extras.get("pause", 0))
    code = extras.get("exit", 0)
    if code == 0:
        policy = extras.get("policy", "runs/a/tiny.cleanrl_model")
        log.append("run_completed", {"manifest": {"artifacts": {"policy": policy}}})
    else:
        log.append("run_failed", {"exit_code": code, "signal": None, "hint": "it was told to"})
    return code

if __name__ == "__main__":
    sys.exit(main())
'''


def until(happens: Callable[[], Any], what: str, seconds: float = 180.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := happens()):
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.05)
    return found


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


class DaemonProcess:
    """A daemon in a process of its own, on a home that outlives it."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self.home, self.environment = home, environment
        self.process: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None
        self.worker_pids: set[int] = set()

    def start(self, *arguments: str, **environment: str) -> "DaemonProcess":
        log = self.home / "daemon.out"
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mosaic.trainer.daemon", "--listen", "127.0.0.1:0", "--slots", "8", *arguments],
                env={**self.environment, **environment},
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        pid = self.process.pid
        until(
            lambda: self.process.poll() is not None or read_card(daemon_card(self.home)).get("pid") == pid,
            "the daemon's card",
        )
        assert self.process.poll() is None, log.read_text()
        if self._client is not None:
            self._client.close()
        self._client = None
        return self

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = Client(home=self.home)
        return self._client

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(180)

    def stop(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(180)

    def submit(self, extras: dict[str, Any] | None = None, /, **more: Any) -> Run:
        config = {"algo": "tiny", "env_id": "CartPole-v1", "total_timesteps": 100, "seed": 1, "extras": extras or {}}
        return self.client.submit_run({"metadata": {"worker": {"config": config}}, **more})

    def until_state(self, run_id: str, *states: State, seconds: float = 180.0) -> Run:
        def reached() -> Run | None:
            run = self.client.get_run(run_id)
            if run.pid:
                self.worker_pids.add(run.pid)
            assert run.state in states or not run.ended, f"{run.state}: {run.reason}; {self.log()[-2000:]}"
            return run if run.state in states else None

        return until(reached, f"{run_id} to be {states}", seconds)

    def events(self, run_id: str) -> list[Event]:
        return list(self.client.read_events(run_id))

    def paths(self, run_id: str) -> RunPaths:
        return RunPaths(run_id, self.home)

    def log(self) -> str:
        return (self.home / "var/logs/trainer_daemon.log").read_text() + (self.home / "daemon.out").read_text()


def install_tiny_worker(folder: Path) -> Path:
    """Put it into `folder`/plugins, which is for PYTHONPATH."""
    plugins = folder / "plugins"
    info = plugins / "tiny_worker-1.dist-info"
    info.mkdir(parents=True)
    (plugins / "tiny_worker.py").write_text(textwrap.dedent(WORKER))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-worker\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[mosaic.workers]\ntiny = tiny_worker:get_worker_metadata\n")
    return plugins


def make_environment(folder: Path) -> dict[str, str]:
    """Variables of a process that finds the tiny worker besides the real one, and whose home is `folder`/home."""
    plugins = install_tiny_worker(folder)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MOSAIC_", "WANDB_", "TRACK_"))}
    (folder / "home").mkdir()
    return {
        **kept,
        "PYTHONPATH": f"{plugins}{os.pathsep}{SRC}",
        "MOSAIC_HOME": str(folder / "home"),
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
    }


def serving(environment: dict[str, str]) -> Iterator[DaemonProcess]:
    """A started daemon; it and every process of its home are gone at the end."""
    home = Path(environment["MOSAIC_HOME"])
    one = DaemonProcess(home, environment)
    one.start()
    yield one
    if one.process is not None and one.process.poll() is None:
        one.kill()
    for process in psutil.process_iter():
        try:
            if process.environ().get("MOSAIC_HOME") == str(home) and process.pid != os.getpid():
                process.kill()
        except psutil.Error:
            continue


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return make_environment(tmp_path)


@pytest.fixture
def home(environment: dict[str, str]) -> Path:
    return Path(environment["MOSAIC_HOME"])


@pytest.fixture
def daemon(environment: dict[str, str]) -> Iterator[DaemonProcess]:
    """A daemon of one's own."""
    yield from serving(environment)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon for all tests of a module that leave it as it was."""
    yield from serving(make_environment(tmp_path_factory.mktemp("shared")))


@pytest.fixture
def standing(shared: DaemonProcess) -> Iterator[DaemonProcess]:
    """The same for tests that leave something running or kill it: after each, also after one that failed, it rests."""
    yield shared
    if shared.process is None or shared.process.poll() is not None:
        shared.start()
    live = [State.INIT, State.HANDSHAKE, State.READY, State.EXECUTING, State.PAUSED]
    for run in shared.client.list_runs(states=live).runs:
        shared.client.cancel_run(run.run_id, 0.0)
        shared.client.wait_run(run.run_id, 180)


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Any]:
    return until


@pytest.fixture(name="lives")
def lives_fixture() -> Callable[[int], bool]:
    return lives
