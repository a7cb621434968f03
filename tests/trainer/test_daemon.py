"""A daemon in a process of its own: whole runs, adoption after kill -9, tokens, cards."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import psutil
import pytest

from mosaic.contract.channel import daemon_card, read_card, token_file
from mosaic.contract.errors import AccessError, NoDaemonError
from mosaic.contract.frames import MAKING_SECONDS
from mosaic.trainer.daemon import spawn
from mosaic.trainer.rpc.client import Client
from mosaic.trainer.scheduling.dispatcher import SWEEP_SECONDS
from mosaic.trainer.states import State


def test_a_run_goes_from_the_queue_to_its_end_and_leaves_events_and_metrics(daemon: Any) -> None:
    run = daemon.submit({"episodes": 5, "pause": 0.05})
    assert (run.state, run.algo, run.seed, run.worker_type) == (State.INIT, "tiny", 1, "tiny")
    ended = daemon.client.wait_run(run.run_id, 180)
    assert (ended.state, ended.step, ended.episodes, ended.last_return) == (State.COMPLETED, 5, 5, 5.0)
    assert [event.seq for event in daemon.events(run.run_id)] == list(range(7))
    (curve,) = daemon.client.get_metrics(run.run_id, ["charts/episodic_return"])
    assert curve.values.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    moves = [(c.from_state, c.to_state) for c in _changes(daemon.client, run.run_id)]
    expected = [State.INIT, State.HANDSHAKE, State.READY, State.EXECUTING, State.COMPLETED]
    assert moves == list(zip([None, *expected[:-1]], expected, strict=True))
    assert [one.path for one in ended.artifacts] == ["runs/a/tiny.cleanrl_model"]


def _changes(client: Client, run_id: str) -> list[Any]:
    found = []
    for change in client.watch_runs(0, run_id=run_id):
        found.append(change)
        if change.to_state in (State.COMPLETED, State.FAILED, State.CANCELLED):
            return found
    return found


def test_files_of_a_run_are_where_the_contract_says(daemon: Any) -> None:
    run = daemon.submit({"episodes": 1}, environment={"PLAIN": "x"})
    daemon.client.wait_run(run.run_id, 180)
    paths = daemon.paths(run.run_id)
    payload = json.loads(paths.config_file.read_text())
    assert payload["metadata"]["worker"]["config"]["algo"] == "tiny" and payload["environment"] == {"PLAIN": "x"}
    (own,) = paths.configs_folder.glob("worker-*.json")
    assert own.name == f"worker-{run.run_id}-1.json" and json.loads(own.read_text())["run_id"] == run.run_id
    story = [line.split()[2] for line in daemon.log().splitlines() if run.run_id in line]
    assert story[:4] == ["run.submitted", "run.starting", "run.started", "worker.registered"]
    assert "run.completed" in story


def test_killing_the_daemon_stops_no_run_and_a_new_one_adopts_them(daemon: Any, lives: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    runs = [daemon.submit({"episodes": 60, "pause": 0.01, "gate": str(gate)}) for _ in range(5)]
    for run in runs:
        daemon.until_state(run.run_id, State.EXECUTING)
    pids = [daemon.client.get_run(run.run_id).pid for run in runs]
    daemon.kill()
    assert all(map(lives, pids))
    daemon.start()
    assert [daemon.client.get_run(run.run_id).pid for run in runs] == pids
    gate.touch()
    for run in runs:
        ended = daemon.client.wait_run(run.run_id, 180)
        assert (ended.state, ended.attempt, ended.episodes) == (State.COMPLETED, 1, 60)
        assert [event.seq for event in daemon.events(run.run_id)] == list(range(62))
        (curve,) = daemon.client.get_metrics(run.run_id, ["charts/episodic_return"])
        assert curve.values.tolist() == [float(step) for step in range(1, 61)]
    assert daemon.log().count("run.adopted") == 5


def test_a_run_that_ended_while_no_daemon_ran_is_settled_by_what_it_wrote(
    daemon: Any, lives: Any, until: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    good = daemon.submit({"episodes": 20, "gate": str(gate)})
    bad = daemon.submit({"episodes": 20, "gate": str(gate), "exit": 3})
    killed = daemon.submit({"episodes": 100_000, "pause": 0.05})
    pids = [daemon.until_state(run.run_id, State.EXECUTING).pid for run in (good, bad, killed)]
    daemon.kill()
    gate.touch()
    os.kill(pids[2], signal.SIGKILL)
    until(lambda: not any(map(lives, pids)), "the workers to end")
    daemon.start()
    assert daemon.client.wait_run(good.run_id, 180).state == State.COMPLETED
    ended = daemon.client.wait_run(bad.run_id, 180)
    assert (ended.state, ended.exit_code, ended.reason) == (State.FAILED, 3, "exit code 3: it was told to")
    ended = daemon.client.wait_run(killed.run_id, 180)
    assert (ended.state, ended.reason) == (State.FAILED, "its worker ended without a closing event")


def test_the_death_of_a_worker_fails_its_run_and_names_the_signal(daemon: Any, lives: Any) -> None:
    run = daemon.submit({"episodes": 100_000, "pause": 0.05, "child": True})
    pid = daemon.until_state(run.run_id, State.EXECUTING).pid
    children = [child.pid for child in psutil.Process(pid).children(recursive=True)]
    os.kill(pid, signal.SIGKILL)
    ended = daemon.until_state(run.run_id, State.FAILED)
    assert (ended.signal, ended.exit_code) == ("SIGKILL", -9) and ended.reason.startswith("SIGKILL")
    assert children and not any(map(lives, children))


def test_a_second_daemon_of_the_same_home_is_refused(daemon: Any) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "mosaic.trainer.daemon", "--listen", "127.0.0.1:0"],
        env=daemon.environment,
        cwd=daemon.home,
        capture_output=True,
        timeout=180,
    )
    assert second.returncode == 1
    assert b"already serves" in second.stderr and second.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "0.0.0.0:0"], "--tls-cert and --tls-key, or --insecure-listen"),
        (["--listen", "127.0.0.1"], "--listen takes HOST:PORT"),
        (["--listen", "127.0.0.1:70000"], "--listen takes HOST:PORT"),
        (["--eval-slots", "0"], "--eval-slots takes a whole number from 1"),
        (["--slots", "-1"], "--slots takes a number above 0"),
        (["--tls-cert", "a.pem"], "--tls-cert and --tls-key go together"),
    ],
)
def test_settings_that_would_expose_or_disable_a_daemon_are_refused(
    environment: dict[str, str], home: Path, arguments: list[str], message: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mosaic.trainer.daemon", *arguments], env=environment, cwd=home, capture_output=True
    )
    assert done.returncode == 2 and message in done.stderr.decode()


def test_every_call_needs_the_token_which_only_its_owner_can_read(daemon: Any) -> None:
    path = token_file(daemon.home)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(daemon_card(daemon.home).stat().st_mode) == 0o600
    with Client(daemon.client.address.target, token="wrong") as stranger:
        for call in (
            stranger.health,
            stranger.list_runs,
            lambda: stranger.get_run("x"),
            lambda: stranger.submit_run({}),
            lambda: next(stranger.watch_runs(0)),
            lambda: next(stranger.read_events("x")),
        ):
            with pytest.raises(AccessError, match="token is missing or wrong"):
                call()


def test_daemons_that_are_started_at_the_same_moment_become_one(
    environment: dict[str, str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with futures.ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: spawn(home, listen="127.0.0.1:0"), range(3)))
    pid = read_card(daemon_card(home))["pid"]
    try:
        assert len(set(found)) == 1
        with Client(home=home) as client:
            assert client.health()["pid"] == pid
    finally:
        os.kill(pid, signal.SIGTERM)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def test_clients_find_the_daemon_by_variables_by_home_and_by_the_user_card(
    daemon: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("MOSAIC_HOME", "MOSAIC_TARGET", "MOSAIC_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nothing"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoDaemonError):
        Client()
    monkeypatch.setenv("XDG_STATE_HOME", daemon.environment["XDG_STATE_HOME"])
    assert Client().health()["home"] == str(daemon.home)
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))  # another home's daemon is not what was meant
    with pytest.raises(NoDaemonError, match="start one with: mosaic up"):
        Client()
    monkeypatch.delenv("MOSAIC_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nothing"))
    monkeypatch.chdir(daemon.home)
    assert Client().health()["home"] == str(daemon.home)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOSAIC_TARGET", daemon.client.address.target)
    monkeypatch.setenv("MOSAIC_TOKEN", daemon.client.address.token)
    assert Client().health()["home"] == str(daemon.home)


def test_a_daemon_that_was_killed_is_no_daemon(daemon: Any) -> None:
    address = daemon.client.address
    daemon.kill()
    with pytest.raises(NoDaemonError):
        Client(home=daemon.home)
    with pytest.raises(NoDaemonError, match="mosaic up"):
        Client(address.target, token=address.token).health()


def test_stopping_the_daemon_leaves_runs_alive_and_removes_its_cards(daemon: Any, lives: Callable[[int], bool]) -> None:
    run = daemon.submit({"episodes": 100_000, "pause": 0.05})
    pid = daemon.until_state(run.run_id, State.EXECUTING).pid
    daemon.stop()
    assert lives(pid) and not daemon_card(daemon.home).exists()
    daemon.start()
    daemon.client.cancel_run(run.run_id, 5)
    daemon.until_state(run.run_id, State.CANCELLED)
    assert not lives(pid)


def test_a_homes_var_is_closed_to_others_when_its_daemon_starts(daemon: Any) -> None:
    daemon.stop()
    (daemon.home / "var").chmod(0o755)
    daemon.start()
    assert stat.S_IMODE((daemon.home / "var").stat().st_mode) == 0o700


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_stopped_before_its_first_event_is_started_again(daemon: Any, number: int) -> None:
    run = daemon.submit({"silent": True, "foreign": True, "pause": 600}, retry={"max_restarts": 3})
    pid = daemon.until_state(run.run_id, State.HANDSHAKE).pid
    while not pid:
        pid = daemon.client.get_run(run.run_id).pid
    os.kill(pid, number)
    again = daemon.until_state(run.run_id, State.INIT)
    assert (again.attempt, again.restarts) == (2, 0) and "while it started" in again.reason
    daemon.client.cancel_run(run.run_id, 0.0)
    assert daemon.client.wait_run(run.run_id, 180).state == State.CANCELLED


def test_a_run_that_is_cancelled_while_its_worker_starts_stays_cancelled(daemon: Any) -> None:
    run = daemon.client.train("ppo", "CartPole-v1", seed=1, total_timesteps=10_000_000)
    daemon.until_state(run.run_id, State.HANDSHAKE)
    daemon.client.cancel_run(run.run_id)
    ended = daemon.client.wait_run(run.run_id, 180)
    assert (ended.state, ended.attempt) == (State.CANCELLED, 1)


def test_a_daemon_that_is_stopped_while_it_starts_leaves_no_card(environment: dict[str, str], home: Path) -> None:
    command = [sys.executable, "-m", "mosaic.trainer.daemon", "--listen", "127.0.0.1:0"]
    for seconds in (0.2, 0.5, 0.9):
        process = subprocess.Popen(command, env=environment, cwd=home, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=180)[1] == b"" and process.returncode in (0, 130)
        assert not daemon_card(home).exists()


def test_a_ring_outlives_its_dead_creator_by_seconds_whoever_that_was(daemon: Any, until: Any) -> None:
    assert SWEEP_SECONDS + MAKING_SECONDS <= 10
    write = "os.write(1, FastLaneWriter.create('by-hand').name.encode())"
    code = f"import os; from mosaic.contract.ring import FastLaneWriter; {write}; os.abort()"
    made = subprocess.run([sys.executable, "-c", code], env=daemon.environment, capture_output=True, text=True)
    ring = Path("/dev/shm") / made.stdout
    assert made.stdout.startswith("fl-")
    until(lambda: not ring.exists(), "the daemon's sweep", 60)


def test_a_card_that_cannot_be_written_is_one_line(environment: dict[str, str], home: Path) -> None:
    daemon_card(home).mkdir(parents=True)
    command = [sys.executable, "-m", "mosaic.trainer.daemon", "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=180)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "daemon.json: Is a directory" in done.stderr
