"""From a run's payload back to the form, and the same run once more."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from web_site import PATIENCE, Site, in_a_loop

from mosaic.contract.errors import ConfigError
from mosaic.web.context import Web
from mosaic.web.forms.again import fill_in, same_again, train_again
from mosaic.web.forms.requests import TrainValues, build_policy_eval_request, build_train_request

FULL: dict[str, Any] = {
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "total_timesteps": 4096,
    "seeds": "7",
    "run_name": "a name",
    "agent_id": "a",
    "worker_id": "w",
    "notes": "n",
    "gpu": False,
    "executor": "slurm",
    "storage_url": "s3://lab/runs",
    "resources": "cpus=4.0\nslurm.partition=gpu\nslurm.exclusive=true\nray.custom.node:10.0.0.1=0.5",
    "fastlane_mode": "grid",
    "fastlane_slot": 2,
    "fastlane_grid_limit": 9,
    "max_restarts": 1,
    "max_duration_minutes": 2.0,
    "tensorboard": False,
    "track_wandb": True,
    "wandb_project_name": "p",
    "wandb_use_vpn_proxy": True,
    "wandb_http_proxy": "http://proxy",
    "params": {"gamma": 0.5, "target_kl": None, "save_model": True, "grace_seconds": 9.0},
    "other": {"telemetry": "off"},
}


def test_a_form_filled_in_from_its_own_payload_is_the_same_form() -> None:
    payload = build_train_request(FULL)
    filled = fill_in(payload)
    again = TrainValues(**{**filled.values, "params": filled.params, "other": filled.other})
    assert build_train_request(again) == payload


def test_a_flat_commands_payload_fills_the_form_too() -> None:
    config = {"algo": "dqn", "env_id": "Acrobot-v1", "total_timesteps": 10, "seed": 0, "extras": {}}
    filled = fill_in({"metadata": {"worker": {"config": config}}})
    assert filled.values["algo"] == "dqn" and filled.values["seeds"] == "0" and not filled.values["gpu"]


def test_an_evaluations_settings_do_not_reach_a_new_training() -> None:
    payload = build_policy_eval_request({"policy_path": "p", "algo": "ppo", "env_id": "CartPole-v1"})
    assert fill_in(payload).other == {}
    with pytest.raises(ConfigError, match="names no algorithm"):
        fill_in({"metadata": {"worker": {"config": {"extras": {}}}}})


def test_the_same_again_is_all_but_the_old_id() -> None:
    payload = build_train_request(FULL)
    kept = {**payload, "metadata": {**payload["metadata"]}}
    kept["metadata"]["worker"]["config"]["run_id"] = "old"
    again = same_again(kept)
    assert "run_id" not in again["metadata"]["worker"]["config"]
    assert kept["metadata"]["worker"]["config"]["run_id"] == "old"
    with pytest.raises(ConfigError, match="was not kept"):
        same_again({})


def test_train_again_starts_a_new_run_with_the_same_config(site: Site) -> None:
    first = site.client.submit_run(
        build_train_request({"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 256})
    )
    web = Web(site.home)
    try:
        second = in_a_loop(train_again(web, first))
    finally:
        web.happenings.close()
    assert second.run_id != first.run_id and second.seed == first.seed
    configs = [
        site.client.get_run(run).payload["metadata"]["worker"]["config"] for run in (first.run_id, second.run_id)
    ]
    assert [one.pop("run_id") for one in configs] == [first.run_id, second.run_id] and configs[0] == configs[1]
    for run in (first, second):
        assert site.client.wait_run(run.run_id, PATIENCE).state == "COMPLETED"


def test_an_imported_runs_form_is_filled_without_what_would_run_code() -> None:
    config = {"algo": "ppo", "env_id": "evilmod:X-v0", "seed": 3, "extras": {"python": "/evil/python", "notes": "n"}}
    payload = {"metadata": {"worker": {"config": config}}}
    filled = fill_in(payload, imported=True)
    assert "env_id" not in filled.values and filled.values["algo"] == "ppo" and filled.other == {}
    assert fill_in(payload).values["env_id"] == "evilmod:X-v0"
    with pytest.raises(ConfigError, match="names no algorithm"):
        fill_in({"metadata": {"worker": {"config": config | {"algo": "/evil.py"}}}}, imported=True)


def test_an_imported_run_is_not_started_again_as_it_is_where_it_names_code() -> None:
    config = {"algo": "ppo", "env_id": "evilmod:X-v0"}
    asked: list[Any] = []

    class Stub:
        """The part of a page's context that is asked for the run and to submit it."""

        async def ask(self, question: Any) -> Any:
            asked.append(question)
            return SimpleNamespace(imported=True, payload={"metadata": {"worker": {"config": config}}})

    with pytest.raises(ConfigError, match="run imported-1 was imported, and would run code that nobody has typed"):
        asyncio.run(train_again(cast(Web, Stub()), "imported-1"))
    assert len(asked) == 1, "nothing was submitted"
