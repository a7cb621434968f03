"""algos, envs, doctor: for people and as JSON."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from mosaic import cli
from mosaic.commands.inspect import lists
from mosaic.contract.workers import WorkerCapabilities


def schema() -> dict[str, Any]:
    rows = [
        ("total_timesteps", "int", 1000, None, "steps"),
        ("gamma", "float", 0.99, None, "the discount"),
        ("network", "str", "a", ["a", "b"], "which"),
    ]
    fields = [
        {"name": name, "type": kind, "default": default, "optional": False, "choices": choices, "help": text}
        for name, kind, default, choices, text in rows
    ]
    return {"learns": {"module": "m", "doc": "An algorithm.", "action_spaces": ["discrete"], "fields": fields}}


def test_algos_lists_names_and_one_algorithms_parameters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = WorkerCapabilities(
        worker_type="stub",
        label="Stub",
        supported_paradigms=("sequential",),
        env_families=("gymnasium",),
        action_spaces=("discrete",),
        observation_spaces=("vector",),
        command=("stub",),
        schema=schema,
    )
    problem = "worker plug-in 'x' is left out: broken"
    monkeypatch.setattr(lists, "discover_workers", lambda: ({"stub": worker}, [problem]))
    assert cli.main(["algos"]) == 0
    captured = capsys.readouterr()
    assert "learns" in captured.out and "left out: broken" in captured.err
    assert cli.main(["algos", "learns"]) == 0
    out = capsys.readouterr().out
    assert "gamma" in out and "0.99" in out and "the discount" in out and "a | b" in out
    assert cli.main(["algos", "learns", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["worker"] == "stub" and [field["name"] for field in found["fields"]][1] == "gamma"
    assert cli.main(["algos", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["algos"]) == {"learns"}
    assert cli.main(["algos", "lern"]) == 2


def test_envs_lists_families_groups_and_single_environments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["envs"]) == 0
    assert "minigrid" in capsys.readouterr().out
    assert cli.main(["envs", "classic-control"]) == 0
    assert "CartPole-v1" in capsys.readouterr().out
    assert cli.main(["envs", "atari", "--json"]) == 0
    ids = [entry["env_id"] for entry in json.loads(capsys.readouterr().out)["environments"]]
    assert "ALE/Pong-v5" in ids
    assert cli.main(["envs", "CartPole-v1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["environments"][0]["action_space"] == "discrete"
    assert cli.main(["envs", "--json"]) == 0
    families = json.loads(capsys.readouterr().out)["families"]
    assert {"gymnasium", "mujoco"} <= {family["name"] for family in families}
    assert cli.main(["envs", "atary"]) == 2
    assert "did you mean 'atari'?" in capsys.readouterr().err
    assert cli.main(["envs", "Breakout-v4"]) == 2
    assert "did you mean 'ALE/Breakout-v5'?" in capsys.readouterr().err, "as the dry run says"


def test_a_worker_that_tells_little_of_its_algorithms_is_listed_all_the_same(mosaic: Callable[..., Any]) -> None:
    assert "tiny" in mosaic("algos").out
    assert "total_timesteps" in mosaic("algos", "tiny").out
