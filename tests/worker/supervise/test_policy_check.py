"""The dry run reads a policy: one that is hostile or does not fit is refused before there is a run."""

import io
import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from cleanrl_worker.algorithms import dqn, ppo
from cleanrl_worker.config.config import parse_worker_config
from cleanrl_worker.runtime import CleanRLWorkerRuntime
from cleanrl_worker.supervise.handover import hand_over
from mosaic.contract.errors import ConfigError
from mosaic.contract.paths import RunPaths

CARTPOLE = SimpleNamespace(
    single_observation_space=gym.spaces.Box(-1, 1, (4,), np.float32), single_action_space=gym.spaces.Discrete(2)
)


@pytest.fixture
def policy(home: Path) -> Path:
    path = home / "dqn.cleanrl_model"
    torch.save(dqn.QNetwork(CARTPOLE).state_dict(), path)
    Path(f"{path}.json").write_text(json.dumps({"algo": "dqn", "env_id": "CartPole-v1", "seed": 1, "args": {}}))
    return path


def dry_run(extras: dict[str, Any], **fields: Any) -> None:
    config = parse_worker_config({"run_id": "r", **fields, "extras": extras})
    if config.mode == "interactive":
        hand_over(config, dry_run=True)
    else:
        CleanRLWorkerRuntime(config, dry_run=True).run()


def asked(mode: str, path: Path) -> dict[str, Any]:
    more = {"additional_timesteps": 100} if mode == "resume_training" else {}
    return {"mode": mode, "policy_path": str(path), **more}


MODES = ("policy_eval", "resume_training", "interactive")


@pytest.mark.parametrize("mode", MODES)
def test_a_policy_that_fits_passes_and_nothing_is_written(mode: str, home: Path, policy: Path) -> None:
    dry_run(asked(mode, policy))
    assert not (home / "var" / "trainer").exists()


def half(path: Path) -> None:
    torch.save({name: value.half() for name, value in dqn.QNetwork(CARTPOLE).state_dict().items()}, path)


def of_another_algorithm(path: Path) -> None:
    torch.save(ppo.make_agent("separate", CARTPOLE, mission=False, memory=False).state_dict(), path)


def inflating(path: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x/data.pkl", bytes(10**8))
    path.write_bytes(data.getvalue())


class Trap:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("it-ran"),)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (half, "network.0.weight is float16; the weights of policies are float32"),
        (of_another_algorithm, "is not a 'dqn' policy for observations"),
        (inflating, "its members are compressed"),
        (lambda path: torch.save({"w": Trap()}, path), "loading it could run code"),
        (lambda path: path.write_bytes(b"hello"), "neither a torch nor a safetensors file"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_an_unfit_or_hostile_policy_is_refused_in_one_line(
    mode: str, spoil: Any, reason: str, home: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    spoil(policy)
    with pytest.raises(ConfigError, match=reason) as refused:
        dry_run(asked(mode, policy))
    assert "\n" not in str(refused.value) and not (home / "it-ran").exists()
    assert not (home / "var" / "trainer").exists()


def test_a_policy_of_another_environment_is_refused(home: Path, policy: Path) -> None:
    with pytest.raises(ConfigError, match="is not a 'dqn' policy for observations"):
        dry_run(asked("policy_eval", policy), env_id="Acrobot-v1")


def test_a_dry_run_of_a_training_starts_no_process_for_a_policy(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cleanrl_worker.config.policy_ask.subprocess.run", lambda *_, **__: pytest.fail("it did"))
    dry_run({}, algo="ppo", env_id="CartPole-v1", total_timesteps=1000)


def of_a_script(home: Path, **sidecar: Any) -> Path:
    """The policy that a run of a script saved; the script's name tells no algorithm."""
    paths = RunPaths("mine", home)
    path = paths.policies / "CartPole-v1__my_q__1__7" / "my_q.cleanrl_model"
    path.parent.mkdir(parents=True)
    torch.save(dqn.QNetwork(CARTPOLE).state_dict(), path)
    config = {"algo": str(home / "my_q.py"), "env_id": "CartPole-v1", "seed": 5, "total_timesteps": 900}
    paths.config_file.parent.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text(json.dumps({"metadata": {"worker": {"config": config}}}))
    if sidecar:
        Path(f"{path}.json").write_text(json.dumps(sidecar))
    return path


def test_a_scripts_policy_is_evaluated_by_the_algorithm_that_has_its_keys(home: Path) -> None:
    path = of_a_script(home, algo="my_q", env_id="CartPole-v1", seed=6, args={"exp_name": "my_q"})
    config = parse_worker_config({"run_id": "r", "extras": asked("policy_eval", path)})
    assert (config.algo, config.env_id, config.seed) == ("dqn", "CartPole-v1", 6)
    assert "--algo=dqn" in CleanRLWorkerRuntime(config, dry_run=True).plan.argv


def test_a_scripts_run_is_a_warm_start_and_is_played_without_a_sidecar(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, questions = of_a_script(home), []

    def find_algo(*question: Any) -> tuple[str, str]:
        questions.append(question)
        return "dqn", "CartPole-v1"

    monkeypatch.setattr("cleanrl_worker.config.policy_ask.find_algo", find_algo)
    extras = {"mode": "resume_training", "checkpoint_path": "mine", "additional_timesteps": 100}
    config = parse_worker_config({"run_id": "r", "extras": extras})
    assert (config.algo, config.env_id, config.seed, config.total_timesteps) == ("dqn", "CartPole-v1", 5, 100)
    plan = CleanRLWorkerRuntime(config, dry_run=True).plan
    assert f"--resume={path}" in plan.argv
    for given in ({}, {"algo": str(home / "my_q.py")}):  # a form repeats what the run was submitted with
        config = parse_worker_config({"run_id": "r", **given, "extras": asked("interactive", path)})
        assert (config.algo, config.env_id, config.seed) == ("dqn", "CartPole-v1", 5)
    assert [question[:2] for question in questions] == [(path, "CartPole-v1")] * 3
    assert all("my_q" in question[2] for question in questions)
    assert parse_worker_config({"run_id": "r", "algo": "pqn", "extras": extras}).algo == "pqn", "as somebody says"
