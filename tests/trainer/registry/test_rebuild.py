"""Rebuild: rows, states and curves come back from configs and folders; what is odd is skipped with the reason."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract.errors import UnavailableError
from mosaic.contract.events import EventLog
from mosaic.contract.happenings import Happenings
from mosaic.contract.metrics import encode_row
from mosaic.contract.paths import RunPaths
from mosaic.trainer.registry.folders import advice, unlisted
from mosaic.trainer.registry.rebuild import NEVER_STARTED, UNFINISHED, Rebuild
from mosaic.trainer.registry.registry import NewRun, Registry
from mosaic.trainer.run import Run
from mosaic.trainer.scheduling.gpu import Machine
from mosaic.trainer.scheduling.submission import Submissions, Vault
from mosaic.trainer.states import State


class Place:
    """A home of folders, and rebuilds of its registry."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.registry = Registry(home)
        self.happenings = Happenings(home / "var/logs/trainer_daemon.log")
        self.lines: list[str] = []

    def folder(self, run_id: str, *events: tuple[str, dict[str, Any]], rows: int = 0) -> RunPaths:
        paths = RunPaths(run_id, self.home)
        paths.create()
        if events:
            with EventLog(paths.events, run_id) as log:
                for kind, payload in events:
                    log.append(kind, payload)
        with paths.metrics.open("ab") as file:
            for step in range(rows):
                file.write(encode_row(step, 1e9 + step, {"charts/episodic_return": float(step), "charts/SPS": 50.0}))
        return paths

    def config(self, run_id: str, **more: Any) -> None:
        paths = RunPaths(run_id, self.home)
        paths.configs_folder.mkdir(parents=True, exist_ok=True)
        config = {"run_id": run_id, "algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100, "seed": 3}
        paths.config_file.write_text(json.dumps({"metadata": {"worker": {"config": config}}, **more}))

    def rebuild(self, **more: Any) -> Any:
        submissions = Submissions(self.registry, Vault(), self.happenings, Machine(), lambda: ({}, []))
        return Rebuild(self.registry, submissions, self.happenings, **more).run(self.lines.append)

    def run(self, run_id: str) -> Run:
        return self.registry.get_run(run_id)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    one = Place(tmp_path)
    yield one
    one.registry.close()


STARTED = ("run_started", {"algo": "dqn", "env_id": "Acrobot-v1", "seed": 9, "total_timesteps": 50, "mode": "train"})
COMPLETED = ("run_completed", {"manifest": {"artifacts": {"policy": "runs/a/x.cleanrl_model"}}})


def test_a_run_with_its_accepted_config_comes_back_as_typed(place: Place) -> None:
    place.folder("a", STARTED, ("warning", {"message": "slow"}), ("checkpoint", {"step": 4, "path": "x"}), COMPLETED)
    with place.registry.paths("a").metrics.open("ab") as file:
        for step in range(6):
            file.write(encode_row(step, 1e9 + step, {"charts/episodic_return": float(step)}))
    place.config("a", run_name="first", metadata={"ui": {"group": "night"}, "worker": {"config": {"algo": "ppo",
        "env_id": "CartPole-v1", "seed": 3, "total_timesteps": 100, "extras": {"max_restarts": 2}}}})  # fmt: skip
    found = place.rebuild()
    assert (found.rebuilt, found.skipped, found.known) == (["a"], {}, 0)
    run = place.run("a")
    assert (run.state, run.algo, run.env_id, run.seed, run.total_timesteps) == (
        "COMPLETED",
        "ppo",
        "CartPole-v1",
        3,
        100,
    )
    assert (run.run_name, run.group, run.max_restarts, run.mode, run.imported) == ("first", "night", 2, "train", False)
    assert (run.step, run.episodes, run.mean_return, run.warnings) == (5, 6, 2.5, ("slow",))
    assert [one.kind for one in run.artifacts] == ["policy"] and run.payload["metadata"]["ui"]["group"] == "night"
    assert run.created_at > 0 and run.started_at > 0 and run.ended_at >= run.started_at
    (curve,) = place.registry.get_metrics("a")
    assert curve.values.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert [event.seq for event in place.registry.read_events("a")] == [0, 1, 2, 3]
    assert place.lines == ["rebuilt a (ppo on CartPole-v1, COMPLETED)"]


def test_a_run_without_an_accepted_config_is_imported_as_its_events_name_it(place: Place) -> None:
    place.folder("a", STARTED, COMPLETED, rows=3)
    place.rebuild()
    run = place.run("a")
    assert (run.imported, run.algo, run.env_id, run.seed, run.total_timesteps) == (True, "dqn", "Acrobot-v1", 9, 50)
    assert (run.state, run.step, run.sps) == ("COMPLETED", 2, 50.0) and run.payload == {}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"metadata": {"worker": {"config": {"seed": 1.5}}}}', '{"metadata": {"worker": [1]}}']
)
def test_a_run_whose_accepted_config_cannot_be_read_is_imported_with_a_warning(place: Place, text: str) -> None:
    place.folder("a", STARTED, COMPLETED)
    place.config("a")
    place.registry.paths("a").config_file.write_text(text)
    place.rebuild()
    run = place.run("a")
    assert run.imported and run.warnings[0].startswith("the accepted config cannot be read: ")


