"""Where settings go, and what goes with a run."""

from pathlib import Path

import pytest

from mosaic.commands.run import settings
from mosaic.contract.errors import ConfigError

SCHEMA = {"fields": [{"name": "total_timesteps"}, {"name": "gamma"}]}


def test_settings_go_to_the_top_the_parameters_or_the_extras() -> None:
    given = {"seed": 0, "total_timesteps": 9, "gamma": 0.5, "track_wandb": True, "extras.gamma": 1}
    assert settings.split_settings(given, SCHEMA) == {
        "seed": 0,
        "total_timesteps": 9,
        "extras": {"track_wandb": True, "gamma": 1, "algo_params": {"gamma": 0.5}},
    }


def test_without_a_schema_everything_is_a_parameter_of_the_persons_own_script() -> None:
    given = {"foo": 1, "extras.python": "/usr/bin/python3"}
    assert settings.split_settings(given, {})["extras"] == {"python": "/usr/bin/python3", "algo_params": {"foo": 1}}


def test_interpreter_of_a_script_is_an_extra_and_found_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    for given, sent in {
        "venv/bin/python": f"{tmp_path}/venv/bin/python",
        "~/venv/bin/python": "/home/me/venv/bin/python",
        "/usr/bin/python3": "/usr/bin/python3",
        "python3.10": "python3.10",
    }.items():
        assert settings.split_settings({"python": given}, {}) == {"extras": {"python": sent}}


def test_unknown_algo_names_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOSAIC_TARGET", raising=False)
    with pytest.raises(ConfigError, match=r"unknown algo 'ppoo'; did you mean 'ppo'\? List them with: mosaic algos"):
        settings.find_schema("ppoo")


def test_what_only_a_remote_daemon_may_know_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_TARGET", "gpubox:50055")
    assert settings.find_schema("their_algo") == {}


def test_variables_for_one_run_go_with_it_and_others_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in settings.FORWARDED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    assert settings.forwarded("ppo", "CartPole-v1") == {"CUDA_VISIBLE_DEVICES": "1"}
    own = {"CUDA_VISIBLE_DEVICES": "1", "PYTHONPATH": str(tmp_path)}
    assert settings.forwarded("ppo", "my_envs:Maze-v0") == own
