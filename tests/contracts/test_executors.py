"""What every executor promises, to the daemon and so to people: the same payload, the same states, the same files.

Slurm's commands are small stand-ins that really run the batch script; a real Slurm is measured in benchmarks/.
"""

import contextlib
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from mosaic.contract.errors import MosaicError, RefusedError
from mosaic.store.manifest import read_manifest
from mosaic.store.storage import Storage
from mosaic.trainer.executors.cluster import ClusterSite
from mosaic.trainer.executors.node_orders import Order
from mosaic.trainer.executors.ray import job_of
from mosaic.trainer.executors.ray_head import PrivateHead
from mosaic.trainer.executors.slurm import SlurmExecutor
from mosaic.trainer.live.worker_requests import WorkerRequests
from mosaic.trainer.scheduling.outcome import REQUEUE
from mosaic.trainer.states import LIVE, State

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "trainer"))
from conftest import DaemonProcess, lives, make_environment, serving, until  # type: ignore[import-not-found]

# More than a variable or an argument of a process can hold, and nothing that packs well.
BALLAST = random.Random(1).randbytes(200_000).hex()
STAND_IN = Path(__file__).with_name("slurm_stand_in.py")


def with_slurm(folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """The same variables, and Slurm's commands on PATH."""
    commands = folder / "slurm"
    commands.mkdir()
    for name in ("sbatch", "squeue", "scancel", "preempt"):
        (commands / name).write_text(f"#!{sys.executable} -ES\n" + STAND_IN.read_text())
        (commands / name).chmod(0o755)
    (folder / "jobs").mkdir()
    path = f"{commands}{os.pathsep}{environment['PATH']}"
    return {**environment, "PATH": path, "SLURM_STAND_IN": str(folder / "jobs")}


@pytest.fixture(scope="module", params=["local", "slurm", "ray"])
def warm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A daemon whose runs go to one executor unless they say otherwise; a cluster is warm for the whole module."""
    folder = tmp_path_factory.mktemp(request.param)
    environment = with_slurm(folder, make_environment(folder))
    if request.param == "ray" and find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'mosaic-rl[ray]'")
    daemons = serving({**environment, "MOSAIC_EXECUTOR": request.param})
    daemon = next(daemons)
    daemon.executor = request.param
    try:
        yield daemon
    finally:
        PrivateHead(daemon.home).close()
        next(daemons, None)


@pytest.fixture(scope="module")
def scattered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A daemon whose nodes share no files with it: all that it knows of a run came over the wire."""
    folder = tmp_path_factory.mktemp("apart")
    environment = with_slurm(folder, make_environment(folder))
    daemons = serving({**environment, "MOSAIC_EXECUTOR": "slurm", "MOSAIC_NODE_SCRATCH": str(folder / "scratch")})
    daemon = next(daemons)
    daemon.scratch, daemon.jobs = folder / "scratch", folder / "jobs"
    try:
        yield daemon
    finally:
        next(daemons, None)


@pytest.fixture
def place(warm: Any) -> Iterator[Any]:
    yield warm
    revive(warm)


@pytest.fixture
def apart(scattered: Any) -> Iterator[Any]:
    yield scattered
    revive(scattered)


def revive(daemon: DaemonProcess) -> None:
    """What a test that failed leaves to others and to its next try: a daemon that runs, and no training."""
    if daemon.process.poll() is not None:
        daemon.start()
    with contextlib.suppress(MosaicError, TimeoutError):
        for run in daemon.client.list_runs(states=[State.INIT, *LIVE]).runs:
            daemon.client.cancel_run(run.run_id, 0.0)
            daemon.client.wait_run(run.run_id, 180)


def states(daemon: DaemonProcess, run_id: str) -> list[str]:
    """Every state that the run was in, by the registry's changes."""
    with sqlite3.connect(daemon.home / "var/trainer/mosaic.db") as database:
        query = "SELECT to_state FROM changes WHERE run_id = ? ORDER BY cursor"
        return [row[0] for row in database.execute(query, (run_id,))]


def numbered_once(daemon: DaemonProcess, run_id: str) -> list[str]:
    events = daemon.events(run_id)
    assert [event.seq for event in events] == list(range(len(events)))
    return [event.event for event in events]


def worker_of(daemon: DaemonProcess, run_id: str) -> int:
    """The pid that the worker itself tells."""
    started = until(lambda: [e for e in daemon.events(run_id) if e.event == "run_started"], "the worker to start")
    return int(started[-1].payload["pid"])


def test_a_run_is_submitted_watched_and_completed(place: Any) -> None:
    troubles = place.log().count("daemon.trouble")
    run = place.submit({"episodes": 5, "ballast": BALLAST}, resources={"gpus": {"requested": 1}})
    assert run.executor == place.executor
    if place.executor != "slurm" and not place.client.health()["gpus"]:
        assert "trains on the CPU" in run.warnings[0], "what this machine does not have would be waited for in vain"
    ended = place.until_state(run.run_id, State.COMPLETED)
    assert numbered_once(place, run.run_id) == ["run_started", *["episode"] * 5, "run_completed"]
    assert ended.step == 5 and ended.last_values["losses/loss"] == 0.2 and ended.exit_code == 0
    assert states(place, run.run_id) == ["INIT", "HANDSHAKE", "READY", "EXECUTING", "COMPLETED"]
    if place.executor != "local":
        assert ended.job and ended.node
    assert place.log().count("daemon.trouble") == troubles


def test_cancel_ends_the_worker_and_all_that_it_started(place: Any, tmp_path: Path) -> None:
    run = place.submit({"episodes": 9, "gate": str(tmp_path / "never"), "child": True, "stubborn": True})
    place.until_state(run.run_id, State.EXECUTING)
    pid = worker_of(place, run.run_id)
    family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    assert len(family) > 1
    place.client.cancel_run(run.run_id, 0.5)
    assert place.until_state(run.run_id, State.CANCELLED).reason == "cancelled"
    until(lambda: not any(map(lives, family)), "all its processes to end")


def test_a_run_that_waits_in_a_clusters_queue_is_cancelled(place: Any) -> None:
    if place.executor == "local":
        pytest.skip("the daemon's own queue is tested with the dispatcher")
    hold = Path(place.environment["SLURM_STAND_IN"], "hold")
    hold.touch()
    try:
        nowhere = {"ray": {"ray": {"custom": {"nowhere": 1}}}}.get(place.executor, {})
        run = place.submit({"episodes": 1}, resources=nowhere)
        until(lambda: "it waits in the queue of" in place.client.get_run(run.run_id).reason, "the cluster's word")
        place.client.cancel_run(run.run_id, 3600)
        assert place.until_state(run.run_id, State.CANCELLED).reason == "cancelled"
        assert states(place, run.run_id) == ["INIT", "HANDSHAKE", "CANCELLED"]
    finally:
        hold.unlink()


def test_cancel_tells_the_worker_alone_so_that_it_can_save(place: Any, tmp_path: Path) -> None:
    told = tmp_path / "told"
    run = place.submit({"episodes": 100_000, "pause": 0.01, "child": str(told), "stop_code": 75})
    place.until_state(run.run_id, State.EXECUTING)
    place.client.cancel_run(run.run_id, 100)
    assert place.until_state(run.run_id, State.CANCELLED).exit_code == 75
    assert not told.exists(), "what a run has besides its worker is needed while that saves"


def test_pause_holds_a_run_and_continue_lets_it_go_on(place: Any) -> None:
    run = place.submit({"episodes": 100_000, "pause": 0.01})
    place.until_state(run.run_id, State.EXECUTING)
    place.client.pause_run(run.run_id)
    paused = place.until_state(run.run_id, State.PAUSED)
    assert place.client.get_run(run.run_id).step < 100_000 and paused.asked == ""
    place.client.continue_run(run.run_id)
    place.until_state(run.run_id, State.EXECUTING)
    place.client.cancel_run(run.run_id, 5)
    place.until_state(run.run_id, State.CANCELLED)
    kinds = numbered_once(place, run.run_id)
    assert kinds.count("paused") == kinds.count("continued") == 1


def test_a_failure_is_told_with_its_exit_code(place: Any) -> None:
    run = place.submit({"episodes": 1, "exit": 7})
    failed = place.until_state(run.run_id, State.FAILED)
    assert failed.exit_code == 7 and failed.reason == "exit code 7: it was told to"


def test_a_crash_is_counted_and_goes_on_from_the_checkpoint(place: Any) -> None:
    run = place.submit({"episodes": 6, "checkpoints": True, "crash_at": 4}, retry={"max_restarts": 1})
    ended = place.until_state(run.run_id, State.COMPLETED)
    assert (ended.attempt, ended.restarts, ended.step) == (2, 1, 6)
    kinds = numbered_once(place, run.run_id)
    assert kinds.count("resumed") == 1 and kinds.count("episode") == 4 + 3
    (returns,) = place.client.get_metrics(run.run_id, ["charts/episodic_return"])
    assert list(returns.steps) == [1, 2, 3, 4, 5, 6]


def test_a_requeue_is_not_counted(place: Any) -> None:
    run = place.submit({"episodes": 4, "checkpoints": True, "crash_at": 3, "crash_code": 75})
    ended = place.until_state(run.run_id, State.COMPLETED)
    assert (ended.attempt, ended.restarts) == (2, 0)


def test_a_daemon_that_was_killed_takes_its_runs_over(place: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = place.submit({"episodes": 6, "gate": str(gate)})
    place.until_state(run.run_id, State.EXECUTING)
    pid = worker_of(place, run.run_id)
    place.kill()
    assert lives(pid)
    gate.touch()
    place.start()
    place.until_state(run.run_id, State.COMPLETED)
    assert numbered_once(place, run.run_id) == ["run_started", *["episode"] * 6, "run_completed"]
    assert place.client.get_run(run.run_id).attempt == 1


def test_a_node_without_the_home_sends_everything_once(apart: Any) -> None:
    run = apart.submit({"episodes": 300, "ballast": BALLAST})
    apart.until_state(run.run_id, State.COMPLETED)
    assert numbered_once(apart, run.run_id) == ["run_started", *["episode"] * 300, "run_completed"]
    (there,) = apart.scratch.glob(f"*/var/trainer/runs/{run.run_id}/metrics.jsonl")
    here = apart.paths(run.run_id)
    (config,) = apart.scratch.glob(f"*/var/trainer/configs/worker-{run.run_id}-*.json")
    assert BALLAST in config.read_text()
    assert here.metrics.read_bytes() == there.read_bytes() and here.events.stat().st_size > 0
    job = apart.jobs / apart.client.get_run(run.run_id).job
    until(lambda: (job / "state").read_text() == "COMPLETED", "its job to end")
    assert not (job / "cancelled").exists(), "Slurm's books must not say that it was cancelled"


def test_what_a_node_writes_while_the_daemon_is_away_arrives_when_it_is_back(apart: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = apart.submit({"episodes": 50, "gate": str(gate)})
    apart.until_state(run.run_id, State.EXECUTING)
    pid, port = worker_of(apart, run.run_id), apart.client.address.target.rpartition(":")[2]
    apart.kill()
    gate.touch()
    until(lambda: not lives(pid), "the worker to end")
    apart.start("--listen", f"127.0.0.1:{port}")
    apart.until_state(run.run_id, State.COMPLETED)
    assert numbered_once(apart, run.run_id) == ["run_started", *["episode"] * 50, "run_completed"]


def test_a_run_that_goes_on_elsewhere_continues_its_numbers(apart: Any) -> None:
    """The second node has nothing of the first one's: neither events nor checkpoints."""
    run = apart.submit({"episodes": 100_000, "pause": 0.01})
    apart.until_state(run.run_id, State.EXECUTING)
    until(lambda: apart.client.get_run(run.run_id).step >= 3, "a few steps")
    job = apart.client.get_run(run.run_id).job
    for folder in apart.scratch.glob(f"*/var/trainer/runs/{run.run_id}"):
        folder.rename(folder.with_name(f"gone-{run.run_id}"))
    subprocess.run(["preempt", job], env=apart.environment, check=True)
    until(lambda: apart.client.get_run(run.run_id).attempt == 2, "the second attempt")
    until(lambda: numbered_once(apart, run.run_id).count("run_started") == 2, "its start")
    apart.client.cancel_run(run.run_id, 5)
    ended = apart.until_state(run.run_id, State.CANCELLED)
    numbered_once(apart, run.run_id)
    assert ended.restarts == 0 and ended.job != job
    (returns,) = apart.client.get_metrics(run.run_id, ["charts/episodic_return"])
    assert list(returns.steps) == list(range(1, len(returns) + 1))


def test_a_run_whose_processes_were_all_told_to_end_goes_on_uncounted(apart: Any) -> None:
    """So ends the grace period of a preempted job: Slurm tells everybody, and who hears it twice cannot save."""
    run = apart.submit({"episodes": 100_000, "pause": 0.01})
    apart.until_state(run.run_id, State.EXECUTING)
    relay = psutil.Process(int((apart.jobs / apart.client.get_run(run.run_id).job / "pid").read_text()))
    for process in [relay, *relay.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    until(lambda: apart.client.get_run(run.run_id).attempt == 2, "the second attempt")
    apart.client.cancel_run(run.run_id, 5)
    assert apart.until_state(run.run_id, State.CANCELLED).restarts == 0


def test_a_run_whose_job_somebody_cancels_saves_itself_and_is_not_tried_again(apart: Any) -> None:
    run = apart.submit({"episodes": 100_000, "pause": 0.01, "stop_code": 75}, retry={"max_restarts": 3})
    apart.until_state(run.run_id, State.EXECUTING)
    subprocess.run(["scancel", apart.client.get_run(run.run_id).job], env=apart.environment, check=True)
    ended = apart.until_state(run.run_id, State.CANCELLED)
    assert ended.attempt == 1 and "somebody cancelled its job in Slurm" in ended.reason
    assert numbered_once(apart, run.run_id)[-1] == "run_failed"


@pytest.mark.parametrize(
    ("state", "code", "meant", "words"),
    [
        ("COMPLETED", "0:0", 0, ""),
        ("FAILED", "7:0", 7, ""),
        ("FAILED", "0:15", REQUEUE, "before it had begun"),
        ("PREEMPTED", "0:15", REQUEUE, "preempted"),
        ("NODE_FAIL", "0:0", None, "lost its node"),
        ("TIMEOUT", "0:15", None, "time limit"),
        ("CANCELLED", "0:15", None, "somebody cancelled its job"),
    ],
)
def test_slurms_word_for_an_end_is_understood(
    state: str, code: str, meant: int | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = with_slurm(tmp_path, dict(os.environ))
    for name in ("PATH", "SLURM_STAND_IN"):
        monkeypatch.setenv(name, environment[name])
    job = tmp_path / "jobs" / "1"
    job.mkdir()
    for name, value in {"name": "mosaic-x", "state": state, "code": code}.items():
        (job / name).write_text(value)
    found = SlurmExecutor(ClusterSite(tmp_path, lambda: ""), WorkerRequests()).list_jobs()["1"].exit
    assert found.code == meant and words in found.reason + found.lost + found.cancelled


@pytest.mark.parametrize(
    ("status", "message", "meant", "words"),
    [
        ("FAILED", "Job supervisor actor died: the raylet of its node died.", None, "Ray lost its node"),
        ("FAILED", "runtime_env setup failed: on this raylet pip found no such package", 1, "no such package"),
        ("STOPPED", "Job was intentionally stopped.", None, "somebody stopped its job"),
    ],
)
def test_rays_word_for_an_end_is_understood(status: str, message: str, meant: int | None, words: str) -> None:
    found = job_of({"submission_id": "mosaic-x", "status": status, "message": message}).exit
    assert found.code == meant and words in found.reason + found.lost + found.cancelled


def test_a_run_whose_node_is_lost_goes_on_from_its_stored_checkpoint(apart: Any, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    params = {
        "num_envs": 2,
        "num_steps": 32,
        "num_minibatches": 1,
        "update_epochs": 1,
        "checkpoint_every": 512,
        "checkpoint_episodes": 0,
    }
    extras = {"storage_url": url, "fastlane_video_mode": "off", "algo_params": params}
    config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 50_000_000, "seed": 1, "extras": extras}
    payload = {"metadata": {"worker": {"config": config}}, "retry": {"max_restarts": 1}}
    run_id = apart.client.submit_run(payload).run_id
    until(lambda: (found := read_manifest(Storage(url), run_id)) and found.checkpoints, "a stored checkpoint")
    pid = worker_of(apart, run_id)
    for folder in apart.scratch.glob(f"*/var/trainer/runs/{run_id}"):
        folder.rename(folder.with_name(f"gone-{run_id}"))
    os.kill(pid, signal.SIGKILL)
    resumed = until(lambda: [e for e in apart.events(run_id) if e.event == "resumed"], "the run to go on elsewhere")
    assert resumed[0].payload["step"] >= 512 and resumed[0].payload["exact"] is True
    apart.client.cancel_run(run_id, 1)
    assert apart.until_state(run_id, State.CANCELLED).attempt == 2
    numbered_once(apart, run_id)


def test_what_a_cluster_cannot_give_is_refused(apart: Any) -> None:
    for slurm, words in (({"job-name": "x"}, "is set by the daemon"), ({"Bad Key": 1}, "no long option")):
        with pytest.raises(RefusedError, match=words):
            apart.submit({}, resources={"slurm": slurm})
    with pytest.raises(RefusedError, match='goes with executor "slurm"'):
        apart.submit({}, resources={"executor": "local", "slurm": {"partition": "gpu"}})
    shipped = {"ray": {"runtime_env": {"env_vars": {"WANDB_API_KEY": "s3cr3t-s3cr3t"}}}}
    with pytest.raises(RefusedError, match="which Ray shows"):
        apart.submit({}, resources=shipped)
    run = apart.submit({}, resources={"slurm": {"partition": "nowhere"}})
    assert "invalid partition" in apart.until_state(run.run_id, State.FAILED).reason
    run = apart.submit({}, resources={"slurm": {"time": "1:30"}})
    assert "it would never get on" in apart.until_state(run.run_id, State.FAILED).reason


def test_the_gpus_of_a_run_are_those_that_its_cluster_gives(apart: Any) -> None:
    shell = {"CUDA_VISIBLE_DEVICES": "7", "OMP_NUM_THREADS": "1"}
    run = apart.submit({"episodes": 1}, environment=shell, resources={"gpus": {"requested": 1}})
    script = (apart.jobs / apart.until_state(run.run_id, State.COMPLETED).job / "script").read_text()
    (order,) = re.findall(r"MOSAIC_ORDER=(\S+)", script)
    environment = Order.decode(order).environment
    assert "OMP_NUM_THREADS" in environment and "CUDA_VISIBLE_DEVICES" not in environment


def test_secrets_and_the_daemons_token_reach_no_file_of_the_cluster(apart: Any) -> None:
    run = apart.submit({"episodes": 1}, environment={"WANDB_API_KEY": "s3cr3t-s3cr3t"})
    apart.until_state(run.run_id, State.COMPLETED)
    token = (apart.home / "var/trainer/token").read_text().strip()
    with sqlite3.connect(apart.home / "var/trainer/mosaic.db") as database:
        (nonce,) = database.execute("SELECT nonce FROM runs WHERE run_id = ?", (run.run_id,)).fetchone()
    for path in [*apart.jobs.rglob("*"), *apart.scratch.rglob("*"), *apart.paths(run.run_id).folder.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):  # what a job had for a moment
            text = path.read_bytes() if path.is_file() else b""
            assert b"s3cr3t" not in text and token.encode() not in text, path
            assert not nonce or nonce.encode() not in text, f"with what stands in {path} anybody could register"
