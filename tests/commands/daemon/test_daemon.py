"""daemon: its flags, how it is found, what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mosaic import cli
from mosaic.trainer import daemon as trainer_daemon
from mosaic.trainer.rpc.client import Client


def flags(parser: Any) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


def test_daemon_has_the_flags_of_the_trainers_own_module() -> None:
    commands = next(action for action in cli.parser()._actions if action.choices)
    assert flags(commands.choices["daemon"]) == flags(trainer_daemon._parser())


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