@pytest.mark.parametrize(
    ("events", "state", "reason"),
    [
        ([STARTED], "FAILED", "its worker ended without a closing event"),
        ([STARTED, ("run_failed", {"exit_code": 3, "signal": None, "hint": "it broke"})], "FAILED", "exit code 3: it "),
        ([STARTED, ("run_failed", {"exit_code": 75})], "FAILED", "its worker was told to stop and asked to be started"),
        ([STARTED, ("run_failed", {"exit_code": 75}), STARTED], "FAILED", "its worker ended without a closing event"),
        ([STARTED, ("run_failed", {"exit_code": 1}), STARTED, COMPLETED], "COMPLETED", ""),
    ],
)  # fmt: skip
def test_the_state_is_that_of_the_newest_attempts_closing_event(
    place: Place, events: list[Any], state: str, reason: str
) -> None:
    place.folder("a", *events)
    place.config("a", retry={"max_restarts": 5})
    place.rebuild()
    run = place.run("a")
    assert run.state == state and run.reason.startswith(reason) and run.queue_position == -1


def test_a_run_that_never_started_and_a_refused_one_have_that_reason(place: Place) -> None:
    place.folder("queued")
    place.config("queued")
    refused = place.folder("refused")
    place.config("refused")
    (refused.folder / "refused.txt").write_text("unknown algo 'pppo'\n")
    place.rebuild()
    assert (place.run("queued").state, place.run("queued").reason) == ("FAILED", NEVER_STARTED)
    assert place.run("refused").reason == "refused: unknown algo 'pppo'"


def test_rows_that_are_there_stay_as_they_are_and_those_that_cannot_be_read_are_made_anew(place: Place) -> None:
    for run_id in ("kept", "bad"):
        place.registry.add_run(NewRun(run_id, {"metadata": {}}, columns={"algo": "c51"}))
        place.folder(run_id, STARTED, COMPLETED)
    with place.registry.database.write() as connection:
        connection.execute("UPDATE runs SET seed = 1.5, attempt = 1 << 40 WHERE run_id = 'bad'")
    assert place.run("bad").state == State.BROKEN
    found = place.rebuild()
    assert (found.rebuilt, found.known) == (["bad"], 1)
    assert (place.run("kept").state, place.run("kept").algo) == ("INIT", "c51")
    assert (place.run("bad").state, place.run("bad").algo) == ("COMPLETED", "dqn")


def test_a_rebuild_that_was_killed_is_done_again(place: Place) -> None:
    place.folder("a", STARTED, COMPLETED, rows=4)
    place.registry.add_run(NewRun("a", {}))
    with place.registry.database.write() as connection:
        connection.execute("UPDATE runs SET state = 'FAILED', reason = ?", (UNFINISHED,))
    assert place.rebuild().rebuilt == ["a"] and place.run("a").step == 3
    assert place.rebuild().known == 1


