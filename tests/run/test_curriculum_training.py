"""Training through a curriculum from Python."""

from pathlib import Path

import pytest

from cleanrl_worker.envs.curriculum import BABYAI_DOORKEY_CURRICULUM
from cleanrl_worker.run.curriculum_training import run_curriculum_training
from mosaic.contract.errors import ConfigError
from mosaic.contract.metrics import read_rows

SMALL = {"total_timesteps": 192, "num_envs": 2, "num_steps": 32, "num_minibatches": 2, "cuda": False}


def test_all_stages_of_a_schedule_are_trained(tmp_path: Path) -> None:
    schedule = [{**stage, "steps": 64} for stage in BABYAI_DOORKEY_CURRICULUM[:3]]
    run_curriculum_training(schedule, run_dir=tmp_path, seed=2, **SMALL)
    rows = [row for row in read_rows(tmp_path / "metrics.jsonl") if "curriculum/stage" in row]
    assert {row["step"]: row["curriculum/stage"] for row in rows} == {0: 0, 64: 1, 128: 2, 192: 2}


def test_what_it_does_not_know_is_refused_in_one_line(tmp_path: Path) -> None:
    schedule = [{"env_id": "CartPole-v1"}]
    for options, message in (
        ({"algo": "ppoo"}, "unknown algo 'ppoo'"),
        ({"gama": 0.9}, "unexpected keyword argument 'gama'"),
        ({"schedule": [{}]}, "schedule, stage 1: env_id"),
    ):
        with pytest.raises(ConfigError) as caught:
            run_curriculum_training(**({"schedule": schedule, "run_dir": tmp_path} | options))
        assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
