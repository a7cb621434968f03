"""The worker's side of the handshake against a real daemon: local, started by hand, and as if far away."""

import hashlib
import json
import os
import queue
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest

from mosaic.contract.channel import PROTO_VERSION, credentials, open_channel
from mosaic.contract.errors import ConfigError
from mosaic.contract.events import Event, replay
from mosaic.contract.metrics import encode_row, read_rows
from mosaic.contract.paths import RunPaths
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.contract.proto import trainer_pb2_grpc
from mosaic.trainer.executors.local import boot_id
from mosaic.trainer.states import State

SCRIPT = """
import argparse, json, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--env-id"), parser.add_argument("--total-timesteps", type=int), parser.add_argument("--seed")
args = parser.parse_args()
for step in range(args.total_timesteps):
    while step == 40 and os.path.exists(os.path.join(os.path.dirname(__file__), "wait")):
        time.sleep(0.02)
    with open("metrics.jsonl", "a") as file:
        row = {"step": step, "time": time.time(), "charts/episodic_return": float(step), "charts/episodic_length": 1}
        file.write(json.dumps(row) + "\\n")
    time.sleep(0.02)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture
def stub(daemon: Any) -> Any:
    return Stub(daemon)


class Stub:
    """Raw calls, with the daemon's token or another."""

    def __init__(self, daemon: Any) -> None:
        self._address = daemon.client.address
        self._stub = trainer_pb2_grpc.TrainerStub(open_channel(self._address))

    def register(self, run_id: str, session: str = "", **fields: Any) -> pb.RegisterWorkerResponse:
        told = {"proto_version": PROTO_VERSION, "boot_id": "elsewhere", "worker_id": "w", **fields}
        request = pb.RegisterWorkerRequest(run_id=run_id, **told)
        return self._stub.RegisterWorker(request, metadata=credentials(self._address, session), timeout=180)

    def open(self, session: str, batches: Iterable[pb.TelemetryBatch]) -> Any:
        return self._stub.PublishTelemetry(iter(batches), metadata=credentials(self._address, session), timeout=180)

    def publish(self, session: str, *batches: pb.TelemetryBatch) -> list[pb.Control]:
        return list(self.open(session, batches))


def worker(
    environment: dict[str, str], config: dict[str, Any], folder: Path, *arguments: str
) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(path), "--grpc", *arguments]
    return subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )


def warnings_of(events: Iterable[Event]) -> list[str]:
    """What the worker warned of, but for the live view: these scripts make no environment."""
    told = [event.payload["message"] for event in events if event.event == "warning"]
    return [message for message in told if "live view" not in message]


def test_a_worker_with_grpc_registers_itself_before_it_trains(daemon: Any, script: str) -> None:
    config = {"algo": script, "env_id": "CartPole-v1", "total_timesteps": 20, "seed": 1}
    config["extras"] = {"supports_pause": True, "supports_checkpoint": True, "schema_version": 2}
    run = daemon.client.submit_run({"metadata": {"worker": {"config": config, "use_grpc": True}}})
    ended = daemon.client.wait_run(run.run_id, 180)
    assert ended.state == State.COMPLETED and ended.worker_id == f"cleanrl-worker-{run.run_id[:8]}", ended
    assert "by=worker" in daemon.log() and "by=relay" not in daemon.log()
    assert warnings_of(daemon.events(run.run_id)) == []


def test_a_worker_started_by_hand_makes_itself_known(daemon: Any, script: str, tmp_path: Path) -> None:
    config = {"run_id": "by-hand", "algo": script, "env_id": "CartPole-v1", "total_timesteps": 80, "seed": 1}
    (tmp_path / "wait").touch()
    target = daemon.client.address.target
    process = worker(daemon.environment, config, tmp_path / "cwd", "--grpc-target", target)
    run = daemon.until_state("by-hand", State.EXECUTING) if _known(daemon, process) else None
    assert run is not None and run.external and run.pid == process.pid
    daemon.client.pause_run("by-hand")
    daemon.until_state("by-hand", State.PAUSED)
    daemon.client.continue_run("by-hand")
    (tmp_path / "wait").unlink()
    ended = daemon.client.wait_run("by-hand", 180)
    assert ended.state == State.COMPLETED and ended.step == 79
    process.communicate()


