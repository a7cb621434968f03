"""The equivalent command, read back by the command itself and by the worker."""

import copy
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.config.config import parse_worker_config
from cleanrl_worker.plan.command import build_args
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from mosaic import cli
from mosaic.commands.run import resume, train
from mosaic.commands.run.settings import find_schema, payload_of
from mosaic.contract.paths import RunPaths
from mosaic.web.forms.command_line import policy_command, resume_command, setting, train_command
from mosaic.web.forms.requests import (
    PolicyValues,
    ResumeValues,
    ScriptValues,
    TrainValues,
    build_policy_eval_request,
    build_resume_request,
    train_requests,
)
from mosaic.web.forms.rows import read_all, schema_rows

ROWS = schema_rows(find_schema("ppo"))
PARAMS, _ = read_all(ROWS.values(), {"target_kl": "0.02", "anneal_lr": False, "exp_name": "it's 1"})
FULL = TrainValues(
    algo="ppo",
    env_id="CartPole-v1",
    total_timesteps=4096,
    seeds="1-3",
    params={**PARAMS, "grace_seconds": 5.0},
    run_name="a name; rm -rf $HOME",
    agent_id="007",
    worker_id="w 1",
    notes="line one\nline 'two'",
    gpu=False,
    fastlane_mode="grid",
    fastlane_slot=1,
    fastlane_grid_limit=9,
    max_restarts=2,
    max_duration_minutes=0.5,
    dry_run_only=True,
    track_wandb=True,
    wandb_project_name="true",
    wandb_entity="me",
    wandb_email="me@example.org",
    wandb_use_vpn_proxy=True,
    wandb_http_proxy="http://proxy:3128",
)


def words_of(line: str) -> list[str]:
    words = shlex.split(line)
    return words[words.index("mosaic") + 1 :]


def typed(line: str) -> list[dict[str, Any]]:
    """The payloads that the command would submit."""
    args = cli.parser().parse_args(words_of(line))
    found = [payload_of(config, args) for config in train.build_configs(args, find_schema(args.algo))]
    return [copy.deepcopy(one) for one in found]


def as_worker_sees(payload: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """The algorithm's flags over the defaults, and the worker's own settings."""
    config = parse_worker_config({**payload["metadata"]["worker"]["config"], "run_id": "x"})
    flags = {field["name"]: str(field["default"]).lower() for field in find_schema("ppo")["fields"]}
    for flag in build_args(config, RunPaths("x", "/home"), DEFAULT_ALGO_REGISTRY):
        name, equals, value = (
            flag.removeprefix("--").replace("-", "_", flag.partition("=")[0].count("-")).partition("=")
        )
        off = name.startswith("no_") and not equals
        flags[name.removeprefix("no_") if off else name] = value.lower() if equals else str(not off).lower()
    own = {name: value for name, value in config.extras.items() if name not in (*ROWS, "algo_params", "cuda")}
    return flags, own


def same_run(typed_payload: dict[str, Any], formed: dict[str, Any]) -> None:
    (flags, own), (form_flags, form_own) = as_worker_sees(typed_payload), as_worker_sees(formed)
    if typed_payload["metadata"]["worker"]["config"].get("seed") is None:  # each draws its own
        assert flags.pop("seed") and form_flags.pop("seed")
    assert flags == form_flags
    usual = {"fastlane_video_mode": "single", "fastlane_slot": 0, "track_wandb": False}
    assert {**usual, **own} == {**usual, **form_own}


def test_the_form_as_it_starts_can_be_typed() -> None:
    values = TrainValues(algo="ppo", env_id="CartPole-v1", params=read_all(ROWS.values(), {})[0])
    line = train_command(values, ROWS)
    assert line == (
        "mosaic train ppo CartPole-v1 --set total_timesteps=2048 --set save_model=true "
        "--set tensorboard_dir=tensorboard --gpus 1"
    )
    (payload,) = typed(line)
    same_run(payload, train_requests(values)[0])
    assert payload["resources"] == {"gpus": {"requested": 1}}


def test_everything_that_a_form_can_say_can_be_typed() -> None:
    payloads, formed = typed(train_command(FULL, ROWS)), train_requests(FULL)
    assert len(payloads) == 3 == len(formed)
    for payload, form in zip(payloads, formed, strict=True):
        extras = payload["metadata"]["worker"]["config"]["extras"]
        assert extras.pop("agent_id") == "007" == form["metadata"]["ui"]["agent_id"]
        assert extras.pop("max_restarts") == form["retry"]["max_restarts"]
        same_run(payload, form)
        assert payload["run_name"] == form["run_name"] == "a name; rm -rf $HOME"
        assert payload["metadata"]["worker"]["config"]["seed"] == form["metadata"]["worker"]["config"]["seed"]
        assert payload["metadata"]["worker"]["worker_id"] == "w 1"
        assert payload["metadata"]["worker"]["arguments"] == form["metadata"]["worker"]["arguments"]
        assert payload["schedule"]["max_duration_seconds"] == form["schedule"]["max_duration_seconds"] == 30


def test_secrets_are_left_out_and_their_place_is_shown() -> None:
    values = replace(FULL, wandb_api_key="k" * 40, wandb_https_proxy="http://me:word@proxy:1")
    line = train_command(values, ROWS)
    assert line.startswith("WANDB_API_KEY=… mosaic train") and "kkkk" not in line and "word" not in line


@pytest.mark.parametrize("value", ["plain", "12", "true", "Null", '"quoted"', "[1]", "a=b", " 1e5", "", 3, 0.5, False])
def test_a_setting_is_read_back_as_it_was(value: Any) -> None:
    from mosaic.contract.settings import parse_setting

    assert parse_setting(setting("x", value)) == ("x", value)


def test_a_resumption_can_be_typed(tmp_path: Path) -> None:
    values = ResumeValues(
        checkpoint_path="/some where/1024",
        algo="ppo",
        additional_timesteps=512,
        seed=3,
        params={"gamma": 0.5, "anneal_lr": False},
        tensorboard=False,
    )
    args = cli.parser().parse_args(words_of(resume_command(values, ROWS)))
    assert args.command is resume.resume and args.source == "/some where/1024"
    assert args.additional_timesteps == 512 and args.gpus == 1
    config = build_resume_request(values)["metadata"]["worker"]["config"]
    assert train.parse_settings(args.settings) == {"seed": config["seed"], **config["extras"]["algo_params"]}


def test_an_evaluation_can_be_typed() -> None:
    values = PolicyValues(
        policy_path="/x/p.cleanrl_model",
        algo="ppo",
        env_id="Acrobot-v1",
        seed=1,
        episodes=7,
        repeat=True,
        greedy=True,
        video=True,
        eval_seed=9,
        max_episode_steps=10,
        fastlane_mode="off",
    )
    line = policy_command(values, {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1})
    args = cli.parser().parse_args(words_of(line))
    settings = train.parse_settings(args.settings)
    assert (args.source, args.episodes, args.greedy, args.video) == ("/x/p.cleanrl_model", 7, True, True)
    extras = build_policy_eval_request(values)["metadata"]["worker"]["config"]["extras"]
    assert settings.pop("env_id") == "Acrobot-v1"
    assert settings and all(extras[name] == value for name, value in settings.items())


def test_a_script_can_be_typed() -> None:
    values = ScriptValues(**{**vars(FULL), "script": "my script.sh", "seeds": "4"})
    args = cli.parser().parse_args(words_of(train_command(values, ROWS)))
    assert args.command is resume.script and (args.script, args.algo) == ("my script.sh", "ppo")
    assert "seed=4" in args.settings
