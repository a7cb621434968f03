"""From form values to payloads, without a browser."""

import json
from typing import Any

import pytest

from mosaic.contract.errors import ConfigError
from mosaic.contract.job import JobConfig
from mosaic.web.forms.requests import (
    PolicyValues,
    ResumeValues,
    ScriptValues,
    TrainValues,
    build_policy_eval_request,
    build_resume_request,
    build_script_request,
    build_train_request,
    train_requests,
)

PARAMS = {"gamma": 0.9, "target_kl": None, "anneal_lr": False, "save_model": True, "grace_seconds": 30.0}
TRAIN = TrainValues(algo="ppo", env_id="CartPole-v1", params=PARAMS)


def config_of(payload: dict[str, Any]) -> dict[str, Any]:
    JobConfig.parse(payload)  # the trainer takes it
    return dict(payload["metadata"]["worker"]["config"])


def test_a_training_as_the_form_starts_is_a_smoke_test_on_a_gpu_if_there_is_one() -> None:
    payload = build_train_request(TRAIN)
    config = config_of(payload)
    assert (config["algo"], config["env_id"], config["total_timesteps"]) == ("ppo", "CartPole-v1", 2048)
    assert config["seed"] is None
    assert config["extras"] == {
        "cuda": True,
        "save_model": True,
        "grace_seconds": 30.0,
        "tensorboard_dir": "tensorboard",
        "track_wandb": False,
        "fastlane_video_mode": "single",
        "fastlane_slot": 0,
        "algo_params": {"gamma": 0.9, "target_kl": None, "anneal_lr": False},
    }
    assert payload["resources"] == {"gpus": {"requested": 1, "mandatory": False}}
    assert payload["artifacts"] == {"output_prefix": None, "persist_logs": True, "keep_checkpoints": True}
    assert payload["metadata"]["worker"]["arguments"] == [] and payload["environment"] == {}


def test_every_field_finds_its_place() -> None:
    values = TrainValues(
        **{**vars(TRAIN), "gpu": False, "seeds": "7", "agent_id": "a", "worker_id": "w", "run_name": "first"},
    )
    more = {
        "fastlane_mode": "grid",
        "fastlane_slot": 2,
        "fastlane_grid_limit": 9,
        "tensorboard": False,
        "notes": "why",
        "max_restarts": 3,
        "max_duration_minutes": 1.5,
        "dry_run_only": True,
        "module": "cleanrl_worker.cli",
        "other": {"telemetry": "off"},
        "executor": "slurm",
        "storage_url": "s3://lab/runs",
        "resources": "gpus=2\nmemory_mb=8000\nslurm.time=4:00:00",
    }
    payload = build_train_request({**vars(values), **more})
    extras = config_of(payload)["extras"]
    assert config_of(payload)["seed"] == 7 and payload["run_name"] == "first"
    assert extras["cuda"] is False and extras["storage_url"] == "s3://lab/runs"
    assert payload["resources"] == {
        "gpus": {"requested": 2, "mandatory": False},
        "memory_mb": 8000,
        "slurm": {"time": "4:00:00"},
        "executor": "slurm",
    }
    assert (extras["fastlane_video_mode"], extras["fastlane_slot"], extras["fastlane_grid_limit"]) == ("grid", 2, 9)
    assert extras["notes"] == "why" and extras["telemetry"] == "off" and "tensorboard_dir" not in extras
    assert payload["schedule"]["max_duration_seconds"] == 90 and payload["retry"]["max_restarts"] == 3
    assert payload["metadata"]["ui"] == {"agent_id": "a", "worker_id": "w", "run_mode": "train"}
    worker = payload["metadata"]["worker"]
    assert worker["arguments"] == ["--dry-run", "--emit-summary"] and worker["module"] == "cleanrl_worker.cli"


def test_the_wandb_key_is_an_environment_value_and_nothing_else() -> None:
    values = {**vars(TRAIN), "wandb_api_key": "k" * 40, "wandb_project_name": "p", "wandb_email": "me@x.org"}
    untracked = build_train_request(values)
    assert untracked["environment"] == {} and "wandb_project_name" not in config_of(untracked)["extras"]
    tracked = build_train_request({**values, "track_wandb": True, "wandb_use_vpn_proxy": True})
    assert tracked.pop("environment") == {"WANDB_API_KEY": "k" * 40}
    assert "kkkk" not in json.dumps(tracked) and "kkkk" not in repr(TrainValues(**values))
    extras = tracked["metadata"]["worker"]["config"]["extras"]
    assert extras["track_wandb"] is True and extras["wandb_use_vpn_proxy"] is True
    assert extras["wandb_email"] == "me@x.org" and "wandb_entity" not in extras


