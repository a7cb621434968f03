"""Curricula as the worker takes them: refused by the dry run, or trained through with their stages told."""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from cleanrl_worker import cli
from cleanrl_worker.config.config import parse_worker_config
from mosaic.contract.events import decode
from mosaic.contract.metrics import read_rows
from mosaic.contract.paths import RunPaths

POLES = [{"env_id": "CartPole-v1", "steps": 128}, {"env_id": "CartPole-v0"}]
OWN = """
    import gymnasium
    from gymnasium.envs.classic_control import CartPoleEnv

    print("noise")
    gymnasium.register("Mine-v0", entry_point=CartPoleEnv, max_episode_steps=7)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    return tmp_path


def write(schedule: Any, env_id: str | None = "CartPole-v1", algo: str = "ppo", **extras: Any) -> list[str]:
    given = {"curriculum_schedule": schedule, **extras}
    config = {"run_id": "staged", "algo": algo, "env_id": env_id, "seed": 1, "total_timesteps": 256, "extras": given}
    Path("c.json").write_text(json.dumps(config))
    return ["--config", "c.json"]


def refusal(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    assert cli.main([*words, "--dry-run"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    assert os.listdir() == ["c.json"], "nothing is written"
    return err


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            [{"env_id": "CartPole-v1", "condition": "step>=4"}, POLES[1]],
            "'step>=4' is no condition; did you mean 'steps'?",
        ),
        ([], "extras.curriculum_schedule: a list of stages"),
        ([POLES[0], {"env_id": "CartPole-v9"}], "did you mean 'CartPole-v1'?"),
        ([POLES[0], {"env_id": "Pendulum-v1"}], "'Pendulum-v1' takes continuous ones"),
        ([POLES[0], {"env_id": "Acrobot-v1"}], "all stages need the same spaces, but CartPole-v1 has observations"),
        ([{"env_id": "Acrobot-v1"}], "env_id 'CartPole-v1' is no stage of extras.curriculum_schedule (Acrobot-v1)"),
    ],
)
def test_a_curriculum_that_cannot_be_trained_is_refused_by_the_dry_run(
    capsys: pytest.CaptureFixture[str], schedule: Any, message: str
) -> None:
    assert message in refusal(capsys, write(schedule))


def test_grids_with_other_actions_are_refused_and_of_another_size_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    small = "MiniGrid-DoorKey-5x5-v0"
    assert cli.main([*write([{"env_id": small}, {"env_id": "MiniGrid-DoorKey-6x6-v0"}], small), "--dry-run"]) == 0
    capsys.readouterr()
    other = "MiniGrid-Dynamic-Obstacles-5x5-v0"
    assert f"{other} observations of shape (7, 7, 3) and actions Discrete(3)" in refusal(
        capsys, write([{"env_id": small}, {"env_id": other}], small)
    )


def test_a_script_of_ones_own_makes_its_own_environments(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.json").touch()
    script = Path(__file__)
    assert "makes its own environments" in refusal(capsys, write(POLES, algo=str(script)))


def test_an_automatic_curriculum_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    plan = {"method": "plr", "tasks": ["CartPole-v1", "CartPole-v0"]}
    assert "two or more different environments" in refusal(capsys, write(None, curriculum={"method": "plr"}))
    assert "are both given; give one" in refusal(capsys, write(POLES, curriculum=plan))


def test_without_an_environment_the_last_stage_is_meant_and_params_are_taken_too() -> None:
    config = {"algo": "ppo", "total_timesteps": 5, "extras": {"algo_params": {"curriculum_schedule": POLES}}}
    read = parse_worker_config(config)
    assert read.env_id == "CartPole-v0"
    assert read.extras == {"algo_params": {}, "curriculum_schedule": POLES}


def test_stages_of_a_run_are_told_and_environments_of_ones_own_take_part(home: Path) -> None:
    (home / "own.py").write_text(dedent(OWN))
    schedule = [POLES[0], {"env_id": "own:Mine-v0", "condition": "steps>=64"}, {"env_id": "CartPole-v0"}]
    params = {"num_envs": 2, "num_steps": 32, "num_minibatches": 2, "cuda": False}
    words = write(schedule, algo_params=params, telemetry="steps")
    subprocess.run([sys.executable, "-m", "cleanrl_worker.cli", *words], check=True, capture_output=True, timeout=300)
    paths = RunPaths("staged")
    events = [decode(line) for line in paths.events.read_bytes().splitlines(keepends=True)]
    told = [event.payload for event in events if event.event == "stage"]
    assert told == [
        {"stage": 0, "env_id": "CartPole-v1", "step": 0, "reason": "the first stage"},
        {"stage": 1, "env_id": "own:Mine-v0", "step": 128, "reason": "steps>=128"},
        {"stage": 2, "env_id": "CartPole-v0", "step": 192, "reason": "steps>=64"},
    ]
    rows = read_rows(paths.metrics)
    own = [row for row in rows if 128 < row["step"] <= 192 and "charts/episodic_length" in row]
    assert own and {row["charts/episodic_length"] for row in own} == {7}
    assert {row["step"]: row["curriculum/stage"] for row in rows if "curriculum/stage" in row} == {
        0: 0,
        64: 0,
        128: 1,
        192: 2,
        256: 2,
    }
    steps = [step for event in events if event.event == "step" for step, *_ in event.payload["steps"]]
    assert steps == [step for step in range(2, 257, 2) for _ in range(2)], "step telemetry goes on over the stages"
