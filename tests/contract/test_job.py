"""The trainer payload, nested and flat."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from mosaic.contract.errors import ConfigError
from mosaic.contract.job import JobConfig, parse_resources, show_resources

CONFIG = {
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "seed": 1,
    "total_timesteps": 10000,
    "extras": {"algo_params": {"gamma": 0.9}},
}
FULL: dict[str, Any] = {
    "run_name": "first",
    "entry_point": "python",
    "arguments": ["-m", "cleanrl_worker.cli"],
    "environment": {"WANDB_API_KEY": "very-secret", "ANY_NAME": "1"},
    "resources": {"cpus": 2, "memory_mb": 1024, "gpus": {"requested": 1, "mandatory": True}},
    "artifacts": {"output_prefix": "runs/first", "persist_logs": True, "keep_checkpoints": False},
    "schedule": {"max_duration_seconds": 60, "max_steps": None},
    "retry": {"max_restarts": 2},
    "metadata": {
        "ui": {"agent_id": "a", "worker_id": "w", "run_mode": "train", "eval_batch_size": 50, "eval_repeat": False},
        "worker": {
            "worker_id": "w",
            "module": "cleanrl_worker.cli",
            "arguments": ["--dry-run", "--emit-summary"],
            "use_grpc": True,
            "grpc_target": "127.0.0.1:50055",
            "agent_id": "a",
            "config": CONFIG,
        },
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    payload = copy.deepcopy(FULL)
    *way, last = path.split(".")
    section = payload
    for name in way:
        section = section[name]
    section[last] = value
    return payload


def test_a_full_payload_is_read() -> None:
    job = JobConfig.parse(FULL)
    assert job.worker_config == CONFIG
    assert job.resources.gpus.requested == 1 and job.schedule.max_duration_seconds == 60
    assert job.environment["WANDB_API_KEY"] == "very-secret"
    assert job.metadata.worker.arguments == ["--dry-run", "--emit-summary"]


def test_only_the_worker_config_is_required() -> None:
    job = JobConfig.parse({"metadata": {"worker": {"config": CONFIG}}})
    assert job.worker_config == CONFIG
    assert job.environment == {} and job.artifacts.persist_logs and job.retry.max_restarts == 0
    assert job.schedule.max_duration_seconds is None and not job.resources.gpus.mandatory


@pytest.mark.parametrize(
    "flat", [CONFIG, {"algo": "ppo"}, {"extras": {"mode": "policy_eval"}}, {}, {"algo": "x", "arguments": 1}]
)
def test_a_flat_worker_config_is_taken_as_it_is(flat: dict[str, Any]) -> None:
    assert JobConfig.parse(flat).worker_config == flat


def test_the_job_shares_nothing_with_the_payload_it_came_from() -> None:
    payload = copy.deepcopy(FULL)
    job = JobConfig.parse(payload)
    payload["metadata"]["worker"]["config"]["extras"]["algo_params"]["gamma"] = 0.1
    job.worker_config["extras"]["algo_params"]["gamma"] = 0.2
    assert job.worker_config["extras"]["algo_params"]["gamma"] == 0.9


@pytest.mark.parametrize(
    "payload", [{"metadata": {}}, {"metadata": {"worker": {}}}, {"run_name": "x"}, {"metadata": {"ui": {}}}]
)
def test_a_missing_config_is_named_by_its_whole_path(payload: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^metadata\.worker\.config: missing"):
        JobConfig.parse(payload)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("resource", {}, "resource: unknown field; did you mean 'resources'?"),
        ("resources.gpus.request", 1, "resources.gpus.request: unknown field; did you mean 'requested'?"),
        ("metadata.worker.modul", "x", "metadata.worker.modul: unknown field; did you mean 'module'?"),
        ("metadata.zzz", 1, "metadata.zzz: unknown field"),
        ("metadata.worker.config", [], "metadata.worker.config: a JSON object is needed, not []"),
        ("metadata.worker.config", None, "metadata.worker.config: missing; it holds algo"),
        ("metadata.worker", 3, "metadata.worker: a JSON object is needed, not 3"),
        ("metadata", 3, "metadata: a JSON object is needed, not 3"),
        ("resources.cpus", "2", "resources.cpus: a number above 0 and at most 1,000,000 is needed, not '2'"),
        ("resources.cpus", 0, "resources.cpus: a number above 0 and at most 1,000,000 is needed, not 0"),
        (
            "resources.memory_mb",
            True,
            "resources.memory_mb: a whole number from 1 to 1099511627776 is needed, not True",
        ),
        ("resources.gpus.requested", -1, "resources.gpus.requested: a whole number from 0 to 100000 is needed, not -1"),
        (
            "schedule.max_duration_seconds",
            float("inf"),
            "schedule.max_duration_seconds: a number above 0 and at most 1,000,000,000 is needed, not inf",
        ),
        ("retry.max_restarts", 1.5, "retry.max_restarts: a whole number from 0 to 1000000 is needed, not 1.5"),
        (
            "retry.max_restarts",
            1 << 31,
            "retry.max_restarts: a whole number from 0 to 1000000 is needed, not 2147483648",
        ),
        ("metadata.worker.config.seed", 1.5, "metadata.worker.config.seed: a whole number from 0 to 4294967295"),
        ("metadata.worker.config.seed", [1], "metadata.worker.config.seed: a whole number from 0 to 4294967295"),
        ("metadata.worker.config.seed", 1 << 63, "metadata.worker.config.seed: a whole number from 0"),
        ("metadata.worker.config.total_timesteps", 1e308, "metadata.worker.config.total_timesteps: a whole number"),
        ("environment", {"A=B": "x"}, "environment: a name: a variable name without '=' and NUL is needed"),
        ("environment", {"A": "x\0"}, "environment.A: a text has a NUL"),
        ("run_name", "x" * 301, "run_name: a text (at most 300 characters"),
        ("arguments", "--x", "arguments: a list of at most 10,000 is needed"),
        ("arguments", ["--x", 1], "arguments[1]: a text (at most"),
        ("environment.WANDB_API_KEY", 12345, "environment.WANDB_API_KEY: a text (at most"),
        ("metadata.worker.script", "x.sh", "metadata.worker: give module or script, not both"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line_with_the_path_of_the_field(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        JobConfig.parse(changed(path, value))
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_parts_that_only_the_trainer_enforces_are_named_where_they_ask_for_something() -> None:
    plain = {"metadata": {"worker": {"config": {}}}}
    assert JobConfig.parse(plain).left_to_trainer == ()
    worker = {"config": {}, "arguments": ["--dry-run"], "use_grpc": False, "grpc_target": "there:1"}
    asking = {
        "resources": {"cpus": 2},
        "artifacts": {"persist_logs": True},
        "retry": {"max_restarts": 1},
        "metadata": {"worker": worker},
    }
    expected = ("resources", "retry", "metadata.worker.arguments", "metadata.worker.grpc_target")
    assert JobConfig.parse(asking).left_to_trainer == expected


@pytest.mark.parametrize("payload", [None, [], "text", 3])
def test_what_is_no_object_is_refused(payload: Any) -> None:
    with pytest.raises(ConfigError, match="a config is a JSON object, not"):
        JobConfig.parse(payload)


def test_a_refusal_never_quotes_a_secret() -> None:
    with pytest.raises(ConfigError) as refused:
        JobConfig.parse(changed("environment", {"WANDB_API_KEY": ["very-secret"]}))
    assert "very-secret" not in str(refused.value)
    assert refused.value.__cause__ is None and refused.value.__context__ is None


def test_resources_are_read_as_people_type_them_and_shown_so_again() -> None:
    typed = "cpus=4\n\ngpus=2\nslurm.time=4:00:00\n--slurm.exclusive\nray.custom.node:10.0.0.1 = 0.5\n"
    typed += 'ray.custom.units=1234567\nray.runtime_env.pip=["x"]'
    found = parse_resources(typed)
    assert found == {
        "cpus": 4,
        "gpus": {"requested": 2},
        "slurm": {"time": "4:00:00", "exclusive": True},
        "ray": {"custom": {"node:10.0.0.1": 0.5, "units": 1234567}, "runtime_env": {"pip": ["x"]}},
    }
    assert parse_resources("\n".join(show_resources({**found, "executor": "ray"}))) == found
    assert parse_resources(json.dumps(found)) == found and parse_resources(" ") == {} and show_resources({}) == []


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("cpu=4", "did you mean 'cpus'"),
        ("cpus=-1", "resources.cpus: "),
        ("cpus", "takes KEY=VALUE, not 'cpus'; for example: cpus=4"),
        ("gpus=many", "gpus takes a number, such as gpus=2, not 'many'"),
        ("executor=ray", "has a place of its own"),
        ("slurm.api_token=x", "looks like a secret"),
        ("gpus=1\ngpus.mandatory=true\nslurm=1\nslurm.time=1", "as a whole and in parts"),
        ("ray.costum.a100=1", "did you mean 'custom'"),
        ("{cpus: 4}", "no JSON object"),
    ],
)
def test_resources_that_cannot_be_read_are_refused_in_a_line(typed: str, words: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_resources(typed)
    assert words in str(told.value) and "\n" not in str(told.value)