def _known(daemon: Any, process: subprocess.Popen[bytes]) -> bool:
    import time

    end = time.monotonic() + 180
    while time.monotonic() < end and process.poll() is None:
        if daemon.client.list_runs(text="by-hand").total or daemon.client.list_runs(text="far").total:
            return True
        time.sleep(0.1)
    return bool(daemon.client.list_runs().total)


def test_a_remote_worker_sends_all_it_wrote_through_a_daemon_that_dies_meanwhile(
    daemon: Any, script: str, tmp_path: Path
) -> None:
    """Another home stands for another machine: the daemon cannot see the files there."""
    target = daemon.client.address.target
    there = tmp_path / "there"
    environment = {**daemon.environment, "MOSAIC_HOME": str(there), "MOSAIC_TOKEN": daemon.client.address.token}
    config = {"run_id": "far", "algo": script, "env_id": "CartPole-v1", "total_timesteps": 120, "seed": 1}
    (tmp_path / "wait").touch()
    process = worker(environment, config, there, "--grpc-target", target)
    assert _known(daemon, process)
    daemon.until_state("far", State.EXECUTING)
    daemon.kill()
    (tmp_path / "wait").unlink()
    daemon.start("--listen", target)
    ended = daemon.client.wait_run("far", 180)
    assert ended.state == State.COMPLETED and ended.step == 119, ended
    assert process.wait(180) == 0 and process.communicate()[1] == b""
    own, mirrored = RunPaths("far", there), daemon.paths("far")
    assert mirrored.metrics.read_bytes() == own.metrics.read_bytes()
    assert list(replay(mirrored.events)) == list(replay(own.events))
    (curve,) = daemon.client.get_metrics("far", ["charts/episodic_return"])
    assert curve.values.tolist() == [row["charts/episodic_return"] for row in read_rows(own.metrics)]


def test_a_remote_worker_is_paused_and_cancelled_through_its_stream(daemon: Any, script: str, tmp_path: Path) -> None:
    there = tmp_path / "there"
    environment = {**daemon.environment, "MOSAIC_HOME": str(there), "MOSAIC_TOKEN": daemon.client.address.token}
    config = {"run_id": "far", "algo": script, "env_id": "CartPole-v1", "total_timesteps": 100000, "seed": 1}
    process = worker(environment, config, there, "--grpc-target", daemon.client.address.target)
    assert _known(daemon, process)
    daemon.until_state("far", State.EXECUTING)
    daemon.client.pause_run("far")
    daemon.until_state("far", State.PAUSED)
    daemon.client.continue_run("far")
    daemon.until_state("far", State.EXECUTING)
    daemon.client.cancel_run("far", 5)
    assert daemon.until_state("far", State.CANCELLED).reason == "cancelled"
    process.communicate(timeout=180)


def test_what_a_daemon_refuses_is_one_warning_and_training_goes_on(daemon: Any, script: str, tmp_path: Path) -> None:
    environment = {**daemon.environment, "MOSAIC_TOKEN": "wrong"}
    config = {"run_id": "stranger", "algo": script, "env_id": "CartPole-v1", "total_timesteps": 2, "seed": 1}
    process = worker(environment, config, tmp_path / "cwd", "--grpc-target", daemon.client.address.target)
    process.communicate(timeout=180)
    assert process.returncode == 0
    (warning,) = warnings_of(replay(daemon.paths("stranger").events))
    assert "refused this worker: the daemon's token is missing or wrong" in warning


def test_registration_is_refused_for_unknown_live_or_ended_runs_and_other_versions(daemon: Any, stub: Stub) -> None:
    run = daemon.submit({"episodes": 100_000, "pause": 0.05})
    daemon.until_state(run.run_id, State.EXECUTING)
    refusals = [
        (("nobody",), {}, grpc.StatusCode.NOT_FOUND, "is unknown"),
        (("../../etc",), {}, grpc.StatusCode.INVALID_ARGUMENT, "run id"),
        ((run.run_id,), {}, grpc.StatusCode.FAILED_PRECONDITION, "has a registered worker already"),
        ((run.run_id,), {"proto_version": "MOSAIC/9.0"}, grpc.StatusCode.INVALID_ARGUMENT, "speaks MOSAIC/1.0"),
    ]
    for given, fields, code, text in refusals:
        with pytest.raises(grpc.RpcError) as refused:
            stub.register(*given, **fields)
        assert refused.value.code() == code and text in refused.value.details()
    daemon.client.cancel_run(run.run_id)
    daemon.until_state(run.run_id, State.CANCELLED)
    with pytest.raises(grpc.RpcError, match="is CANCELLED"):
        stub.register(run.run_id)


