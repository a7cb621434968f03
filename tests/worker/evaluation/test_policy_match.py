"""Bare policies: their keys choose an algorithm, as a script in CleanRL's style saves them."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

from cleanrl_worker.evaluation.policy_algo import find_algo
from cleanrl_worker.evaluation.policy_loader import read_policy
from cleanrl_worker.evaluation.policy_match import matches
from mosaic.contract.errors import ConfigError


class OwnQNetwork(nn.Module):
    """As a person writes it after CleanRL's `dqn.py`, with a layer for each of `widths`."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        layers = [(nn.Linear(before, after), nn.ReLU()) for before, after in itertools.pairwise(widths)]
        self.network = nn.Sequential(*[part for pair in layers for part in pair][:-1])


class OwnActor(nn.Module):
    """The actor of CleanRL's `td3_continuous_action.py` and `ddpg_continuous_action.py`."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(observations, 256), nn.Linear(256, 256)
        self.fc_mu = nn.Linear(256, actions)
        self.register_buffer("action_scale", torch.full((1, actions), 2.0))
        self.register_buffer("action_bias", torch.zeros(1, actions))


class OwnAgent(nn.Module):
    """The agent of CleanRL's `ppo_continuous_action.py`."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        for name, outputs in (("critic", 1), ("actor_mean", actions)):
            tower = (nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
            setattr(self, name, nn.Sequential(*tower))
        self.actor_logstd = nn.Parameter(torch.zeros(1, actions))


QNET = (4, 120, 84, 2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the shell's process for it: several threads wait for each other when networks are made."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def saved(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def refusal(call: Callable[..., Any], *given: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        call(*given)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "env_id", "content", "algo"),
    [
        ("my_q", "CartPole-v1", lambda: OwnQNetwork(*QNET).state_dict(), "dqn"),
        ("my_actor", "Pendulum-v1", lambda: (OwnActor(3, 1).state_dict(), {}), "ddpg_continuous_action"),
        ("td3_continuous_action", "Pendulum-v1", lambda: (OwnActor(3, 1).state_dict(), {}), "td3_continuous_action"),
        ("ppo_continuous_action", "Pendulum-v1", lambda: OwnAgent(3, 1).state_dict(), "ppo_continuous_action"),
    ],
)
def test_a_policy_in_cleanrls_style_is_one_of_ours(
    name: str, env_id: str, content: Callable[[], Any], algo: str, tmp_path: Path
) -> None:
    path = saved(tmp_path / f"{name}.cleanrl_model", content())
    found = find_algo(path, env_id)
    assert (found.algo, found.env_id) == (algo, env_id)
    assert find_algo(path, env_id, ["no_such", algo]).algo == algo


def test_the_preferred_algorithm_comes_first_where_several_have_the_keys(tmp_path: Path) -> None:
    path, state = tmp_path / "x.cleanrl_model", OwnActor(3, 1).state_dict()
    both = ["ddpg_continuous_action", "td3_continuous_action"]
    assert matches(path, state, {}) == both
    assert matches(path, state, {}, ["td3_continuous_action"]) == both[1:]
    assert matches(path, state, {"exp_name": "td3_continuous_action"}) == both[1:]
    assert matches(path, state, {}, ["td3_continuous_action"], every=True) == both[::-1]
    assert matches(path, state, {}, ["dqn", "/tmp/evil.py"]) == both, "whose keys are others, or who is no algorithm"


def test_shapes_decide_between_networks_with_the_same_keys(tmp_path: Path) -> None:
    """All flat networks in JAX are `Dense_0`, `Dense_1`, …: only the environment tells them apart."""
    shapes = {"Dense_0": (4, 120), "Dense_1": (120, 84), "Dense_2": (84, 2)}
    state = {f"params/{name}/kernel": np.ones(shape, np.float32) for name, shape in shapes.items()}
    state |= {f"params/{name}/bias": np.zeros(shape[1], np.float32) for name, shape in shapes.items()}
    save_file(state, path := tmp_path / "x.cleanrl_model")
    assert {"c51_jax", "dqn_jax"} < {*read_policy(path).candidates}
    assert find_algo(path, "CartPole-v1").algo == "dqn_jax"
    assert find_algo(path, "CartPole-v1", ["c51_jax"]).algo == "dqn_jax", "the preferred one does not act there"


def test_keys_that_fit_no_algorithm_are_listed_in_a_line(tmp_path: Path) -> None:
    path = saved(tmp_path / "my.cleanrl_model", OwnQNetwork(4, 120, 84, 60, 2).state_dict())
    assert refusal(find_algo, path, "CartPole-v1").startswith(
        "policy 'my.cleanrl_model' fits no algorithm here: the network of the nearest, dqn, has no network.6.weight, "
    )
    saved(path, {f"layers.{number}.w": torch.zeros(2) for number in range(9)})
    assert refusal(find_algo, path, "CartPole-v1").endswith(
        "no algorithm's network has its keys: layers.0.w, layers.1.w, layers.2.w, layers.3.w and 5 more"
    )
    saved(path, OwnQNetwork(6, 120, 84, 2).state_dict())
    line = refusal(find_algo, path, "CartPole-v1")
    assert "is not a 'dqn' policy for observations" in line and "size mismatch for network.0.weight" in line


def test_a_bare_file_says_which_settings_to_add(tmp_path: Path) -> None:
    path = saved(tmp_path / "dqn.cleanrl_model", OwnQNetwork(*QNET).state_dict())
    assert refusal(find_algo, path) == (
        "policy 'dqn.cleanrl_model' has no description beside it; add --set env_id=…, the environment of its training, "
        "and --set algo=dqn"
    )
    path = saved(tmp_path / "x.cleanrl_model", (OwnActor(3, 1).state_dict(), {}))
    assert refusal(find_algo, path).endswith(
        "and --set algo=ddpg_continuous_action (its keys also fit td3_continuous_action)"
    )


def test_an_environment_that_its_algorithms_do_not_play_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.cleanrl_model", OwnQNetwork(*QNET).state_dict())
    assert "No-v0" in refusal(find_algo, path, "No-v0")


def test_atoms_that_no_network_of_the_file_has_are_refused_before_one_is_made(tmp_path: Path) -> None:
    state = OwnQNetwork(*QNET).state_dict() | {"atoms": torch.zeros(100_000)}
    path = saved(tmp_path / "c51.cleanrl_model", state)
    assert "atoms is too long for a network of" in refusal(find_algo, path, "CartPole-v1")
