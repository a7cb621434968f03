"""up, down, daemon: started, found again, ended; runs go on."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mosaic import cli
from mosaic.trainer import daemon as trainer_daemon
from mosaic.trainer.client import Client


def flags(parser: Any) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


def test_daemon_has_the_flags_of_the_trainers_own_module() -> None:
    commands = next(action for action in cli.parser()._actions if action.choices)
    assert flags(commands.choices["daemon"]) == flags(trainer_daemon._parser())


def test_up_says_when_a_daemon_serves_this_home_already(mosaic: Callable[..., Any], place: Any) -> None:
    told = mosaic("up")
    assert told.code == 0 and f"already serves {place.home}" in told.out
    assert json.loads(mosaic("up", "--detach", "--json").out)["home"] == str(place.home)


def test_up_in_the_foreground_ends_with_sigterm_and_runs_go_on(
    mosaic: Callable[..., Any], place: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("MOSAIC_HOME", str(home))
    environment = {**os.environ, **place.variables, "MOSAIC_HOME": str(home)}
    command = [sys.executable, "-m", "mosaic.cli", "up", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    assert "listens on 127.0.0.1:" in process.stdout.readline()
    accepted = mosaic("train", "tiny", "CartPole-v1", "--set", "episodes=100000", "--set", "pause=0.02", "--json")
    run_id = json.loads(accepted.out)["run_id"]
    with Client(home=home) as client:
        while client.get_run(run_id).state != "EXECUTING":
            pass
        pid = client.get_run(run_id).pid
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "no web interface" in err and "what runs goes on" in err
    os.kill(pid, 0)
    gone = mosaic("runs")
    assert gone.code == 3 and "start one with" in gone.err
    again = json.loads(mosaic("up", "--detach", "--json").out)
    assert again["runs"] == {"EXECUTING": 1}
    assert mosaic("cancel", run_id, "--grace", "0").code == 0
    assert mosaic("down", "--json").code == 0
    os.waitpid(again["pid"], 0)


def test_daemon_that_may_be_reached_by_others_is_refused_without_tls(mosaic: Callable[..., Any]) -> None:
    told = mosaic("daemon", "--listen", "0.0.0.0:0")
    assert told.code == 2 and "--tls-cert" in told.err


def test_target_where_nobody_answers_is_exit_3_and_starts_nothing(
    mosaic: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOSAIC_TARGET", "127.0.0.1:1")
    assert mosaic("runs").code == 3
    told = mosaic("train", "tiny", "CartPole-v1")
    assert told.code == 3 and "127.0.0.1:1" in told.err


def test_daemon_is_found_by_address_and_token_and_a_wrong_token_is_refused(
    mosaic: Callable[..., Any], place: Any, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path / "far"))
    monkeypatch.setenv("MOSAIC_TARGET", client.address.target)
    monkeypatch.setenv("MOSAIC_TOKEN", client.address.token)
    assert mosaic("runs", "--json").code == 0
    monkeypatch.setenv("MOSAIC_TOKEN", "wrong-token-0123456789")
    told = mosaic("runs")
    assert told.code == 2 and "MOSAIC_TOKEN" in told.err
    assert mosaic("doctor").code == 1
