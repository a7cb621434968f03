"""benchmark: the matrix, what does not fit, a command that is killed and called again, results."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mosaic import cli
from mosaic.commands.campaign.combinations import parse_flags, payload, read_matrix
from mosaic.commands.campaign.planned_runs import Ledger
from mosaic.contract.errors import ConfigError
from mosaic.trainer.rpc.client import Client


def matrix(*words: str) -> Any:
    return read_matrix(cli.parser().parse_args(["benchmark", *words]))


def group(client: Client, name: str) -> list[Any]:
    return list(client.list_runs(group=f"benchmark:{name}", page_size=100).runs)


def test_matrix_is_every_algorithm_on_every_environment_with_every_seed() -> None:
    found = matrix("--algos", "ppo,dqn", "--envs", "CartPole-v1,Acrobot-v1", "--seeds", "1-3", "--", "--gamma", "0.9")
    assert len(found) == 12 and len({cell.key for cell in found.cells()}) == 12
    assert [one.label for one in found.combinations][:2] == ["ppo CartPole-v1", "ppo Acrobot-v1"]
    config = found.combinations[0].config
    assert config["extras"] == {"algo_params": {"gamma": 0.9}} and config["total_timesteps"] == 500_000
    again = matrix("--algos", "ppo,dqn", "--envs", "CartPole-v1,Acrobot-v1", "--seeds", "1-9", "--param", "gamma=0.9")
    other = matrix("--algos", "ppo,dqn", "--envs", "CartPole-v1,Acrobot-v1", "--param", "gamma=0.8")
    assert again.name == found.name != other.name


def test_every_run_goes_to_the_executor_that_was_named() -> None:
    words = [
        "--algos",
        "ppo",
        "--envs",
        "CartPole-v1",
        "--seeds",
        "1",
        "--executor",
        "slurm",
        "--slurm",
        "partition=cpu",
    ]
    args = cli.parser().parse_args(["benchmark", *words, "--name", "far"])
    (cell,) = read_matrix(args).cells()
    made = payload(read_matrix(args), cell, args)
    assert made["resources"] == {"executor": "slurm", "slurm": {"partition": "cpu"}}
    assert made["metadata"]["ui"] == {"group": "benchmark:far/ppo CartPole-v1"}


def test_flags_are_read_as_an_algorithm_reads_them() -> None:
    words = "--learning-rate 1e-3 --no-anneal-lr --cuda --num_envs=4".split()
    assert parse_flags(words) == {"learning_rate": 0.001, "anneal_lr": False, "cuda": True, "num_envs": 4}
    with pytest.raises(ConfigError, match="after -- stand flags"):
        parse_flags(["gamma"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--algos", "ppoo", "--envs", "CartPole-v1"], "did you mean 'ppo'"),
        (["--algos", "ppo,ppo", "--envs", "CartPole-v1"], "names one twice"),
        (["--algos", "ppo", "--envs", ","], "names with commas"),
        (["--algos", "ppo", "--envs", "CartPole-v1", "--set", "seed=1"], "--seeds"),
        (["--algos", "ppo", "--envs", "CartPole-v1", "--name", "a/b"], "is refused"),
        (["--algos", "ppo", "--envs", "CartPole-v1", "--max-parallel", "0"], "a number from 1"),
    ],
)
def test_bad_matrix_is_refused_in_one_line(mosaic: Callable[..., Any], words: list[str], said: str) -> None:
    told = mosaic("benchmark", *words)
    assert told.code == 2 and said in told.err and len(told.err.splitlines()) == 1


def test_what_does_not_fit_is_said_for_each_combination_before_anything_starts(
    mosaic: Callable[..., Any], client: Client
) -> None:
    words = ["benchmark", "--algos", "ppo,tiny", "--envs", "Pendulum-v1", "--seeds", "1", "--name", "unfit"]
    told = mosaic(*words)
    assert told.code == 2 and "mosaic: ppo Pendulum-v1: " in told.err and "takes continuous" in told.err
    assert "1 of 2 combinations cannot be run; nothing was started" in told.err and not group(client, "unfit")
    told = mosaic(*words, "--skip-unfit", "--dry-run", "--json")
    assert told.code == 0 and [row["algo"] for row in json.loads(told.out)["matrix"]] == ["tiny"]
    assert not group(client, "unfit")


def test_killed_command_is_called_again_and_makes_no_run_twice(
    mosaic: Callable[..., Any], place: Any, client: Client, tmp_path: Path, name: str
) -> None:
    words = ["benchmark", "--algos", "ppo,dqn", "--envs", "CartPole-v1", "--seeds", "1,2", "--name", name]
    words += ["--csv", str(tmp_path / "kill.csv"), "--json", "--", "--total-timesteps", "256", "--num-envs", "1"]
    command = [sys.executable, "-m", "mosaic.cli", *words]
    process = subprocess.Popen(
        command, env={**os.environ, **place.variables}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    planned = place.home / "var" / "benchmarks" / name / "planned.jsonl"
    end = time.monotonic() + 180
    while not planned.exists() or planned.read_text().count("run_id") < 2:
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)  # its second run is on its way
    process.wait(60)
    told = mosaic(*words)
    assert told.code == 0, told.err
    runs = group(client, name)
    assert sorted((run.algo, run.seed, str(run.state)) for run in runs) == [
        *(("dqn", seed, "COMPLETED") for seed in (1, 2)),
        *(("ppo", seed, "COMPLETED") for seed in (1, 2)),
    ]
    document = json.loads(told.out)
    assert [one["completed"] for one in document["results"]] == [2, 2]
    assert document["compare"][0].startswith(f"/compare?group=benchmark:{name}&env=CartPole-v1")
    for one in document["results"]:
        low, high = one["interval"]
        assert low <= one["iqm"] <= high
    rows = list(csv.DictReader((tmp_path / "kill.csv").open()))
    assert [row["kind"] for row in rows] == ["combination"] * 2 + ["run"] * 4
    assert {row["run_id"] for row in rows if row["kind"] == "run"} == {run.run_id for run in runs}
    told = mosaic(*words)
    assert told.code == 0 and "4 there already, 0 to submit" in told.err and len(group(client, name)) == 4
    told = mosaic(*words[:-2])
    assert told.code == 2 and "give this one another --name" in told.err


def test_retry_submits_anew_what_was_cancelled_and_nothing_else(
    mosaic: Callable[..., Any], client: Client, tmp_path: Path, name: str
) -> None:
    words = ["benchmark", "--algos", "tiny", "--envs", "CartPole-v1", "--seeds", "1-2", "--name", name]
    words += ["--set", f"gate={tmp_path / 'gate'}"]
    assert mosaic(*words, "--no-wait").code == 0
    first = next(run for run in group(client, name) if run.seed == 1)
    client.cancel_run(first.run_id, 0.0)
    client.wait_run(first.run_id, 180)
    (tmp_path / "gate").touch()
    told = mosaic(*words)
    assert told.code == 1 and "1 runs did not complete" in told.err and len(group(client, name)) == 2
    told = mosaic(*words, "--retry", "--max-parallel", "1")
    assert told.code == 0 and "1 to submit (1 of them again)" in told.err
    assert sorted((run.seed, str(run.state)) for run in group(client, name)) == [
        (1, "CANCELLED"),
        (1, "COMPLETED"),
        (2, "COMPLETED"),
    ]
    assert "tiny" in told.out and "2 of 2" in told.out


def test_refused_run_is_submitted_anew_by_the_next_command(
    mosaic: Callable[..., Any], client: Client, name: str
) -> None:
    words = ["benchmark", "--algos", "tiny", "--envs", "CartPole-v1", "--seeds", "1", "--name", name]
    refused = mosaic(*words, "--executor", "slurm", "--slurm", "output=mine")  # with or without Slurm on this machine
    assert refused.code == 2 and "resources." in refused.err, refused.err
    told = mosaic(*words)
    assert told.code == 0 and "1 of 1" in told.out, told
    assert [str(run.state) for run in group(client, name)] == ["COMPLETED"]


def test_store_that_the_daemon_fills_in_is_no_other_setting(
    mosaic: Callable[..., Any], client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("MOSAIC_STORAGE_URL", f"file://{tmp_path}/store")
    words = ["benchmark", "--algos", "tiny", "--envs", "CartPole-v1", "--seeds", "1", "--name", name]
    assert mosaic(*words).code == 0
    (run,) = group(client, name)
    assert client.get_run(run.run_id).payload["metadata"]["worker"]["config"]["extras"]["storage_url"]
    told = mosaic(*words)
    assert told.code == 0 and "1 there already, 0 to submit" in told.err, told.err


def test_deleted_run_is_not_waited_for(mosaic: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    looks: list[int] = []

    def find_none(*_: Any) -> list[Any]:
        looks.append(1)
        assert len(looks) < 9
        return []

    monkeypatch.setattr("mosaic.commands.campaign.benchmark.list_group", find_none)
    told = mosaic("benchmark", "--algos", "tiny", "--envs", "CartPole-v1", "--seeds", "1", "--name", name)
    assert told.code == 0 and "0 of 1" in told.out, told


def test_ledger_is_held_by_one_command_and_forgives_a_cut_line(tmp_path: Path) -> None:
    with Ledger(tmp_path, "benchmark 'x'") as ledger:
        first = ledger.id_of("a")
        with pytest.raises(ConfigError, match=f"process {os.getpid()}"), Ledger(tmp_path, "benchmark 'x'"):
            pass
    with (tmp_path / "planned.jsonl").open("a") as file:
        file.write('{"key": "b", "run_')
    with Ledger(tmp_path, "benchmark 'x'") as ledger:
        assert ledger.id_of("a") == first
        second = ledger.id_of("b")
    with Ledger(tmp_path, "benchmark 'x'") as ledger:
        assert (ledger.id_of("a"), ledger.id_of("b")) == (first, second)