def test_odd_folders_are_skipped_with_the_reason_and_cost_no_other_its_row(place: Place) -> None:
    place.folder("good", STARTED, COMPLETED)
    top = place.home / "var/trainer/runs"
    (top / "a b").mkdir()
    (top / os.fsdecode(b"\xff")).mkdir()
    (top / "link").symlink_to(top / "good")
    (top / "file").write_text("")
    (top / "empty").mkdir()
    pipe = RunPaths("pipe", place.home)
    pipe.create()
    os.mkfifo(pipe.events)
    RunPaths("folder", place.home).metrics.mkdir(parents=True)
    zero = RunPaths("zero", place.home)
    zero.create()
    zero.events.symlink_to("/dev/zero")
    garbage = place.folder("garbage")
    garbage.events.write_bytes(os.urandom(10_000))
    garbage.metrics.write_bytes(b'{"step": 1e999}\n{"step": 1}\n' + os.urandom(10_000) + b"\n")
    found = place.rebuild()
    assert sorted(found.rebuilt) == ["garbage", "good"] and place.run("garbage").state == State.FAILED
    assert found.skipped == {
        "a b": "its name is not a run id",
        "\ufffd": "its name is not a run id",
        "link": "a symbolic link, which is not followed",
        "file": "no folder",
        "empty": "it holds neither events nor metrics, and no config of its id is kept",
        "pipe": "worker.jsonl is not a plain file",
        "folder": "metrics.jsonl is not a plain file",
        "zero": "worker.jsonl is not a plain file",
    }
    assert not [line for line in place.lines if "\n" in line]


def test_rows_are_in_the_order_of_submission(place: Place) -> None:
    newer, older = "01JCV4M0Z1S2R4Q8E5W9T7Y6A3", "01JBV4M0Z1S2R4Q8E5W9T7Y6Z3"
    for run_id in (newer, older):
        place.folder(run_id, STARTED, COMPLETED)
    place.rebuild()
    assert [run.run_id for run in place.registry.list_runs().runs] == [newer, older]
    assert 1.6e9 < place.run(older).created_at < place.run(newer).created_at < 1.9e9


def test_a_folder_whose_submission_is_under_way_is_left_to_it(place: Place) -> None:
    place.folder("a")
    place.config("a")
    assert place.rebuild(settling=3600.0).skipped["a"].startswith("it was submitted less than")
    assert place.rebuild().rebuilt == ["a"]


