"""Public names, flags and checked plans are those that are recorded in tests/frozen; texts are free to change."""

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker import cli as worker_cli
from cleanrl_worker.config import parse_worker_config
from cleanrl_worker.runtime import CleanRLWorkerRuntime
from cleanrl_worker.schema import describe
from mosaic import cli

ALGORITHMS = describe()
PUBLIC = {
    "cleanrl_worker": ("get_worker_metadata",),
    "cleanrl_worker.config": ("CleanRLWorkerConfig", "WorkerConfig", "load_worker_config", "parse_worker_config"),
    "cleanrl_worker.runtime": ("CleanRLWorkerRuntime", "DEFAULT_ALGO_REGISTRY"),
    "cleanrl_worker.cli": ("main",),
    "cleanrl_worker.agents.mlp": ("MLPAgent",),
    "cleanrl_worker.agents.minigrid": ("MinigridCNN", "MinigridAgent"),
    "cleanrl_worker.wrappers.curriculum": (
        "BABYAI_GOTO_CURRICULUM",
        "BABYAI_DOORKEY_CURRICULUM",
        "make_curriculum_env",
    ),
    "mosaic": ("Client",),
    **{
        f"cleanrl_worker.{name}": ()
        for name in (
            *("telemetry", "analytics", "fastlane", "sitecustomize", "launcher"),
            *("eval_registry", "evaluation", "schema", "curriculum_training"),
        )
    },
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_found_where_they_were(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in PUBLIC[module] if not hasattr(found, name)] == []


@pytest.mark.parametrize("module", ["cleanrl_worker", "cleanrl_worker.cli", "mosaic", "gym_gui"])
def test_what_python_runs_as_a_module_is_there(module: str) -> None:
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.submodule_search_locations is None or importlib.util.find_spec(f"{module}.__main__") is not None


@pytest.mark.parametrize("name", ALGORITHMS)
def test_parameters_of_an_algorithm(name: str, frozen: Any) -> None:
    entry = ALGORITHMS[name]
    fields = {
        field["name"]: {key: field[key] for key in sorted(field) if key not in ("name", "help")}
        for field in entry["fields"]
    }
    found = {key: entry[key] for key in sorted(entry) if key not in ("doc", "fields", "module")} | {"fields": fields}
    found = json.loads(json.dumps(found))
    assert found == frozen(f"algorithms/{name}", found)


@pytest.mark.parametrize(("program", "parser"), [("mosaic", cli.parser), ("cleanrl-worker", worker_cli._parser)])
def test_flags_of_a_command(program: str, parser: Any, frozen: Any) -> None:
    found = json.loads(json.dumps(flags_of(parser())))
    assert found == frozen(f"commands/{program}", found)


def flags_of(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return every flag and argument of a parser and of its commands, without their help."""
    found: dict[str, Any] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {name: flags_of(below) for name, below in action.choices.items()}
        else:
            choices = None if action.choices is None else [str(choice) for choice in action.choices]
            what = {
                "takes": action.nargs,
                "default": str(action.default),
                "required": action.required,
                "choices": choices,
            }
            found[" ".join(action.option_strings) or action.dest] = {key: value for key, value in what.items() if value}
    return found


CONFIGS: dict[str, dict[str, Any]] = {
    "train": {"algo": "ppo", "env_id": "CartPole-v1", "extras": {"algo_params": {"num_envs": 2, "anneal_lr": False}}},
    "images": {"algo": "dqn_atari_jax", "env_id": "Pong-v5", "extras": {"cuda": False, "save_model": True}},
    "grids": {"algo": "ppo", "env_id": "MiniGrid-DoorKey-5x5-v0", "extras": {"algo_params": {"memory": True}}},
    "stages": {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "extras": {"curriculum_schedule": [{"env_id": "CartPole-v1", "steps": 100}, {"env_id": "CartPole-v0"}]},
    },
    "script": {"algo": "mine.py", "env_id": "CartPole-v1", "extras": {"algo_params": {"rate": 0.5}}},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_checked_plan_of_a_config(name: str, frozen: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import gymnasium\n")
    config = {"run_id": "frozen", "total_timesteps": 1000, "seed": 3, **CONFIGS[name]}
    summary = CleanRLWorkerRuntime(parse_worker_config(config), dry_run=True).run()
    text = json.dumps(summary if isinstance(summary, dict) else vars(summary), default=str)
    found = json.loads(text.replace(str(tmp_path), "HOME").replace(sys.executable, "PYTHON"))
    assert found == frozen(f"plans/{name}", found)