def test_a_session_token_is_good_for_its_own_run_only_and_survives_a_restart(daemon: Any, stub: Stub) -> None:
    config = {"algo": "tiny", "env_id": "x", "total_timesteps": 5}
    runs = [daemon.client.submit_run(config, external=True, run_id=name).run_id for name in ("one", "two")]
    with pytest.raises(ConfigError, match="run one exists already"):
        daemon.client.submit_run(config, external=True, run_id="one")
    tokens = {run_id: stub.register(run_id).session_token for run_id in runs}
    with pytest.raises(grpc.RpcError, match="has a registered worker already"):
        stub.register("one")
    for session in ("", "made-up", tokens["two"]):
        with pytest.raises(grpc.RpcError) as refused:
            stub.publish(session, pb.TelemetryBatch(run_id="one"))
        assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
    daemon.kill()
    daemon.start()
    stub = Stub(daemon)
    started = pb.Event(event="run_started", seq=0, timestamp=1.0, payload=b"{}")
    controls = stub.publish(tokens["one"], pb.TelemetryBatch(run_id="one"), pb.TelemetryBatch(events=[started]))
    assert controls[0].stored.next_seq == 0 and controls[1].credits.credits == 400
    assert max(control.stored.next_seq for control in controls) == 1
    done = pb.Event(event="run_completed", seq=1, timestamp=2.0, payload=b"{}")
    stub.publish(tokens["one"], pb.TelemetryBatch(run_id="one", events=[done]))
    daemon.until_state("one", State.COMPLETED)
    with pytest.raises(grpc.RpcError, match="not one of run one's present worker"):
        stub.publish(tokens["one"], pb.TelemetryBatch(run_id="one"))


def test_published_events_are_taken_once_in_order_and_gaps_are_asked_for_again(daemon: Any, stub: Stub) -> None:
    daemon.client.submit_run({"algo": "tiny", "env_id": "x", "total_timesteps": 5}, external=True, run_id="one")
    token = stub.register("one").session_token

    def event(seq: int) -> pb.Event:
        return pb.Event(
            event="episode", seq=seq, timestamp=1.0, episode=pb.RunEpisode(step=seq, episode_return=2.5, length=3)
        )

    row = b'{"step": 1, "time": 1.0, "a": 2.0}\n'
    controls = stub.publish(
        token,
        pb.TelemetryBatch(run_id="one", events=[event(0), event(1)], metrics=row),
        pb.TelemetryBatch(events=[event(1), event(2), event(7)], metrics=row + row, metrics_offset=0),
        pb.TelemetryBatch(events=[event(7)], metrics=row, metrics_offset=9999),
    )
    assert [c.stored.next_seq for c in controls if c.HasField("stored")] == [0, 2, 3, 3]
    daemon.until_state("one", State.EXECUTING)
    expected = [("episode", seq, {"step": seq, "return": 2.5, "length": 3}) for seq in range(3)]
    assert [(e.event, e.seq, e.payload) for e in daemon.events("one")] == expected
    assert daemon.paths("one").metrics.read_bytes() == row + row


def test_episodes_of_a_worker_without_rows_are_counted_and_no_episode_is_counted_twice(daemon: Any, stub: Stub) -> None:
    def batch(run_id: str, numbers: range, *, rows: bool) -> pb.TelemetryBatch:
        told = [pb.RunEpisode(step=10 * n, episode_return=float(n), length=10) for n in numbers]
        events = [
            pb.Event(event="episode", seq=n, timestamp=5.0, episode=one) for n, one in zip(numbers, told, strict=True)
        ]
        lines = [encode_row(10 * n, 5.0, {"charts/episodic_return": float(n)}) for n in numbers]
        return pb.TelemetryBatch(run_id=run_id, events=events, metrics=b"".join(lines) if rows else b"")

    for run_id, rows in (("bare", False), ("rows", True)):
        daemon.client.submit_run({"algo": "tiny", "env_id": "x", "total_timesteps": 99}, external=True, run_id=run_id)
        stub.publish(stub.register(run_id).session_token, batch(run_id, range(30), rows=rows))
        daemon.until_state(run_id, State.EXECUTING)
        run = daemon.client.get_run(run_id)
        assert (run.episodes, run.last_return, run.mean_return, run.step) == (30, 29.0, 14.5, 290)
        (series,) = daemon.client.get_metrics(run_id, ["charts/episodic_return"])
        assert series.steps.tolist() == [10 * n for n in range(30)] and series.values[-1] == 29.0
    listed = {run.run_id: run for run in daemon.client.list_runs(curve_points=5).runs}
    assert listed["bare"].episodes == 30 and len(listed["bare"].curve) == 5
    assert daemon.client.get_run("bare").last_length == 10.0


