"""train: configs, one run per seed, what is printed when, how it ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from mosaic import cli
from mosaic.commands.run.train import build_configs
from mosaic.trainer.rpc.client import Client


def configs(*words: str, schema: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    return build_configs(cli.parser().parse_args(["train", *words]), schema or {})


SCHEMA = {"fields": [{"name": "total_timesteps"}, {"name": "gamma"}]}


def test_each_seed_is_a_config_of_its_own() -> None:
    found = configs("ppo", "CartPole-v1", "--seeds", "3-5", "--set", "gamma=0.9", schema=SCHEMA)
    assert [config["seed"] for config in found] == [3, 4, 5]
    assert found[0] == {"algo": "ppo", "env_id": "CartPole-v1", "seed": 3, "extras": {"algo_params": {"gamma": 0.9}}}


def test_frames_of_an_atari_run_take_the_place_of_steps() -> None:
    (config,) = configs("ppo_atari", "Pong-v5", "--set", "total_frames=4000", schema=SCHEMA)
    assert "total_timesteps" not in config and config["extras"] == {"total_frames": 4000}


def test_own_script_needs_a_budget_and_becomes_an_absolute_path(
    mosaic: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = mosaic("train", "my_ppo.py", "CartPole-v1")
    assert told.code == 2 and "how long shall my_ppo.py train?" in told.err
    (config,) = configs("my_ppo.py", "CartPole-v1", "--set", "total_timesteps=10")
    assert config["algo"] == str(tmp_path / "my_ppo.py")


def test_seed_given_twice_is_refused(mosaic: Callable[..., Any]) -> None:
    told = mosaic("train", "tiny", "CartPole-v1", "--seeds", "1-2", "--set", "seed=1")
    assert told.code == 2 and "give one of them" in told.err


def test_a_key_on_the_command_line_is_refused_before_anything_is_sent(mosaic: Callable[..., Any]) -> None:
    told = mosaic("train", "tiny", "CartPole-v1", "--set", "wandb_api_key=0123456789")
    assert told.code == 2 and "export WANDB_API_KEY" in told.err and "0123456789" not in told.err


def test_train_returns_once_the_run_is_accepted(mosaic: Callable[..., Any], client: Client) -> None:
    told = mosaic("train", "tiny", "CartPole-v1", "--name", "first try", "--priority", "3")
    assert told.code == 0 and told.out.startswith("accepted ") and "tiny on CartPole-v1, seed 7" in told.out
    run = client.wait_run(told.out.split()[1].rstrip(":"), 180)
    assert (run.run_name, run.priority, run.state) == ("first try", 3, "COMPLETED")


def test_json_is_one_document_as_soon_as_the_run_is_accepted_and_the_view_goes_to_stderr(
    mosaic: Callable[..., Any],
) -> None:
    told = mosaic("train", "tiny", "CartPole-v1", "--json", "--follow")
    found = json.loads(told.out)
    assert told.code == 0 and found["state"] == "INIT" and found["env_id"] == "CartPole-v1"
    assert found["run_id"] in told.err and "completed (seed 7)" in told.err


def test_several_seeds_are_a_list_and_are_followed_together(mosaic: Callable[..., Any]) -> None:
    told = mosaic("train", "tiny", "CartPole-v1", "--seeds", "1,2", "--json", "--follow")
    assert told.code == 0
    assert [run["seed"] for run in json.loads(told.out)["runs"]] == [1, 2]
    assert told.err.splitlines()[-1] == "2 of 2 runs completed: mean return 2, from 2 to 2"


def test_followed_run_that_fails_exits_1_with_reason_and_hint(mosaic: Callable[..., Any]) -> None:
    told = mosaic("train", "tiny", "CartPole-v1", "--follow", "--set", "exit=3")
    assert told.code == 1
    assert "failed: the algorithm ended with exit code 3" in told.out and "hint: it was told to" in told.out


def test_refusal_of_the_worker_exits_2_and_leaves_no_run(mosaic: Callable[..., Any], client: Client) -> None:
    before = client.list_runs().total
    told = mosaic("train", "ppo", "CartPole-v1", "--set", "learning_rat=1")
    assert told.code == 2 and "did you mean 'learning_rate'" in told.err and len(told.err.splitlines()) == 1
    told = mosaic("train", "ppo", "CartPole-v1", "--set", "max_restarts=2147483648")
    assert told.code == 2 and "max_restarts: a whole number from 0 to 1000000 is needed, not 2147483648" in told.err
    assert client.list_runs().total == before and mosaic("runs").code == 0


def test_interrupt_leaves_the_run_going_and_says_how_to_come_back(place: Any, client: Client) -> None:
    words = ["train", "tiny", "CartPole-v1", "--set", "episodes=100000", "--set", "pause=0.02", "--follow"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mosaic.cli", *words],
        env={**os.environ, **place.variables},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    run_id = process.stdout.readline().split()[1].rstrip(":")
    assert any("steps" in line for line in iter(process.stdout.readline, "")), "it has said how far it is"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "The run goes on." in out and f"mosaic logs -f {run_id[-8:]}" in out and "mosaic cancel" in out
    assert not client.get_run(run_id).ended
    client.cancel_run(run_id, 0.0)
    client.wait_run(run_id, 180)


def test_without_a_daemon_one_is_started_and_that_is_said(
    mosaic: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path / "fresh"))
    (tmp_path / "fresh").mkdir()
    told = mosaic("train", "tiny", "CartPole-v1", "--follow")
    assert told.code == 0, told
    assert "starting one for" in told.err and "end it with: mosaic down" in told.err
    with Client(home=tmp_path / "fresh") as client:
        pid = client.health()["pid"]
    down = mosaic("down")
    assert down.code == 0 and "has ended" in down.out
    os.waitpid(pid, 0)  # we are its parent
    assert not psutil.pid_exists(pid)
    assert mosaic("runs").code == 3
