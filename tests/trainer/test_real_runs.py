"""Real PPO runs under a real daemon: killed at each of their processes, resumed, and equal to an undisturbed one."""

import itertools
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from mosaic.contract.events import replay
from mosaic.contract.metrics import comparable
from mosaic.contract.ring import run_digest
from mosaic.trainer.states import State

STEPS, EVERY = 10_240, 2_048  # long enough that one who sees the first checkpoint still finds it at work
PARAMS: dict[str, Any] = {
    "num_steps": 64,
    "num_envs": 4,
    "checkpoint_every": EVERY,
    "checkpoint_episodes": 0,
    "save_model": True,
}


def train(daemon: Any, **more: Any) -> Any:
    return daemon.client.train("ppo", "CartPole-v1", seed=3, total_timesteps=STEPS, extras=more, **PARAMS)


def saved_policy(folder: Path) -> dict[str, Any]:
    import torch

    newest = max(folder.glob("runs/*/ppo.cleanrl_model"), key=lambda path: path.stat().st_mtime_ns)
    return dict(torch.load(newest, weights_only=True))


def pids_after_checkpoint(daemon: Any, run: Any, until: Any) -> tuple[int, int]:
    """The worker's and the algorithm's pid, once there is a checkpoint to go back to."""
    paths = daemon.paths(run.run_id)
    started = until(lambda: next((e for e in replay(paths.events) if e.event == "run_started"), None), "a start", 180)
    end = time.monotonic() + 180
    while not (paths.checkpoints / str(EVERY) / "state.json").exists():
        assert time.monotonic() < end
        time.sleep(0.002)
    return started.payload["pid"], started.payload["algorithm_pid"]


def test_runs_whose_processes_were_killed_end_with_the_same_weights(daemon: Any, until: Any, lives: Any) -> None:
    import torch

    undisturbed = train(daemon).wait(300)
    assert undisturbed.info.state == State.COMPLETED, undisturbed.info.reason
    expected = comparable(daemon.paths(undisturbed.run_id).metrics)
    for kills in (("worker",), ("algorithm",), ("daemon", "worker", "algorithm")):
        run = train(daemon, max_restarts=1)
        worker, algorithm = pids_after_checkpoint(daemon, run, until)
        if "daemon" in kills:
            daemon.kill()
        for name, pid in (("worker", worker), ("algorithm", algorithm)):
            if name in kills and lives(pid):
                os.kill(pid, signal.SIGKILL)
        if "daemon" in kills:
            daemon.start()
        ended = daemon.client.wait_run(run.run_id, 300)
        assert (ended.state, ended.attempt) == (State.COMPLETED, 2), (kills, ended.reason, daemon.log()[-3000:])
        assert not lives(worker) and not lives(algorithm)
        assert not list(Path("/dev/shm").glob(f"fl-{run_digest(run.run_id)}-*")), "its frame ring is gone"
        assert comparable(daemon.paths(run.run_id).metrics) == expected, kills
        ours, theirs = saved_policy(Path(ended.folder)), saved_policy(Path(undisturbed.info.folder))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs), kills
        (curve,) = daemon.client.get_metrics(run.run_id, ["charts/SPS"])
        assert (curve.steps[1:] > curve.steps[:-1]).all(), "no row counts twice"


def test_numbers_reach_the_registry_while_the_run_trains_and_cancel_saves_a_checkpoint(daemon: Any, until: Any) -> None:
    extras = {"telemetry": "steps", "grace_seconds": 60}
    params = {"num_steps": 64, "checkpoint_every": 0}  # told to stop, it saves at once
    run = daemon.client.train("ppo", "CartPole-v1", seed=1, total_timesteps=10_000_000, extras=extras, **params)
    executing = until(lambda: (info := run.refresh()).step > 1000 and info, "steps", 180)
    assert executing.state == State.EXECUTING and executing.sps > 0 and executing.eta_seconds > 0
    assert {"losses/value_loss", "charts/episodic_return"} <= set(executing.last_values)
    newest = daemon.client.get_metrics(run.run_id, ["charts/episodic_return"])[0].times[-1]
    assert time.time() - newest < 30, "generous: the machine may be busy"
    run.cancel()
    ended = run.wait(180).info
    assert (ended.state, ended.reason) == (State.CANCELLED, "cancelled")
    assert [one.kind for one in ended.artifacts] == ["checkpoint"] and ended.exit_code == 75
    steps = [step for event in run.events() if event.event == "step" for step in event.payload["steps"]]
    numbers = [step[0] for step in steps]
    assert numbers == sorted(numbers) and set(numbers[:8]) == {4, 8} and {step[1] for step in steps} == {0, 1, 2, 3}
    episodes = sum(event.event == "episode" for event in run.events())
    assert sum(step[3] for step in steps) >= episodes > 0


def test_a_repeated_evaluation_that_is_cancelled_keeps_summary_manifest_and_videos(daemon: Any, until: Any) -> None:
    trained = daemon.client.submit_run(
        {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 512, "extras": {"save_model": True}}
    )
    folder = Path(daemon.client.wait_run(trained.run_id, 180).folder)
    policy = next(folder.rglob("ppo.cleanrl_model"))
    extras = {"mode": "policy_eval", "policy_path": str(policy), "eval_batch_size": 2, "eval_repeat": True}
    config = {"algo": "ppo", "env_id": "CartPole-v1", "extras": {**extras, "eval_capture_video": True}}
    run = daemon.client.submit_run(config)
    until(lambda: daemon.client.get_run(run.run_id).episodes >= 4, "two batches", 180)
    daemon.client.cancel_run(run.run_id)
    ended = daemon.client.wait_run(run.run_id, 180)
    assert (ended.state, ended.reason) == ("CANCELLED", "cancelled")
    folder = Path(ended.folder)
    assert json.loads((folder / "eval_summary.json").read_text())["episodes"] == 2
    assert json.loads((folder / "analytics.json").read_text())["summary"]["evaluation"]["episodes"] >= 4
    videos = [one.path for one in daemon.client.get_run(run.run_id).artifacts if one.kind == "video"]
    assert videos and all((folder / path).exists() for path in videos)


def test_a_run_reports_when_it_writes_a_checkpoint_or_plays_its_closing_evaluation(daemon: Any) -> None:
    run = train(daemon, telemetry="off").wait(300)
    assert run.info.state == State.COMPLETED, run.info.reason
    told = [e for e in run.events() if e.event == "checkpoint" or (e.event == "heartbeat" and "doing" in e.payload)]
    kinds = [event.payload.get("doing", event.event) for event in told]
    writes = kinds.count("checkpoint") // 2
    assert writes >= STEPS // EVERY
    assert sorted(kinds) == ["checkpoint"] * 2 * writes + ["closing evaluation"]
    for event, after in itertools.pairwise(told):
        if event.payload.get("doing") == "checkpoint":
            assert after.event == "checkpoint" and after.payload["step"] == event.payload["step"]
    assert next(event for event in told if event.payload.get("doing") == "closing evaluation").payload["step"] == STEPS