def test_a_workers_new_stream_takes_the_place_of_one_that_was_cut(daemon: Any, stub: Stub) -> None:
    daemon.client.submit_run({"algo": "tiny", "env_id": "x", "total_timesteps": 5}, external=True, run_id="one")
    token = stub.register("one").session_token
    episode = pb.RunEpisode(step=1, episode_return=2.5, length=3)
    told = pb.TelemetryBatch(events=[pb.Event(event="episode", seq=0, timestamp=1.0, episode=episode)])
    waiting: list[queue.SimpleQueue[pb.TelemetryBatch | None]] = [queue.SimpleQueue(), queue.SimpleQueue()]
    cut, present = (stub.open(token, iter(batches.get, None)) for batches in waiting)
    for batches, stream in zip(waiting, (cut, present), strict=True):
        batches.put(pb.TelemetryBatch(run_id="one"))
        assert next(stream).stored.next_seq == 0
    waiting[1].put(told)
    daemon.until_state("one", State.EXECUTING)
    waiting[0].put(told)  # it comes late
    daemon.client.pause_run("one")
    assert any(control.HasField("pause") for control in present)
    assert not any(control.HasField("pause") for control in cut), "it has ended, and took no order"
    assert [event.seq for event in daemon.events("one")] == [0]
    for batches in waiting:
        batches.put(None)


def test_a_neighbour_whose_files_the_daemon_reads_need_not_send_them(daemon: Any, stub: Stub) -> None:
    daemon.client.submit_run({"algo": "tiny", "env_id": "x", "total_timesteps": 5}, external=True, run_id="near")
    folder = str(daemon.paths("near").folder)
    answer = stub.register("near", boot_id=boot_id(), run_folder=folder, pid=os.getpid(), start_ticks=1)
    assert answer.reads_files


# It tells which of its variables it got, by a digest: the value itself must be nowhere.
TELLING = """
import argparse, hashlib, json, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--env-id"), parser.add_argument("--total-timesteps", type=int), parser.add_argument("--seed")
parser.parse_args()
with open("digest.txt", "w") as file:
    file.write(hashlib.sha256(os.environ.get("LAB_API_KEY", "").encode()).hexdigest())
with open("metrics.jsonl", "a") as file:
    file.write(json.dumps({"step": 1, "time": time.time(), "charts/episodic_return": 1.0}) + "\\n")
"""
KEY = "k" + "0123456789abcdef" * 2


def certified(folder: Path, *arguments: str) -> None:
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *arguments],
        cwd=folder,
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")


@pytest.mark.parametrize("secure", [True, False])
def test_a_distant_worker_gets_its_runs_secrets_over_tls_only(
    daemon: Any, home: Path, tmp_path: Path, secure: bool
) -> None:
    """An authority of the lab's own signs the daemon's certificate; the worker knows the authority only."""
    there, variables = tmp_path / "there", {}
    if secure:
        daemon.stop()
        certified(tmp_path, "-subj", "/CN=lab", "-keyout", "ca.key", "-out", "ca.pem")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
        certified(tmp_path, "-subj", "/CN=gpubox", *signing, "-keyout", "key.pem", "-out", "cert.pem")
        tls = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
        daemon.start("--listen", "127.0.0.1:0", *tls)
        variables["MOSAIC_CA"] = str(tmp_path / "ca.pem")
    there.mkdir()
    (there / "mine.py").write_text(TELLING)
    config = {"algo": str(there / "mine.py"), "env_id": "CartPole-v1", "total_timesteps": 1, "seed": 1}
    payload = {"environment": {"LAB_API_KEY": KEY}, "metadata": {"worker": {"config": config}}}
    daemon.client.submit_run(payload, external=True, run_id="far")
    address = daemon.client.address
    variables |= {"MOSAIC_HOME": str(there), "MOSAIC_TOKEN": address.token}
    process = worker(
        {**daemon.environment, **variables}, {**config, "run_id": "far"}, there, "--grpc-target", address.target
    )
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 0 and said == b"", said
    assert daemon.client.wait_run("far", 180).state == State.COMPLETED
    got = (RunPaths("far", there).folder / "digest.txt").read_text()
    assert got == hashlib.sha256(KEY.encode() if secure else b"").hexdigest()
    assert ("worker.secrets_withheld" in daemon.log()) == (not secure)
    daemon.stop()
    for folder in (there, home):
        assert [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()] == []


