"""Phases by real workers and without a daemon: the recipe for trying a script by hand, and what makes a phase."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.config.config import parse_worker_config
from cleanrl_worker.supervise.script_phase import is_phase
from mosaic.contract.checkpoints import find_all, mirror, write_checkpoint
from mosaic.contract.errors import ConfigError
from mosaic.contract.events import replay
from mosaic.contract.metrics import read_rows
from mosaic.contract.paths import RunPaths
from mosaic.contract.phases import read_phases

SRC = Path(__file__).resolve().parents[3] / "src"
BASE = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 256}
# As jq does it, for machines that have none.
JQ = """#!/bin/sh
exec python -c 'import json, sys
config = json.load(open(sys.argv[2]))
config["total_timesteps"] = 128
print(json.dumps(config))' "$@"
"""
SCRIPT = """set -euo pipefail
jq '.total_timesteps = 128' "$MOSAIC_CONFIG_FILE" > "$MOSAIC_CHECKPOINT_DIR-phase1.json"
python -m cleanrl_worker.cli --config "$MOSAIC_CHECKPOINT_DIR-phase1.json" --extras '{"algo_params": {"num_steps": 16}}'
mkdir -p "$MOSAIC_CHECKPOINT_DIR/phase1"
cp -r "var/trainer/runs/$MOSAIC_RUN_ID/checkpoints/"* "$MOSAIC_CHECKPOINT_DIR/phase1/"
python -m cleanrl_worker.cli --config "$MOSAIC_CONFIG_FILE" --env-id CartPole-v1 --total-timesteps 192 \\
  --extras '{"mode": "resume_training", "algo_params": {"num_steps": 16}}'
