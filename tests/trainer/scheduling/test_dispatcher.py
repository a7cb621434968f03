"""The life of runs: pause, cancel, limits, retries, admission, delete."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from mosaic.contract.errors import MoveError, RefusedError, UnknownRunError
from mosaic.trainer.states import State


@pytest.fixture
def daemon(standing: Any) -> Any:
    """One for all of them."""
    return standing


def test_pause_and_continue_are_what_the_worker_says(daemon: Any) -> None:
    run = daemon.submit({"episodes": 100_000, "pause": 0.02})
    with pytest.raises(MoveError, match="only a run that is PAUSED can continue"):
        daemon.client.continue_run(run.run_id)
    daemon.until_state(run.run_id, State.EXECUTING)
    assert daemon.client.pause_run(run.run_id).asked == "pause"
    paused = daemon.until_state(run.run_id, State.PAUSED)
    assert paused.asked == ""
    daemon.client.pause_run(run.run_id)  # once more is no mistake
    daemon.client.continue_run(run.run_id)
    daemon.until_state(run.run_id, State.EXECUTING)
    daemon.client.pause_run(run.run_id)
    daemon.until_state(run.run_id, State.PAUSED)
    daemon.client.cancel_run(run.run_id)
    ended = daemon.until_state(run.run_id, State.CANCELLED)
    kinds = [event.event for event in daemon.events(run.run_id) if event.event != "episode"]
    assert kinds == ["run_started", "paused", "continued", "paused", "run_failed"]
    assert ended.reason == "cancelled"


def test_a_worker_that_knows_no_pause_is_stopped_by_the_daemon(daemon: Any, until: Any) -> None:
    run = daemon.submit({"episodes": 100_000, "pause": 0.02, "foreign": True})
    pid = daemon.until_state(run.run_id, State.EXECUTING).pid
    daemon.client.pause_run(run.run_id)
    daemon.until_state(run.run_id, State.PAUSED)
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "the process to stand still")
    daemon.client.continue_run(run.run_id)
    daemon.until_state(run.run_id, State.EXECUTING)
    until(lambda: psutil.Process(pid).status() != psutil.STATUS_STOPPED, "the process to go on")
    daemon.client.cancel_run(run.run_id)
    daemon.until_state(run.run_id, State.CANCELLED)


def test_cancel_ends_the_whole_tree_soon_after_the_grace_period(daemon: Any, lives: Any) -> None:
    run = daemon.submit({"episodes": 100_000, "pause": 0.05, "child": True, "stubborn": True, "grace_seconds": 1})
    pid = daemon.until_state(run.run_id, State.EXECUTING).pid
    tree = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    assert len(tree) == 2
    daemon.client.cancel_run(run.run_id)
    ended = daemon.until_state(run.run_id, State.CANCELLED)
    assert not any(map(lives, tree)) and ended.signal == "SIGKILL"
    assert [line for line in daemon.log().splitlines() if "run.killed" in line and run.run_id in line]


def test_a_second_cancel_may_hurry(daemon: Any, lives: Any) -> None:
    run = daemon.submit({"episodes": 100_000, "pause": 0.05, "stubborn": True, "grace_seconds": 3600})
    pid = daemon.until_state(run.run_id, State.EXECUTING).pid
    daemon.client.cancel_run(run.run_id)
    time.sleep(0.5)
    assert lives(pid)
    daemon.client.cancel_run(run.run_id, 0)
    daemon.until_state(run.run_id, State.CANCELLED)
    assert not lives(pid)
    daemon.client.cancel_run(run.run_id)  # it is cancelled already


def test_a_cancel_outlives_the_daemon_that_took_it(daemon: Any, lives: Any) -> None:
    run = daemon.submit({"episodes": 100_000, "pause": 0.05, "stubborn": True, "grace_seconds": 1})
    pid = daemon.until_state(run.run_id, State.EXECUTING).pid
    daemon.client.cancel_run(run.run_id)
    daemon.kill()
    daemon.start()
    daemon.until_state(run.run_id, State.CANCELLED)
    assert not lives(pid)


def test_a_queued_run_is_cancelled_at_once_and_never_starts(daemon: Any) -> None:
    busy = daemon.submit({"episodes": 100_000, "pause": 0.05}, resources={"cpus": 8})
    daemon.until_state(busy.run_id, State.EXECUTING)
    first, second = daemon.submit({"episodes": 1}), daemon.submit({"episodes": 1})
    assert daemon.client.get_run(second.run_id).queue_position == 1
    assert daemon.client.cancel_run(first.run_id).state == State.CANCELLED
    assert daemon.client.get_run(second.run_id).queue_position == 0
    with pytest.raises(MoveError, match="only an ended run"):
        daemon.client.delete_run(second.run_id)
    daemon.client.cancel_run(busy.run_id)
    assert daemon.client.wait_run(second.run_id, 180).state == State.COMPLETED
    assert not daemon.paths(first.run_id).events.exists()


def test_higher_priority_starts_first(daemon: Any) -> None:
    busy = daemon.submit({"episodes": 100_000, "pause": 0.05}, resources={"cpus": 8})
    daemon.until_state(busy.run_id, State.EXECUTING)
    payload = {"algo": "tiny", "env_id": "x", "total_timesteps": 1, "extras": {"episodes": 2}}
    low = daemon.client.submit_run({"metadata": {"worker": {"config": payload}}, "resources": {"cpus": 8}})
    high = daemon.client.submit_run({"metadata": {"worker": {"config": payload}}, "resources": {"cpus": 8}}, priority=5)
    daemon.client.cancel_run(busy.run_id)
    ended = [daemon.client.wait_run(run.run_id, 180) for run in (low, high)]
    assert ended[1].started_at < ended[0].started_at


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [({"max_steps": 5}, "max_steps 5 reached"), ({"max_duration_seconds": 1.0}, "max_duration_seconds 1 reached")],
)
def test_limits_end_a_run(daemon: Any, schedule: dict[str, Any], reason: str) -> None:
    run = daemon.submit({"episodes": 100_000, "pause": 0.05, "max_restarts": 3}, schedule=schedule)
    ended = daemon.until_state(run.run_id, State.CANCELLED)
    assert ended.reason == reason and ended.attempt == 1


def test_a_failed_run_resumes_from_its_newest_checkpoint_as_often_as_allowed(daemon: Any) -> None:
    run = daemon.submit({"episodes": 20, "checkpoints": True, "crash_at": 15}, retry={"max_restarts": 1})
    ended = daemon.client.wait_run(run.run_id, 180)
    assert (ended.state, ended.attempt, ended.restarts) == (State.COMPLETED, 2, 1)
    (curve,) = daemon.client.get_metrics(run.run_id, ["charts/episodic_return"])
    assert curve.steps.tolist() == list(range(1, 21)), "rows after the checkpoint count once"
    found = daemon.paths(run.run_id).configs_folder.glob(f"worker-{run.run_id}-*.json")
    configs = sorted(found, key=lambda path: int(path.stem.rpartition("-")[2]))
    extras = json.loads(configs[-1].read_text())["extras"]
    assert len(configs) == 2 and extras["mode"] == "resume_training"
    assert ended.episodes == 20


def test_a_failed_run_without_a_checkpoint_starts_over(daemon: Any) -> None:
    run = daemon.submit({"episodes": 10, "crash_at": 5, "max_restarts": 1})
    ended = daemon.client.wait_run(run.run_id, 180)
    assert (ended.state, ended.attempt) == (State.COMPLETED, 2)
    (curve,) = daemon.client.get_metrics(run.run_id, ["charts/episodic_return"])
    assert curve.steps.tolist() == list(range(1, 11))


def test_exit_75_requeues_without_using_up_a_restart(daemon: Any) -> None:
    run = daemon.submit({"episodes": 10, "checkpoints": True, "crash_at": 7, "crash_code": 75})
    ended = daemon.client.wait_run(run.run_id, 180)
    assert (ended.state, ended.attempt, ended.restarts) == (State.COMPLETED, 2, 0)
    told = [line for line in daemon.log().splitlines() if "asked to be started again" in line]
    assert [line for line in told if run.run_id in line]


def test_restarts_are_used_up(daemon: Any) -> None:
    run = daemon.submit({"episodes": 2, "exit": 9, "max_restarts": 1})
    ended = daemon.client.wait_run(run.run_id, 180)
    assert (ended.state, ended.attempt, ended.restarts, ended.exit_code) == (State.FAILED, 2, 1, 9)


def test_killing_worker_and_daemon_together_leaves_the_truth(daemon: Any, lives: Any, tmp_path: Path) -> None:
    gate = {"gate": str(tmp_path / "gate"), "gate_at": 40}
    run = daemon.submit({"episodes": 60, "checkpoints": True, "max_restarts": 1, "child": True, **gate})
    pid = daemon.until_state(run.run_id, State.EXECUTING).pid
    tree = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    daemon.kill()
    os.kill(pid, signal.SIGKILL)
    (tmp_path / "gate").touch()
    daemon.start()
    ended = daemon.client.wait_run(run.run_id, 180)
    assert (ended.state, ended.attempt) == (State.COMPLETED, 2)
    assert not any(map(lives, tree)), "what a dead worker left is ended"
    (curve,) = daemon.client.get_metrics(run.run_id, ["charts/episodic_return"])
    assert curve.steps.tolist() == list(range(1, 61))


def test_a_gpu_that_is_not_there_is_refused_or_replaced_by_the_cpu(daemon: Any) -> None:
    if daemon.client.health()["gpus"]:
        pytest.skip("this machine has a GPU")
    with pytest.raises(RefusedError, match=r"resources\.gpus: 1 asked for, 0 on this machine"):
        daemon.submit({}, resources={"gpus": {"requested": 1, "mandatory": True}})
    run = daemon.submit({"episodes": 1}, resources={"gpus": {"requested": 1}})
    assert "trains on the CPU" in run.warnings[0]
    assert daemon.client.wait_run(run.run_id, 180).state == State.COMPLETED
    with pytest.raises(RefusedError, match="this daemon has 8 slots"):
        daemon.submit({}, resources={"cpus": 9})


def test_an_evaluation_starts_beside_trainings_that_hold_every_slot(daemon: Any) -> None:
    daemon.stop()
    daemon.start("--slots", "1", "--eval-slots", "1")
    holds = daemon.submit({"episodes": 100_000, "pause": 0.05})
    daemon.until_state(holds.run_id, State.EXECUTING)
    waits = daemon.submit({"episodes": 1})
    evaluation = daemon.submit({"episodes": 2, "mode": "policy_eval"})
    assert daemon.client.wait_run(evaluation.run_id, 180).state == State.COMPLETED
    assert daemon.client.get_run(waits.run_id).state == State.INIT
    assert daemon.client.health()["cpu_slots_free"] == 0
    daemon.client.cancel_run(holds.run_id)
    assert daemon.client.wait_run(waits.run_id, 180).state == State.COMPLETED


def test_deleting_an_ended_run_removes_folder_rows_and_configs(daemon: Any) -> None:
    run = daemon.submit({"episodes": 2})
    daemon.client.wait_run(run.run_id, 180)
    daemon.client.delete_run(run.run_id)
    paths = daemon.paths(run.run_id)
    assert not paths.folder.exists() and not list(paths.configs_folder.glob(f"*{run.run_id}*"))
    for verb in (daemon.client.get_run, daemon.client.delete_run, daemon.client.get_metrics):
        with pytest.raises(UnknownRunError):
            verb(run.run_id)
    assert daemon.client.list_runs(text=run.run_id).total == 0


def test_what_a_run_was_told_not_to_keep_is_removed_once_it_has_completed(daemon: Any, until: Any) -> None:
    artifacts = {"keep_checkpoints": False, "persist_logs": False, "output_prefix": "x"}
    run = daemon.submit({"episodes": 4, "checkpoints": True}, artifacts=artifacts)
    assert "output_prefix has no effect" in run.warnings[0]
    assert daemon.client.wait_run(run.run_id, 180).state == State.COMPLETED
    paths = daemon.paths(run.run_id)
    until(lambda: not paths.checkpoints.exists() and not list(paths.logs.glob("*.log")), "the files to go")
    assert paths.events.exists() and paths.metrics.exists()


def test_a_worker_that_only_exits_is_believed(daemon: Any) -> None:
    good, bad = daemon.submit({"silent": True}), daemon.submit({"silent": True, "exit": 4})
    assert daemon.client.wait_run(good.run_id, 180).state == State.COMPLETED
    ended = daemon.client.wait_run(bad.run_id, 180)
    assert (ended.state, ended.exit_code) == (State.FAILED, 4)


def test_a_script_runs_with_its_variables_and_ends_with_its_exit_code(daemon: Any) -> None:
    script = daemon.home / "phases.sh"
    script.write_text(
        'set -eu\ntest "$MOSAIC_SCRIPT" = 1\ntest -f "$MOSAIC_CONFIG_FILE"\ncd "$MOSAIC_HOME"\n'
        'python -m tiny_worker --config "$MOSAIC_CONFIG_FILE"\nexit ${1:-0}\n'
    )
    config = {"algo": "tiny", "env_id": "x", "total_timesteps": 1, "extras": {"episodes": 2}}
    worker = {"script": "phases.sh", "config": config}
    run = daemon.client.submit_run({"metadata": {"worker": worker}})
    assert run.mode == "script"
    ended = daemon.client.wait_run(run.run_id, 180)
    assert ended.state == State.FAILED  # the tiny worker wants a run id of its own: the script's -e ends it
    script.write_text("exit 0\n")
    run = daemon.client.submit_run({"metadata": {"worker": worker}})
    assert daemon.client.wait_run(run.run_id, 180).state == State.COMPLETED
    for outside in ("../../etc/profile", "/etc/profile", "missing.sh"):
        with pytest.raises(RefusedError, match="is not there; it lies in"):
            daemon.client.submit_run({"metadata": {"worker": {**worker, "script": outside}}})