DRAWING = """
import argparse
import gymnasium as gym
parser = argparse.ArgumentParser()
parser.add_argument("--env-id"), parser.add_argument("--total-timesteps", type=int), parser.add_argument("--seed")
args = parser.parse_args()
env = gym.make(args.env_id)
env.reset(seed=1)
for _ in range(args.total_timesteps):
    _, _, terminated, truncated, _ = env.step(env.action_space.sample())
    if terminated or truncated:
        env.reset()
"""


def test_a_distant_worker_is_watched_and_its_logs_lie_where_it_runs(daemon: Any, tmp_path: Path) -> None:
    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    for folder in (there, elsewhere):
        folder.mkdir()
    (there / "mine.py").write_text(DRAWING)
    address = daemon.client.address
    environment = {**daemon.environment, "MOSAIC_HOME": str(there), "MOSAIC_TOKEN": address.token}
    config = {"algo": str(there / "mine.py"), "env_id": "CartPole-v1", "total_timesteps": 10**9, "seed": 1}
    process = worker(environment, {**config, "run_id": "far"}, there, "--grpc-target", address.target)
    assert _known(daemon, process)
    frame = next(frame for frame in daemon.client.stream_frames("far", max_fps=10) if frame.data)
    assert (frame.run_id, frame.channels) == ("far", 3)
    assert len(frame.data) == frame.width * frame.height * 3 or frame.encoding != "raw"

    def logs(**variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mosaic.cli", "logs", "far"]
        return subprocess.run(
            command, env={**daemon.environment, **variables}, cwd=elsewhere, capture_output=True, text=True
        )

    far = logs()
    assert far.returncode == 2 and "read it where the worker runs, or: mosaic events far" in far.stderr, far
    daemon.client.cancel_run("far", 5)
    daemon.until_state("far", State.CANCELLED)
    process.communicate(timeout=300)
    # A client elsewhere sees no file of the daemon's machine at all.
    (daemon.home / "var/trainer/runs/far").rename(daemon.home / "away")
    unseen = logs(MOSAIC_HOME=str(elsewhere), MOSAIC_TARGET=address.target, MOSAIC_TOKEN=address.token)
    assert unseen.returncode == 2 and "is not on this machine; read it where the daemon runs" in unseen.stderr, unseen
    assert len(unseen.stderr.splitlines()) == 1


EXAMPLES = [
    '{"track_wandb": true, "tensorboard_dir": "tb", "wandb_entity": "myteam", "wandb_project": "mosaic"}',
    '{"track_wandb": true, "tensorboard_dir": "tb", "algo_params": {"num_envs": 8, "learning_rate": 0.0003}}',
    '{"supports_pause": true, "supports_checkpoint": true, "schema_version": 2}',
]


def test_the_examples_of_the_workers_command_line_work_against_the_daemon(daemon: Any, tmp_path: Path) -> None:
    """Real PPO, one after another: W&B, offline without a key, has to begin before a run is over and a while more."""
    pytest.importorskip("wandb")
    config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 2048, "seed": 1}
    target = daemon.client.address.target
    for number, extras in enumerate(EXAMPLES):
        run_id, flags = f"example-{number}", ("--grpc-target", target, "--extras", extras)
        process = worker(daemon.environment, {**config, "run_id": run_id}, tmp_path / f"cwd-{number}", *flags)
        said = process.communicate(timeout=300)[1]
        assert process.returncode == 0, said
        run = daemon.client.wait_run(run_id, 180)
        assert (run.state, run.external, run.step) == (State.COMPLETED, True, 2048)
        tracked = run_id != "example-2"
        assert bool(list(Path(run.folder).glob("tb/events.out.tfevents.*"))) == tracked
        assert bool(list(Path(run.folder).glob("wandb/offline-run-*"))) == tracked
    assert daemon.log().count("by=worker") == 3
