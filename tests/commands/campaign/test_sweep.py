"""sweep: trials with several seeds, pruning, a command that is killed and called again, what is refused."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

from mosaic import cli
from mosaic.commands.campaign.optuna_study import Spec
from mosaic.commands.campaign.trials import train_line
from mosaic.commands.run.settings import resources_of
from mosaic.contract.sweeps import read_summary
from mosaic.trainer.rpc.client import Client


def group(client: Client, name: str) -> list[Any]:
    return list(client.list_runs(group=f"sweep:{name}", page_size=100).runs)


def test_killed_sweep_goes_on_and_no_trial_is_lost_or_doubled(
    mosaic: Callable[..., Any], place: Any, client: Client, name: str
) -> None:
    words = ["sweep", "ppo", "CartPole-v1", "--vary", "learning_rate", "--vary", "num_steps=32,64", "--name", name]
    words += ["--trials", "2", "--seeds", "1,2", "--set", "total_timesteps=256", "--set", "num_envs=1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mosaic.cli", *words],
        env={**os.environ, **place.variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    planned = place.home / "var" / "sweeps" / name / "planned.jsonl"
    end = time.monotonic() + 180
    while not planned.exists() or planned.read_text().count("run_id") < 3:
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)  # one trial is whole, of another the first run is on its way
    process.wait(60)
    assert [trial.state for trial in read_summary(place.home, name).trials][:1] == ["running"]

    told = mosaic("sweep", "--name", name, "--json")
    assert told.code == 0, told.err
    assert "trial 0 is taken over" in told.err
    found = json.loads(told.out)
    assert [(trial["number"], trial["state"]) for trial in found["trials"]] == [(n, "complete") for n in range(2)]
    runs = group(client, name)
    assert Counter((run.group, run.seed) for run in runs) == Counter(
        {(f"sweep:{name}/trial {number}", seed): 1 for number in range(2) for seed in (1, 2)}
    )
    assert {run_id for trial in found["trials"] for run_id in trial["runs"]} == {run.run_id for run in runs}
    assert found["trials"][0]["params"]["learning_rate"] == 0.00025  # the first is the algorithm's own,
    assert found["defaults"] is None  # but for num_steps
    for trial in found["trials"]:
        means = [run.mean_return for run in runs if run.run_id in trial["runs"]]
        assert trial["value"] == pytest.approx(sum(means) / 2)
        config = client.get_run(trial["runs"][1]).payload["metadata"]["worker"]["config"]
        assert config["extras"]["algo_params"] == {"num_envs": 1, **trial["params"]} and config["seed"] == 2
    best = max(found["trials"], key=lambda trial: trial["value"])
    args = cli.parser().parse_args(shlex.split(found["command"])[1:])
    assert (args.algo, args.seeds) == ("ppo", "1,2")
    assert f"learning_rate={best['params']['learning_rate']}" in args.settings

    told = mosaic("sweep", "--name", name)
    assert told.code == 0 and "best: trial" in told.out and len(group(client, name)) == 4
    told = mosaic("sweep", "ppo", "CartPole-v1", "--name", name, "--seeds", "1-3")
    assert told.code == 2 and "was begun with another seeds" in told.err


def test_line_that_trains_with_the_best_parameters_says_where_the_sweep_ran() -> None:
    sweep = ["sweep", "ppo", "CartPole-v1", "--executor", "slurm", "--slurm", "partition=gpu", "--cpus", "2"]
    resources = resources_of(cli.parser().parse_args([*sweep, "--resource", "slurm.time=4:00:00"]))
    given = {"config": {"extras": {}}, "total_timesteps": 8, "seeds": (1, 2), "metric": "m", "last": 1, "trials": 1}
    given |= {"direction": "maximize", "reports": 1, "space": (), "resources": resources}
    line = train_line(Spec(algo="ppo", env_id="CartPole-v1", **given), {"gamma": 0.9})
    args = cli.parser().parse_args(shlex.split(line)[1:])
    assert resources_of(args) == resources and args.seeds == "1,2" and "gamma=0.9" in args.settings


def test_interrupted_sweep_leaves_its_runs_going_and_scores_what_ended_meanwhile(
    mosaic: Callable[..., Any], place: Any, client: Client, tmp_path: Path, name: str
) -> None:
    words = ["sweep", "tiny", "CartPole-v1", "--vary", "extras.scale=1..2", "--name", name, "--trials", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mosaic.cli", *words, "--set", f"gate={tmp_path / 'gate'}"],
        env={**os.environ, **place.variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 180
    while [run.step for run in group(client, name)] != [2]:
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=180)
    assert process.returncode == 130 and f"Go on with the sweep: mosaic sweep --name {name}" in said
    (run,) = group(client, name)
    assert not run.ended
    (tmp_path / "gate").touch()
    client.wait_run(run.run_id, 180)
    told = mosaic("sweep", "--name", name)
    assert told.code == 0 and "trial 0 is taken over" in told.err and "trials: 1 complete" in told.out
    assert len(group(client, name)) == 1


def test_trial_that_does_worse_is_pruned_and_its_runs_end(
    mosaic: Callable[..., Any], place: Any, client: Client, tmp_path: Path, name: str
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    words = ["sweep", "tiny", "CartPole-v1", "--vary", "extras.scale=0.1..3.0", "--name", name, "--trials", "1"]
    words += ["--seeds", "1,2", "--reports", "2", "--startup-trials", "1", "--set", "total_timesteps=10"]
    for setting in ("episodes=10", "gate_at=5", f"gate={gate}", "foreign=true"):
        words += ["--set", setting]
    assert mosaic(*words, "--cpus", "0.5", "--max-seconds", "900").code == 0
    gate.unlink()  # from here on runs stand still half-way
    storage = f"sqlite:///{place.home / 'var' / 'sweeps' / 'optuna.db'}"
    optuna.load_study(study_name=name, storage=storage).enqueue_trial({"extras.scale": 0.1})
    told = mosaic("sweep", "--name", name, "--trials", "2", "--startup-trials", "1")
    assert told.code == 0 and "trial 1 is pruned (at 50% of its steps)" in told.err, told.err
    runs = {run.run_id: str(run.state) for run in group(client, name)}
    first, second = read_summary(place.home, name).trials
    assert [runs[run_id] for run_id in first.runs] == ["COMPLETED"] * 2
    assert [runs[run_id] for run_id in second.runs] == ["CANCELLED"] * 2
    for run_id in (*first.runs, *second.runs):  # what it was begun with holds for who goes on
        payload = client.get_run(run_id).payload
        assert (payload["resources"]["cpus"], payload["schedule"]["max_duration_seconds"]) == (0.5, 900)
    assert second.state == "pruned" and second.value is not None and 0.1 <= second.value < 0.31


def test_sweep_whose_trials_all_fail_stops_and_says_where_to_look(mosaic: Callable[..., Any], name: str) -> None:
    words = ["sweep", "tiny", "CartPole-v1", "--vary", "extras.scale=1..2", "--name", name, "--parallel", "1"]
    told = mosaic(*words, "--set", "exit=3", "--trials", "9")
    assert told.code == 2 and "the first 3 trials failed" in told.err and f"--group sweep:{name}" in told.err


def test_deleted_sweep_is_forgotten_and_its_runs_stay(
    mosaic: Callable[..., Any], place: Any, client: Client, name: str
) -> None:
    words = ["sweep", "tiny", "CartPole-v1", "--vary", "extras.scale=1..2", "--name", name, "--trials", "1"]
    assert mosaic(*words).code == 0
    assert mosaic("sweep", "--name", name, "--delete").code == 0
    assert not (place.home / "var" / "sweeps" / name).exists() and len(group(client, name)) == 1
    assert f"there is no sweep '{name}'" in mosaic("sweep", "--name", name).err


def test_dry_run_shows_the_space_and_begins_nothing(mosaic: Callable[..., Any], client: Client) -> None:
    told = mosaic("sweep", "dqn", "CartPole-v1", "--dry-run", "--set", "gamma=0.9")
    assert told.code == 0 and "learning_rate" in told.out and "by factors" in told.out
    assert "gamma" not in told.out  # what is set does not vary
    assert not group(client, "dqn-CartPole-v1")


@pytest.mark.parametrize(
    ("algo", "env_id", "said"),
    [
        ("ppo", "NoSuch-v0", "unknown environment 'NoSuch-v0'"),
        ("ppo", "HalfCheetah-v5", "drives discrete actions"),
        ("ppo_atari", "breakout", "did you mean 'ALE/Breakout-v5'?"),
    ],
)
def test_dry_run_refuses_what_no_trial_could_run(mosaic: Callable[..., Any], algo: str, env_id: str, said: str) -> None:
    told = mosaic("sweep", algo, env_id, "--dry-run")
    assert told.code == 2 and said in told.err and not told.out, told.err


def test_dry_run_asks_with_what_varies_and_refuses_no_sweep_for_one_trial(mosaic: Callable[..., Any]) -> None:
    told = mosaic("sweep", "c51", "CartPole-v1", "--set", "v_min=120", "--vary", "v_max=150,200", "--dry-run")
    assert told.code == 0 and "150 | 200" in told.out, told.err  # the default of v_max is below v_min
    words = ["sweep", "ppo", "CartPole-v1", "--set", "num_steps=2", "--set", "num_minibatches=8", "--dry-run"]
    told = mosaic(*words, "--vary", "num_envs=1,2,8")
    assert told.code == 0 and "2 of 3 trials across the space would be refused, as with num_envs=1:" in told.err
    told = mosaic(*words, "--vary", "num_envs=1,2")
    assert told.code == 2 and not told.out and len(told.err.splitlines()) == 1, told.err


@pytest.mark.parametrize("pieces", ["2,4,8", "8,4,2"])
def test_dry_run_asks_across_two_parameters_whatever_the_order_of_their_values(
    mosaic: Callable[..., Any], pieces: str
) -> None:
    words = ["sweep", "ppo", "CartPole-v1", "--set", "num_steps=2", "--dry-run", "--vary", "num_envs=1,2,4"]
    told = mosaic(*words, "--vary", f"num_minibatches={pieces}")  # they fit as 2 and 2, 4 and 2, 4 and 4
    assert told.code == 0 and "6 of 9 trials across the space would be refused" in told.err, told.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ppo"], "on which environment"),
        ([], "give ALGO and ENV"),
        (["--name", "nowhere"], "there is no sweep 'nowhere'"),
        (["ppo", "CartPole-v1", "--trials", "0"], "a number from 1"),
        (["ppo", "CartPole-v1", "--startup-trials", "-1"], "a number from 0"),
        (["ppo", "CartPole-v1", "--vary", "learning_rat"], "did you mean 'learning_rate'"),
        (["ppo", "CartPole-v1", "--vary", "gamma", "--space", "x.toml"], "give one of them"),
        (["ppo", "CartPole-v1", "--space", "nowhere.toml"], "cannot be read"),
        (["ppo", "CartPole-v1", "--vary", "gamma", "--set", "gamma=0.9"], "both set and varied"),
        (["ppo", "CartPole-v1", "--storage", "nosql://x"], "cannot be opened"),
    ],
)
def test_bad_sweep_is_refused_in_one_line(mosaic: Callable[..., Any], words: list[str], said: str) -> None:
    told = mosaic("sweep", *words)
    assert told.code in (1, 2) and said in told.err and len(told.err.splitlines()) == 1, told.err


def test_missing_extra_is_named(mosaic: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    told = mosaic("sweep", "ppo", "CartPole-v1")
    assert told.code == 2 and "pip install 'mosaic-rl[tune]'" in told.err