@pytest.mark.parametrize(("seeds", "drawn"), [("", None), ("0", None), (" 0 ", None), ("5", 5)])
def test_no_seed_and_0_let_the_worker_draw_one(seeds: str, drawn: int | None) -> None:
    assert config_of(build_train_request({**vars(TRAIN), "seeds": seeds}))["seed"] == drawn


def test_several_seeds_are_a_group_of_runs() -> None:
    payloads = train_requests({**vars(TRAIN), "seeds": "1-2, 7"})
    assert [config_of(payload)["seed"] for payload in payloads] == [1, 2, 7]
    assert {payload["metadata"]["ui"]["group"] for payload in payloads} == {"ppo CartPole-v1 seeds 1-2,7"}
    named = train_requests({**vars(TRAIN), "seeds": "0,1", "run_name": "mine"})
    assert {(payload["run_name"], payload["metadata"]["ui"]["group"]) for payload in named} == {("mine", "mine")}
    with pytest.raises(ConfigError, match="seed takes numbers and ranges"):
        train_requests({**vars(TRAIN), "seeds": "many"})


def test_a_script_has_its_base_config_and_no_module() -> None:
    payload = build_script_request(ScriptValues(**{**vars(TRAIN), "script": "phases.sh", "module": "m", "seeds": "3"}))
    extras = config_of(payload)["extras"]
    assert config_of(payload)["seed"] == 3 and extras["grace_seconds"] == 30.0
    own = {"gamma": 0.9, "target_kl": None, "anneal_lr": False, "save_model": True, "cuda": True}
    assert extras["algo_params"] == own and not {"save_model", "cuda"} & set(extras)
    worker = payload["metadata"]["worker"]
    assert worker["script"] == "phases.sh" and worker["module"] is None
    assert payload["metadata"]["ui"]["run_mode"] == "script" and payload["artifacts"]


def test_a_resumption_sends_only_what_is_changed() -> None:
    payload = build_resume_request(
        ResumeValues(checkpoint_path="/home/x/1024", algo="ppo", additional_timesteps=512, params={"gamma": 0.5})
    )
    config = config_of(payload)
    assert "seed" not in config and "total_timesteps" not in config and config["algo"] == "ppo"
    assert config["extras"]["mode"] == "resume_training" and config["extras"]["additional_timesteps"] == 512
    assert config["extras"]["checkpoint_path"] == "/home/x/1024" and config["extras"]["algo_params"] == {"gamma": 0.5}
    assert payload["artifacts"] and payload["metadata"]["ui"]["run_mode"] == "resume_training"


def test_an_evaluation_tells_the_page_its_batch_and_whether_it_repeats() -> None:
    payload = build_policy_eval_request(PolicyValues(policy_path="p.cleanrl_model"))
    config = config_of(payload)
    assert config["total_timesteps"] == 0 and "seed" not in config and "algo" not in config
    assert config["extras"] == {
        "mode": "policy_eval",
        "policy_path": "p.cleanrl_model",
        "eval_episodes": 50,
        "eval_batch_size": 50,
        "eval_repeat": False,
        "eval_greedy": False,
        "eval_capture_video": False,
        "fastlane_video_mode": "single",
        "fastlane_slot": 0,
    }
    assert payload["artifacts"] and payload["resources"]["gpus"]["requested"] == 0
    ui = payload["metadata"]["ui"]
    assert (ui["run_mode"], ui["eval_batch_size"], ui["eval_repeat"]) == ("policy_eval", 50, False)


def test_an_evaluation_takes_all_of_its_fields() -> None:
    given: dict[str, Any] = {
        "policy_path": "p",
        "algo": "dqn",
        "env_id": "Acrobot-v1",
        "seed": 4,
        "episodes": 7,
        "repeat": True,
        "gamma": 0.5,
        "greedy": True,
        "eval_seed": 0,
        "max_episode_steps": 100,
        "video": True,
    }
    config = config_of(build_policy_eval_request(given))
    assert (config["algo"], config["env_id"], config["seed"]) == ("dqn", "Acrobot-v1", 4)
    extras = config["extras"]
    assert (extras["gamma"], extras["seed_override"], extras["eval_max_episode_steps"]) == (0.5, 0, 100)
    assert extras["eval_repeat"] is True and extras["eval_greedy"] is True and extras["eval_capture_video"] is True
