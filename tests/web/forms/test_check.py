"""The dry run before a submission, by the real worker; which field a refusal is about."""

from pathlib import Path
from typing import Any

import pytest

from mosaic.contract.workers import discover_workers
from mosaic.web.forms.check import dry_run, faulty_field
from mosaic.web.forms.requests import TrainValues, build_policy_eval_request, build_resume_request, build_train_request

WORKER = discover_workers()[0]["cleanrl"]
KNOWN = (
    *("algo", "env_id", "total_timesteps", "seeds", "gamma", "num_envs", "fastlane_slot", "max_duration_minutes"),
    *("checkpoint_path", "policy_path", "episodes", "run_name", "script"),
)


def payload(**changes: Any) -> dict[str, Any]:
    return build_train_request({"algo": "ppo", "env_id": "CartPole-v1", **changes})


def test_a_good_form_is_told_what_would_run_and_nothing_is_written(tmp_path: Path) -> None:
    checked = dry_run(payload(params={"gamma": 0.5}), WORKER, tmp_path)
    assert checked.ok and "--gamma=0.5" in checked.output and "cleanrl_worker.algorithms.ppo" in checked.output
    assert "runs/<RUN>" in checked.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"env_id": "Pendulum-v1"}, "env_id"),
        ({"env_id": "Nowhere-v9"}, "env_id"),
        ({"algo": "ppoo"}, "algo"),
        ({"total_timesteps": 0}, "total_timesteps"),
        ({"params": {"gamma": "high"}}, "gamma"),
        ({"params": {"num_envs": 0}}, "num_envs"),
        ({"seeds": str(2**32)}, "seeds"),
        ({"max_duration_minutes": -1.0}, "max_duration_minutes"),
        ({"fastlane_slot": -1}, "fastlane_slot"),
    ],
)
def test_a_refusal_names_the_field_that_is_to_be_mended(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    checked = dry_run(payload(**changes), WORKER, tmp_path)
    assert not checked.ok and checked.error and "\n" not in checked.error
    assert faulty_field(checked.error, KNOWN) == field, checked.error


def test_what_a_run_goes_on_from_or_plays_must_be_there(tmp_path: Path) -> None:
    resumed = dry_run(build_resume_request({"checkpoint_path": "gone"}), WORKER, tmp_path)
    assert faulty_field(resumed.error, KNOWN) == "checkpoint_path", resumed.error
    played = dry_run(build_policy_eval_request({"policy_path": "gone"}), WORKER, tmp_path)
    assert faulty_field(played.error, KNOWN) == "policy_path", played.error


def test_a_key_reaches_the_dry_run_by_its_environment_only(tmp_path: Path) -> None:
    values = TrainValues(algo="ppo", env_id="CartPole-v1", track_wandb=True, wandb_api_key="k" * 40)
    checked = dry_run(build_train_request(values), WORKER, tmp_path)
    assert checked.ok and "kkkk" not in checked.output


def test_without_a_worker_it_is_said_what_to_install(tmp_path: Path) -> None:
    assert "pip install mosaic-rl" in dry_run(payload(), None, tmp_path).error


def test_a_refusal_that_names_no_field_marks_none() -> None:
    assert faulty_field("the worker gave no reason", KNOWN) is None
