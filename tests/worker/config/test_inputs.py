"""What earlier runs left, as the shell takes it up: nothing that a file names is imported or run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.config.config import CleanRLWorkerConfig, parse_worker_config
from mosaic.contract.checkpoints import sealed, write_checkpoint
from mosaic.contract.errors import ConfigError
from mosaic.contract.events import EventLog
from mosaic.contract.paths import RunPaths

EVIL = "evilmod:X-v0"
STAGES = [{"env_id": "CartPole-v1", "steps": 50}, {"env_id": EVIL}]
ARGS = {"env_id": "CartPole-v1", "seed": 7, "total_timesteps": 300}


def checkpoint(home: Path, run_id: str = "earlier", step: int = 100, **state: Any) -> str:
    saved = {"algo": "ppo", **state, "args": {**ARGS, **state.get("args", {})}}
    return str(write_checkpoint(RunPaths(run_id, home).checkpoints, step, saved, {}))


def policy(home: Path, **sidecar: Any) -> str:
    (home / "x.cleanrl_model").write_bytes(b"weights")
    (home / "x.cleanrl_model.json").write_text(
        json.dumps({"algo": "ppo", "env_id": "CartPole-v1", "seed": 7, **sidecar})
    )
    return str(home / "x.cleanrl_model")


def resumed(source: str, extras: dict[str, Any] | None = None, **fields: Any) -> CleanRLWorkerConfig:
    asked = {"mode": "resume_training", "checkpoint_path": source, "additional_timesteps": 10, **(extras or {})}
    return parse_worker_config({"run_id": "new", **fields, "extras": asked})


def refusal(source: str, extras: dict[str, Any] | None = None, **fields: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        resumed(source, extras, **fields)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 600
    return str(refused.value)


def typed(home: Path, run_id: str, **config: Any) -> None:
    paths = RunPaths(run_id, home)
    paths.config_file.parent.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text(json.dumps({"metadata": {"worker": {"config": config}}}))


@pytest.mark.parametrize("algo", ["/tmp/evil.py", "evil.py", "runs/evil.py", "evil.module", "evil.ppo"])
def test_a_script_or_module_that_a_checkpoint_names_is_not_run(home: Path, algo: str) -> None:
    assert f"names the algorithm '{algo}', which is not built in; add --set algo={algo} if" in refusal(
        checkpoint(home, algo=algo)
    )
    assert resumed(checkpoint(home, "other", algo=algo), algo="ppo").algo == "ppo"


def test_a_script_that_a_sidecar_names_is_not_run_the_keys_choose_an_algorithm(home: Path) -> None:
    mark, path = home / "it-ran", policy(home, algo="/tmp/evil.py")
    (home / "evil.py").write_text(f"open({str(mark)!r}, 'w')")
    assert "cannot be read as a policy" in refusal(policy(home, algo=str(home / "evil.py")))
    assert resumed(path, algo="ppo").algo == "ppo" and not mark.exists()


def test_the_module_of_an_environment_that_a_checkpoint_names_is_not_imported(home: Path) -> None:
    path = checkpoint(home, args={"env_id": EVIL})
    assert refusal(path) == (
        f"checkpoint {path}: state.json names the environment '{EVIL}', which would import 'evilmod'; "
        f"add --set env_id={EVIL} if you trust it"
    )
    assert resumed(path, env_id=EVIL).env_id == EVIL
    assert resumed(path, env_id="CartPole-v1").env_id == "CartPole-v1"


@pytest.mark.parametrize("saved", [{"curriculum_schedule": json.dumps(STAGES)}, {"curriculum_schedule": STAGES}])
def test_the_stages_of_a_curriculum_are_environments_too(home: Path, saved: dict[str, Any]) -> None:
    path = checkpoint(home, args=saved)
    assert "add --set curriculum_schedule=… with this stage" in refusal(path)
    assert "would import 'evilmod'" in refusal(path, env_id="CartPole-v1")
    kept = resumed(path, {"curriculum_schedule": STAGES}, env_id="CartPole-v1")
    assert kept.extras["curriculum_schedule"] == STAGES
    assert "curriculum_schedule" not in resumed(path, env_id="Acrobot-v1").extras
    assert "would import" in refusal(checkpoint(home, "two", args={"curriculum": {"tasks": ["A", EVIL]}}))


def test_a_sidecar_imports_nothing_whoever_plays_its_policy(home: Path) -> None:
    path = policy(home, env_id=EVIL)
    for mode in ("policy_eval", "interactive", "resume_training"):
        asked = {"mode": mode, "policy_path": path}
        with pytest.raises(ConfigError, match=f"policy sidecar .* names the environment '{EVIL}'"):
            parse_worker_config({"extras": asked})
        assert parse_worker_config({"env_id": EVIL, "total_timesteps": 5, "extras": asked}).env_id == EVIL
    nested = policy(home, env_id=None, args={"env_id": EVIL})
    with pytest.raises(ConfigError, match="would import 'evilmod'"):
        parse_worker_config({"extras": {"mode": "policy_eval", "policy_path": nested}})


def test_a_run_that_was_submitted_here_resumes_as_it_was_submitted(home: Path) -> None:
    checkpoint(home, "mine", args={"env_id": EVIL, "curriculum_schedule": json.dumps(STAGES)})
    typed(home, "mine", algo="ppo", env_id=EVIL, extras={"curriculum_schedule": STAGES})
    config = resumed("mine")
    assert config.env_id == EVIL
    assert json.loads(config.extras["curriculum_schedule"]) == STAGES, "the algorithm takes none from the file itself"
    typed(home, "mine", algo="ppo", env_id="othermod:X-v0")
    assert "would import 'evilmod'" in refusal("mine"), "another environment than the one that was typed"


def test_an_imported_run_has_nothing_typed(home: Path) -> None:
    checkpoint(home, "imported", args={"env_id": EVIL})
    assert "would import" in refusal("imported")
    folder = RunPaths("imported", home).folder.rename(home / "copied")
    typed(home, "copied", env_id=EVIL)
    assert "would import" in refusal(str(folder)), "a payload counts for the run's own folder"


def test_no_module_is_imported_and_no_script_runs_on_the_way_to_the_refusal(home: Path) -> None:
    mark = home / "it-ran"
    (home / "evilmod.py").write_text(f"open({str(mark)!r}, 'w')")
    (home / "evil.py").write_text(f"open({str(mark)!r}, 'w')")
    for name, state in (
        ("a", {"args": {"env_id": EVIL}}),
        ("b", {"algo": str(home / "evil.py")}),
        ("c", {"algo": "evil.py"}),
    ):
        (home / "c.json").write_text(
            json.dumps({"extras": {"mode": "resume_training", "checkpoint_path": checkpoint(home, name, **state)}})
        )
        command = [sys.executable, "-m", "cleanrl_worker.cli", "--config", "c.json", "--dry-run"]
        done = subprocess.run(command, cwd=home, capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and "if you trust it" in done.stderr, done
        assert not mark.exists()


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"num_envs": "many"}, "the saved run.num_envs: a whole number is needed, not 'many'"),
        ({"num_envs": [1]}, "the saved run.num_envs"),
        ({"seed": 2**70}, "args.seed: a number from"),
        ({"env_id": 5}, "env_id: "),
        ({"total_timesteps": "x"}, "total_timesteps: "),
    ],
)
def test_arguments_of_another_type_are_refused_in_one_line(home: Path, args: dict[str, Any], reason: str) -> None:
    (home / "c.json").write_text(
        json.dumps({"extras": {"mode": "resume_training", "checkpoint_path": checkpoint(home, args=args)}})
    )
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--config", "c.json", "--dry-run"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done
    assert reason in done.stderr or "are damaged" in done.stderr


def test_a_state_nested_without_end_or_too_large_is_a_damaged_checkpoint(home: Path) -> None:
    path = Path(checkpoint(home))
    for body in (
        b'{"format": 1, "step": 1, "files": ' + b"[" * 10_000,
        b'{"format": 1}',
        b'{"a": "%s"}' % (b"x" * (17 << 20)),
    ):
        (path / "state.json").write_bytes(sealed(body))
        assert "are damaged (100)" in refusal(str(path.parent))


def test_a_finished_run_resumes_only_with_more_steps(home: Path) -> None:
    checkpoint(home, "done", step=300)
    line = refusal("done", {"additional_timesteps": None})
    assert "step 300 of 300 is done" in line and line.endswith("mosaic resume done --additional-timesteps 100000")
    assert "step 300 of 200 is done" in refusal("done", {"additional_timesteps": None}, total_timesteps=200)
    assert resumed("done", {"additional_timesteps": 50}).total_timesteps == 350
    assert resumed("done", {"additional_timesteps": None}, total_timesteps=400).total_timesteps == 400


def test_a_run_that_was_cut_short_after_its_last_step_may_complete_in_its_own_folder(home: Path) -> None:
    checkpoint(home, "new", step=300)
    paths = RunPaths("new", home)
    paths.create()
    asked = {"additional_timesteps": None}
    assert resumed("new", asked).total_timesteps == 300
    with EventLog(paths.events, "new") as log:
        log.append("run_started", {})
        assert resumed("new", asked).total_timesteps == 300
        log.append("run_completed", {})
        assert "nothing is left to train" in refusal("new", asked)
        log.append("run_started", {})
    assert resumed("new", asked).total_timesteps == 300