"""


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of the recipe, in this process and for others."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tools / "python").chmod(0o755)
    if shutil.which("jq") is None:
        (tools / "jq").write_text(JQ)
        (tools / "jq").chmod(0o755)
    given = {
        "MOSAIC_CONFIG_FILE": str(tmp_path / "test_config.json"),
        "MOSAIC_RUN_ID": "test-run-001",
        "MOSAIC_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
        "MOSAIC_HOME": str(tmp_path),
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(SRC),
    }
    for name in list(os.environ):
        if name.startswith(("MOSAIC_", "TRACK_", "CLEANRL_", "GYM_GUI_")):
            monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "test_config.json").write_text(json.dumps(BASE))
    return given


def test_recipe_for_trying_a_script_by_hand_works_twice_in_a_row(inside: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "my_curriculum.sh").write_text(SCRIPT)
    for _ in range(2):
        done = subprocess.run(
            ["bash", "scripts/my_curriculum.sh"], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
    paths = RunPaths("test-run-001", tmp_path)
    found = read_phases(paths)
    assert [(one.first_step, one.end_step, one.outcome) for one in found] == [
        (0, 128, "completed"),
        (128, 320, "completed"),
        (320, 448, "completed"),
        (448, 640, "completed"),
    ]
    kinds = [event.event for event in replay(paths.events)]
    assert kinds.count("phase") == 8 and not {"run_started", "run_completed", "run_failed"} & set(kinds)
    steps = [row["step"] for row in read_rows(paths.metrics) if "losses/value_loss" in row]
    assert steps == list(range(64, 641, 64))
    given, own = tmp_path / "checkpoints", paths.checkpoints
    for one in found:
        assert [path.name for path in find_all(given / one.name)] == [path.name for path in find_all(own / one.name)]
    assert find_all(given / "phase1"), "and what the script copied is found as well"


def test_second_phase_keeps_the_memory_of_the_first(inside: dict[str, str], tmp_path: Path) -> None:
    params = {"learning_starts": 20, "buffer_size": 500, "checkpoint_every": 0}
    base = {**BASE, "algo": "dqn", "total_timesteps": 60, "extras": {"algo_params": params}}
    (tmp_path / "test_config.json").write_text(json.dumps(base))
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(tmp_path / "test_config.json")]
    for extras in ({}, {"mode": "resume_training"}):
        done = subprocess.run([*command, "--extras", json.dumps(extras)], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    first, second = read_phases(RunPaths("test-run-001", tmp_path))
    assert (first.end_step, second.first_step, second.end_step) == (60, 60, 120)
    (checkpoint,) = find_all(tmp_path / "checkpoints" / second.name)
    state = json.loads((checkpoint / "state.json").read_text())["state"]
    assert (state["step"], state["replay"]["added"]) == (120, 120)


def test_what_makes_a_phase(inside: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_phase(None) and is_phase("test-run-001") and not is_phase("another")
    monkeypatch.setenv("MOSAIC_SCRIPT", "0")
    assert not is_phase("test-run-001")
    monkeypatch.setenv("MOSAIC_SCRIPT", "1")
    monkeypatch.delenv("MOSAIC_CONFIG_FILE")
    assert is_phase("test-run-001")
    monkeypatch.delenv("MOSAIC_SCRIPT")
    assert not is_phase("test-run-001"), "a run id alone is no script"


def test_resuming_phase_goes_on_from_the_run_and_adds_its_own_budget(inside: dict[str, str], tmp_path: Path) -> None:
    resume: dict[str, Any] = {**BASE, "extras": {"mode": "resume_training"}}
    with pytest.raises(ConfigError, match=r"no checkpoint in|is not there"):
        parse_worker_config(resume)
    told = {"algo": "ppo", "args": {"total_timesteps": 1000, "env_id": "CartPole-v1"}}
    write_checkpoint(tmp_path / "checkpoints" / "phase1-CartPole-v1", 1000, told, {})
    (tmp_path / "checkpoints" / "my notes").mkdir()
    config = parse_worker_config(resume)
    assert config.extras["checkpoint_path"] == str(tmp_path / "checkpoints")
    assert (config.extras["additional_timesteps"], config.total_timesteps) == (256, 1256)
    assert config.with_overrides(seed=3).extras["additional_timesteps"] == 256


def test_parameters_of_the_base_algorithm_are_not_another_ones(inside: dict[str, str], tmp_path: Path) -> None:
    params = {"learning_rate": 0.1, "clip_coef": 0.2, "num_envs": 4}
    base = {**BASE, "extras": {"algo_params": params}}
    (tmp_path / "test_config.json").write_text(json.dumps(base))
    assert parse_worker_config(base).algo_params == params
    other = parse_worker_config(base, {"algo": "dqn", "extras": {"algo_params": {"learning_rate": 0.3}}})
    assert other.algo_params == {"learning_rate": 0.3}


def test_refused_phase_leaves_a_record_only_where_the_run_exists(inside: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(tmp_path / "test_config.json")]
    paths = RunPaths("test-run-001", tmp_path)
    for exists in (False, True):
        if exists:
            paths.create()
        done = subprocess.run([*command, "--algo", "ppoo"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and "did you mean 'ppo'" in done.stderr
        assert paths.folder.exists() == exists
    (refused,) = read_phases(paths)
    assert (refused.outcome, refused.exit_code) == ("refused", 2)
    (event,) = replay(paths.events)
    assert (event.event, event.payload["outcome"]) == ("phase", "refused")
    subprocess.run([*command, "--algo", "ppoo", "--dry-run"], cwd=tmp_path, capture_output=True)
    assert len(read_phases(paths)) == 1, "a dry run is no phase"


def test_mirror_follows_its_original(tmp_path: Path) -> None:
    for step in (10, 20):
        write_checkpoint(tmp_path / "original", step, {"algo": "ppo"}, {"state.safetensors": b"x" * step})
    mirror(tmp_path / "original", tmp_path / "copy")
    mirror(tmp_path / "original", tmp_path / "copy")
    assert [path.name for path in find_all(tmp_path / "copy")] == ["20", "10"]
    shutil.rmtree(tmp_path / "original" / "10")
    mirror(tmp_path / "original", tmp_path / "copy")
    assert [path.name for path in find_all(tmp_path / "copy")] == ["20"]