def test_a_worker_started_by_hand_that_lives_is_adopted(place: Place) -> None:
    paths = place.folder("a", STARTED, rows=2)
    code = "import fcntl, os, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); "
    code += "f.write(str(os.getpid())); f.flush(); print('held', flush=True); input()"
    command = [sys.executable, "-c", code, str(paths.lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        place.rebuild()
        run = place.run("a")
        assert (run.state, run.pid, run.imported, run.external) == ("EXECUTING", process.pid, True, True)
        process.kill()


def test_folders_without_a_row_are_named_in_a_line(place: Place) -> None:
    for run_id in "abcde":
        place.folder(run_id, STARTED)
    place.registry.add_run(NewRun("a", {}))
    assert unlisted(place.home) == ["b", "c", "d", "e"]
    line = advice(unlisted(place.home))
    assert line.startswith("4 run folders have no row in the registry (b, c, d, …); ") and "mosaic rebuild" in line
    place.rebuild()
    assert unlisted(place.home) == [] and advice([]) == ""


# A daemon of its own


def test_a_database_deleted_under_a_daemon_is_noticed_and_comes_back_whole(daemon: Any, until: Any, lives: Any) -> None:
    gate = daemon.home / "gate"
    ended = daemon.client.wait_run(daemon.submit({"episodes": 3}).run_id, 180)
    live = daemon.submit({"episodes": 40, "gate": str(gate)})
    daemon.until_state(live.run_id, State.EXECUTING)
    path = daemon.home / "var/trainer/mosaic.db"
    for file in path.parent.glob("mosaic.db*"):
        file.unlink()
    trouble = until(lambda: daemon.client.health()["trouble"], "the trouble", 10.0)
    assert "mosaic.db was deleted while this daemon had it open" in trouble and "mosaic rebuild" in trouble
    with pytest.raises(UnavailableError, match=r"was deleted.*mosaic rebuild"):
        daemon.submit({"episodes": 1})
    assert not path.exists(), "nothing is written beside the file that is gone"
    until(lambda: "registry.unavailable" in daemon.log(), "the log's line")
    daemon.client.rebuild()
    until(lambda: not daemon.client.health()["trouble"], "the daemon to go on")
    assert daemon.client.get_run(ended.run_id).state == State.COMPLETED
    assert daemon.client.get_run(live.run_id).pid == live.pid or lives(daemon.client.get_run(live.run_id).pid)
    gate.touch()
    assert daemon.client.wait_run(live.run_id, 180).state == State.COMPLETED
    assert daemon.client.wait_run(daemon.submit({"episodes": 1}).run_id, 180).state == State.COMPLETED
    daemon.stop()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT COUNT(*) FROM runs").fetchone() == (3,)
    assert "Traceback" not in daemon.log()


def test_a_new_daemon_rebuilds_live_runs_and_ends_them_as_if_nothing_had_happened(daemon: Any, lives: Any) -> None:
    gate = daemon.home / "gate"
    going = daemon.submit({"episodes": 30, "gate": str(gate)})
    paused = daemon.submit({"episodes": 100_000, "pause": 0.02})
    dead = daemon.submit({"episodes": 100_000, "pause": 0.02})
    for run in (going, paused, dead):
        daemon.until_state(run.run_id, State.EXECUTING)
    daemon.client.pause_run(paused.run_id)
    pids = {run.run_id: daemon.until_state(run.run_id, state).pid for run, state in (
        (going, State.EXECUTING), (paused, State.PAUSED), (dead, State.EXECUTING))}  # fmt: skip
    daemon.kill()
    os.kill(pids[dead.run_id], signal.SIGKILL)
    for file in (daemon.home / "var/trainer").glob("mosaic.db*"):
        file.unlink()
    daemon.start()
    assert daemon.client.list_runs().total == 0
    assert "3 run folders have no row in the registry" in daemon.log() and "mosaic rebuild" in daemon.log()
    found = daemon.client.rebuild()
    assert found.rebuilt == [going.run_id, paused.run_id, dead.run_id] and found.skipped == {}
    assert daemon.client.get_run(paused.run_id).state == State.PAUSED
    assert daemon.client.get_run(going.run_id).pid == pids[going.run_id]
    lost = daemon.client.get_run(dead.run_id)
    assert (lost.state, lost.reason) == (State.FAILED, "its worker ended without a closing event")
    gate.touch()
    ended = daemon.client.wait_run(going.run_id, 180)
    assert (ended.state, ended.episodes, ended.attempt, ended.imported) == (State.COMPLETED, 30, 1, False)
    assert daemon.client.get_metrics(going.run_id, ["charts/episodic_return"])[0].total == 30
    daemon.client.cancel_run(paused.run_id)
    daemon.until_state(paused.run_id, State.CANCELLED)
    assert not lives(pids[paused.run_id])
    again = daemon.submit({"episodes": 1})
    daemon.client.wait_run(again.run_id, 180)
    (own,) = daemon.paths(again.run_id).configs_folder.glob(f"worker-{again.run_id}-*.json")
    assert own.name.endswith("-4.json"), "slots count up over the ones in use"


def mosaic(daemon: Any, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mosaic.cli", *words],
        env=daemon.environment,
        cwd=daemon.home,
        capture_output=True,
        text=True,
        timeout=180,
    )


@pytest.mark.parametrize("harm", ["truncated", "garbage", "tables", "empty", "gone", "wal"])
def test_a_home_whose_database_is_lost_or_damaged_comes_back_without_a_daemon(daemon: Any, harm: str) -> None:
    runs = [daemon.client.wait_run(daemon.submit({"episodes": 2}).run_id, 180) for _ in range(2)]
    path = daemon.home / "var/trainer/mosaic.db"
    if harm == "wal":
        daemon.kill()
        for end in ("-wal", "-shm"):
            path.with_name(path.name + end).unlink()
    else:
        daemon.stop()
    if harm == "truncated":
        os.truncate(path, path.stat().st_size // 2)
    elif harm == "garbage":
        path.write_bytes(b"no database at all" * 1000)
    elif harm == "tables":
        with sqlite3.connect(path) as connection:
            connection.execute("DROP TABLE runs")
    elif harm == "empty":
        path.write_bytes(b"")
    elif harm == "gone":
        path.unlink()
    damaged = harm in ("truncated", "garbage", "tables")
    examined = mosaic(daemon, "doctor")
    assert "mosaic rebuild" in examined.stdout
    started = mosaic(daemon, "daemon", "--listen", "127.0.0.1:0") if damaged else None
    if started is not None:
        assert started.returncode == 1 and started.stderr.count("\n") == 1, started.stderr
        assert "is damaged" in started.stderr and "mosaic rebuild" in started.stderr
        assert path.exists(), "only a rebuild sets the damaged file aside"
    done = mosaic(daemon, "rebuild")
    assert done.returncode == 0 and "2 rebuilt, 0 skipped, 0 had a row" in done.stdout, done.stderr
    assert all(f"rebuilt {run.run_id} (tiny on CartPole-v1, COMPLETED)" in done.stdout for run in runs)
    aside = [file for file in path.parent.glob("mosaic.db.damaged-*") if not file.name.endswith(("-wal", "-shm"))]
    assert len(aside) == int(damaged)
    assert "2 had a row" in mosaic(daemon, "rebuild").stdout
    daemon.start()
    assert [run.run_id for run in daemon.client.list_runs().runs] == [run.run_id for run in reversed(runs)]
    assert json.loads(mosaic(daemon, "rebuild", "--json").stdout) == {"rebuilt": [], "skipped": {}, "known": 2}
    assert "Traceback" not in daemon.log() + examined.stderr + done.stderr


def test_a_home_without_folders_has_nothing_to_rebuild(daemon: Any) -> None:
    daemon.stop()
    shutil.rmtree(daemon.home / "var")
    told = mosaic(daemon, "rebuild")
    assert told.returncode == 2 and told.stderr.count("\n") == 1 and "nothing to rebuild" in told.stderr
    assert not (daemon.home / "var").exists()


@pytest.mark.parametrize("harm", ["replaced", "overwritten"])
def test_a_database_that_is_spoiled_under_a_daemon_is_set_aside_or_taken_as_it_is(
    daemon: Any, until: Any, harm: str
) -> None:
    first = daemon.client.wait_run(daemon.submit({"episodes": 2}).run_id, 180)
    path = daemon.home / "var/trainer/mosaic.db"
    if harm == "replaced":  # by a backup that knows nothing of the second run
        with sqlite3.connect(path) as source, sqlite3.connect(path.with_suffix(".backup")) as backup:
            source.backup(backup)
        second = daemon.client.wait_run(daemon.submit({"episodes": 2}).run_id, 180)
        os.replace(path.with_suffix(".backup"), path)
        for end in ("-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
    else:
        second = daemon.client.wait_run(daemon.submit({"episodes": 2}).run_id, 180)
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with path.open("r+b") as file:
            file.write(b"\xaa" * path.stat().st_size)
    trouble = until(lambda: daemon.client.health()["trouble"], "the trouble", 10.0)
    assert "mosaic rebuild" in trouble and "\n" not in trouble
    found = daemon.client.rebuild()
    assert found.rebuilt == ([second.run_id] if harm == "replaced" else [first.run_id, second.run_id])
    until(lambda: not daemon.client.health()["trouble"], "the daemon to go on")
    assert [run.run_id for run in daemon.client.list_runs().runs] == [second.run_id, first.run_id]
    assert daemon.client.wait_run(daemon.submit({"episodes": 1}).run_id, 180).state == State.COMPLETED
    assert "Traceback" not in daemon.log()
