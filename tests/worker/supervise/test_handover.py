"""What the shell checks and passes on before it becomes a session."""

import json
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.config.config import parse_worker_config
from cleanrl_worker.schema import parameters
from cleanrl_worker.supervise.handover import make_plan
from mosaic.contract.errors import ConfigError


def argv(extras: dict[str, Any] | None = None, **fields: Any) -> list[str]:
    document = {"run_id": "r", "seed": 1, **fields, "extras": {"mode": "interactive", **(extras or {})}}
    return list(make_plan(parse_worker_config(document)).argv)


@pytest.fixture
def policy(home: Path) -> Path:
    """A policy file that nobody reads here, with a sidecar."""
    path = home / "ppo.cleanrl_model"
    path.write_bytes(b"x")
    (home / "ppo.cleanrl_model.json").write_text(json.dumps({"algo": "ppo", "env_id": "CartPole-v1", "seed": 9}))
    return path


def test_person_alone_needs_no_algorithm(home: Path) -> None:
    assert argv(env_id="CartPole-v1") == ["--run-id=r", "--env-id=CartPole-v1", "--seed=1"]
    assert argv(env_id="Pendulum-v1", algo="ppo") == ["--run-id=r", "--env-id=Pendulum-v1", "--seed=1"]


def test_sidecar_fills_what_is_left_out(policy: Path) -> None:
    expected = ["--run-id=r", "--env-id=CartPole-v1", "--seed=9", f"--policy-path={policy}"]
    expected += ["--env-backend=auto", "--algo=ppo"]
    assert argv({"policy_path": policy.name}, seed=None) == expected
    assert argv({"policy_path": policy.name, "eval_greedy": True}, env_id="Acrobot-v1")[1] == "--env-id=Acrobot-v1"
    assert argv({"policy_path": policy.name, "eval_greedy": True})[-1] == "--greedy"


def test_file_without_sidecar_is_left_to_the_session(policy: Path) -> None:
    bare = policy.rename(policy.with_name("bare.cleanrl_model"))
    assert argv({"policy_path": bare.name}, env_id="CartPole-v1")[-2] == f"--policy-path={bare}"
    with pytest.raises(ConfigError, match="cannot be read as a policy"):
        argv({"policy_path": bare.name})
    with pytest.raises(ConfigError, match="nothing to play"):
        argv({})


def test_policy_whose_package_is_missing_is_refused(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "package_exists", lambda name: name != "jax")
    with pytest.raises(ConfigError, match="algo 'ppo_jax' needs jax, which is not installed: pip install"):
        argv({"policy_path": policy.name}, algo="ppo_jax")


def test_environment_that_the_policy_cannot_drive_is_refused(policy: Path) -> None:
    with pytest.raises(ConfigError, match="'ppo' drives discrete actions, but 'Pendulum-v1' takes continuous"):
        argv({"policy_path": policy.name}, env_id="Pendulum-v1")


def test_policy_is_played_by_the_backend_of_its_training_or_who_has_the_environment(policy: Path) -> None:
    known = {"algo": "sac_continuous_action", "env_id": "CheetahRun-v1", "args": {"env_backend": "envpool"}}
    policy.with_name(f"{policy.name}.json").write_text(json.dumps(known))
    assert "--env-backend=envpool" in argv({"policy_path": policy.name})
    assert "--env-backend=gymnasium" in argv({"policy_path": policy.name}, env_id="dm_control/cheetah-run-v0")
    asked = argv({"policy_path": policy.name, "env_backend": "gymnasium"}, env_id="HalfCheetah-v5")
    assert "--env-backend=gymnasium" in asked


def test_policy_of_another_family_is_refused(policy: Path) -> None:
    with pytest.raises(ConfigError, match="'CartPole-v1' is none"):
        argv({"policy_path": policy.name}, algo="ppo_atari")
