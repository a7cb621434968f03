"""Policy files: ours, CleanRL's, damaged and hostile ones."""

import json
import os
import pickle
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cleanrl_worker.nets.jax.trees import tree_of

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.numpy import save
from torch import nn

from cleanrl_worker.algorithms import (
    c51,
    c51_atari,
    dqn,
    dqn_atari,
    ppo_atari_envpool,
    ppo_atari_lstm,
    ppo_continuous_action,
    pqn,
    qdagger_dqn_atari_impalacnn,
    rainbow_atari,
    sac_atari,
    sac_continuous_action,
    td3_continuous_action,
)
from cleanrl_worker.envs.play import for_episode
from cleanrl_worker.evaluation import policy_loader
from cleanrl_worker.evaluation.policy_loader import SavedPolicy, build_policy, read_policy
from cleanrl_worker.learn import dqn_files
from cleanrl_worker.nets.mlp import MLPAgent, SeparateMLPAgent
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from mosaic.contract.errors import ConfigError

CARTPOLE = SimpleNamespace(
    single_observation_space=gym.spaces.Box(-np.inf, np.inf, (4,), np.float32),
    single_action_space=gym.spaces.Discrete(2),
)
PENDULUM = SimpleNamespace(
    single_observation_space=gym.spaces.Box(-np.inf, np.inf, (3,), np.float32),
    single_action_space=gym.spaces.Box(-2.0, 2.0, (1,), np.float32),
)
ATARI = SimpleNamespace(
    single_observation_space=gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), single_action_space=gym.spaces.Discrete(6)
)
NETWORKS = {
    "ppo": (SeparateMLPAgent, CARTPOLE),
    "dqn": (dqn.QNetwork, CARTPOLE),
    "c51": (partial(c51.QNetwork, atoms=torch.linspace(-5, 5, 11)), CARTPOLE),
    "pqn": (pqn.QNetwork, CARTPOLE),
    "ppo_continuous_action": (ppo_continuous_action.Agent, PENDULUM),
    "sac_continuous_action": (sac_continuous_action.Actor, PENDULUM),
    "td3_continuous_action": (td3_continuous_action.Actor, PENDULUM),
    "ppo_atari_envpool": (ppo_atari_envpool.Agent, ATARI),
    "ppo_atari_lstm": (ppo_atari_lstm.Agent, ATARI),
    "dqn_atari": (dqn_atari.QNetwork, ATARI),
    "c51_atari": (partial(c51_atari.QNetwork, atoms=torch.linspace(-5, 5, 11)), ATARI),
    "rainbow_atari": (partial(rainbow_atari.QNetwork, atoms=torch.linspace(-5, 5, 11)), ATARI),
    "sac_atari": (sac_atari.Actor, ATARI),
    "qdagger_dqn_atari_impalacnn": (qdagger_dqn_atari_impalacnn.QNetwork, ATARI),
}


def saved(path: Path, content: Any, **sidecar: Any) -> Path:
    torch.save(content, path)
    if sidecar:
        path.with_name(path.name + ".json").write_text(json.dumps(sidecar))
    return path


EPSILON_GREEDY = ("dqn", "c51", "pqn", "dqn_atari", "c51_atari", "rainbow_atari", "qdagger_dqn_atari_impalacnn")


def rows(spaces: Any, count: int = 5) -> np.ndarray:
    rng = np.random.default_rng(0)
    space = spaces.single_observation_space
    return (rng.random((count, *space.shape)) * (255 if space.dtype == np.uint8 else 1)).astype(space.dtype)


def refusal(path: Path, spaces: Any = None, **given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        found = read_policy(path, **given)
        build_policy(found, spaces)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_every_registry_algorithm_has_policies() -> None:
    assert set(DEFAULT_ALGO_REGISTRY) <= set(policy_loader.policy_algos())


@pytest.mark.parametrize("algo", NETWORKS)
def test_bare_state_dict_of_cleanrl_tells_its_algorithm_and_acts(algo: str, tmp_path: Path) -> None:
    network, spaces = NETWORKS[algo]
    path = saved(tmp_path / f"{algo}.cleanrl_model", network(spaces).state_dict())
    found = read_policy(path, env_id="E-v1")
    assert (found.algo, found.env_id, found.args, found.statistics) == (algo, "E-v1", {}, None)
    policy = build_policy(found, spaces)
    greedy, again = (for_episode(policy)(rows(spaces), None) for _ in range(2))
    assert np.array_equal(greedy, again) and len(greedy) == 5
    first, second, other = (for_episode(policy)(rows(spaces), np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, second)
    assert algo in EPSILON_GREEDY or not np.array_equal(first, other)
    assert all(spaces.single_action_space.contains(action) for action in (*greedy, *first))


def test_shared_network_is_told_by_its_keys(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.cleanrl_model", MLPAgent(CARTPOLE).state_dict(), algo="ppo", env_id="CartPole-v1")
    assert build_policy(read_policy(path), CARTPOLE)(rows(CARTPOLE), None).shape == (5,)


def test_sidecar_fills_in_and_the_caller_wins(tmp_path: Path) -> None:
    known = {"algo": "dqn", "env_id": "CartPole-v1", "seed": 3, "step": 9, "args": {"end_e": 0.5}}
    path = saved(tmp_path / "x.cleanrl_model", dqn.QNetwork(CARTPOLE).state_dict(), **known)
    found = read_policy(path)
    assert (found.algo, found.env_id, found.seed, found.step, found.args) == tuple(known.values())
    assert read_policy(path, env_id="Other-v0", algo="cleanrl.ppo").env_id == "Other-v0"
    sampled = build_policy(found, CARTPOLE)(np.zeros((1000, 4), np.float32), np.random.default_rng(0))
    assert 0.15 < np.mean(sampled != sampled.max()) < 0.35 or 0.15 < np.mean(sampled != sampled.min()) < 0.35


def test_frozen_statistics_normalise_and_clip_the_observations(tmp_path: Path) -> None:
    agent = ppo_continuous_action.Agent(PENDULUM)
    with torch.no_grad():
        agent.actor_mean[4].weight.mul_(100)
    statistics = {"mean": [1.0, 2.0, 3.0], "var": [4.0, 0.25, 1.0]}
    known = {"algo": "ppo_continuous_action", "env_id": "Pendulum-v1", "observation_statistics": statistics}
    path = saved(tmp_path / "x.cleanrl_model", agent.state_dict(), **known)
    obs = np.array([[1.5, 2.5, 100.0]], np.float32)
    expected = agent.actor_mean(torch.tensor([[0.25, 1.0, 10.0]])).clamp(-2, 2).detach().numpy()
    assert np.allclose(build_policy(read_policy(path), PENDULUM)(obs, None), expected, atol=1e-5)


def test_c51_brings_its_args_in_the_file(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2 * 11))
    state = {f"network.{key}": value for key, value in network.state_dict().items()}
    state["atoms"] = torch.linspace(-5, 5, 11)
    args = {"exp_name": "c51", "env_id": "CartPole-v1", "seed": 4, "n_atoms": 11, "v_min": -5, "v_max": 5}
    found = read_policy(saved(tmp_path / "c51.cleanrl_model", {"model_weights": state, "args": args}))
    assert (found.algo, found.env_id, found.seed) == ("c51", "CartPole-v1", 4)
    obs = rows(CARTPOLE)
    pmfs = network(torch.from_numpy(obs)).view(5, 2, 11).softmax(dim=2)
    expected = (pmfs * torch.linspace(-5, 5, 11)).sum(dim=2).argmax(dim=1)
    assert build_policy(found, CARTPOLE)(obs, None).tolist() == expected.tolist()


@pytest.mark.parametrize("limits", [(1,), (1, 1), (2, 1)], ids=["plain", "a row", "a row per environment"])
@pytest.mark.parametrize("algo", ["ddpg_continuous_action", "td3_continuous_action"])
def test_the_actor_is_first_in_the_tuples_of_ddpg_and_td3(algo: str, limits: tuple[int, ...], tmp_path: Path) -> None:
    sizes = {"fc1": (3, 256), "fc2": (256, 256), "fc_mu": (256, 1)}
    layers = {name: nn.Linear(*size) for name, size in sizes.items()}
    actor = {f"{name}.{key}": value for name, layer in layers.items() for key, value in layer.state_dict().items()}
    actor |= {"action_scale": torch.full(limits, 2.0), "action_bias": torch.zeros(limits)}
    critic = nn.Linear(4, 1).state_dict()
    content = (actor, critic) if algo.startswith("ddpg") else (actor, critic, critic)
    found = read_policy(saved(tmp_path / "x.cleanrl_model", content), algo=algo, env_id="Pendulum-v1")
    x = torch.from_numpy(rows(PENDULUM))
    expected = 2 * layers["fc_mu"](layers["fc2"](layers["fc1"](x).relu()).relu()).tanh()
    assert np.allclose(build_policy(found, PENDULUM)(rows(PENDULUM), None), expected.detach().numpy(), atol=1e-6)


def test_cleanrl_jax_file_is_read(tmp_path: Path) -> None:
    serialization = pytest.importorskip("flax.serialization")
    sizes = (4, 120, 84, 2)
    params = {
        f"Dense_{index}": {"kernel": np.ones((a, b), np.float32), "bias": np.arange(b, dtype=np.float32)}
        for index, (a, b) in enumerate(pairwise(sizes))
    }
    path = tmp_path / "dqn_jax.cleanrl_model"
    path.write_bytes(serialization.to_bytes({"params": params}))
    found = read_policy(path, env_id="CartPole-v1")
    assert found.algo == "dqn_jax"
    assert build_policy(found, CARTPOLE)(rows(CARTPOLE), None).tolist() == [1] * 5


def dense(*sizes: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    layers = {
        f"Dense_{index}": {"kernel": rng.normal(size=size).astype(np.float32), "bias": np.zeros(size[1], np.float32)}
        for index, size in enumerate(pairwise(sizes))
    }
    return {"params": layers}


def test_cleanrl_jax_file_for_images_is_read(tmp_path: Path) -> None:
    from flax.serialization import to_bytes

    torch.manual_seed(0)
    network = dqn_atari.QNetwork(ATARI)
    weights = dqn_files.as_flax({name: tensor.numpy() for name, tensor in network.state_dict().items()})
    path = tmp_path / "dqn_atari_jax.cleanrl_model"
    path.write_bytes(to_bytes(tree_of(weights)))
    found = read_policy(path, env_id="Pong-v5")
    assert found.algo == "dqn_atari_jax"
    expected = network(torch.from_numpy(rows(ATARI))).argmax(dim=1)
    assert build_policy(found, ATARI)(rows(ATARI), None).tolist() == expected.tolist()
    other = SimpleNamespace(**vars(ATARI) | {"single_action_space": gym.spaces.Discrete(4)})
    assert "size mismatch for params/Dense_1/bias: (6,), not (4,)" in refusal(path, other, env_id="Breakout-v5")


def test_a_policy_whose_package_is_missing_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("cleanrl_worker.algorithms.dqn_jax")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flax.linen", None)  # what Python looks at first: importing it fails
    with pytest.raises(ConfigError, match=r"^policies of 'dqn_jax' need flax: pip install 'mosaic-rl\[jax\]'$"):
        build_policy(SavedPolicy(tmp_path / "x", "dqn_jax", "CartPole-v1"), None)


def test_policies_in_jax_act_on_the_cpu_and_leave_a_gpu_alone(tmp_path: Path) -> None:
    import jax
    from flax.serialization import to_bytes

    path, before = tmp_path / "dqn_jax.cleanrl_model", jax.config.jax_platforms
    path.write_bytes(to_bytes(dense(4, 120, 84, 2)))
    try:
        jax.config.update("jax_platforms", None)
        build_policy(read_policy(path, env_id="CartPole-v1"), CARTPOLE)
        assert jax.config.jax_platforms == "cpu"
    finally:
        jax.config.update("jax_platforms", before)


def test_cleanrl_c51_jax_brings_its_args_in_the_file(tmp_path: Path) -> None:
    from flax.serialization import to_bytes

    args = {"exp_name": "c51_jax", "env_id": "CartPole-v1", "seed": 4, "n_atoms": 11, "v_min": -5, "v_max": 5}
    path = tmp_path / "c51_jax.cleanrl_model"
    path.write_bytes(to_bytes({"model_weights": dense(4, 120, 84, 2 * 11), "args": args}))
    found = read_policy(path)
    assert (found.algo, found.env_id) == ("c51_jax", "CartPole-v1")
    assert len(set(build_policy(found, CARTPOLE)(np.random.default_rng(1).normal(size=(50, 4)), None).tolist())) == 2


def test_cleanrl_ppo_for_atari_in_jax_brings_args_network_actor_and_critic(tmp_path: Path) -> None:
    from flax.serialization import to_bytes

    kernels = {"Conv_0": (8, 8, 4, 32), "Conv_1": (4, 4, 32, 64), "Conv_2": (3, 3, 64, 64), "Dense_0": (3136, 512)}
    rng = np.random.default_rng(0)
    network = {
        name: {"kernel": rng.normal(0, 0.05, size).astype(np.float32), "bias": np.zeros(size[-1], np.float32)}
        for name, size in kernels.items()
    }
    args = {"exp_name": "ppo_atari_envpool_xla_jax_scan", "env_id": "Breakout-v5", "seed": 4, "target_kl": None}
    path = tmp_path / "x.cleanrl_model"
    path.write_bytes(to_bytes([args, [{"params": network}, dense(512, 6), dense(512, 1)]]))
    found = read_policy(path)
    assert (found.algo, found.env_id, found.is_atari) == ("ppo_atari_envpool_xla_jax_scan", "Breakout-v5", True)
    obs = rng.integers(0, 255, (5, 4, 84, 84)).astype(np.uint8)
    policy = build_policy(found, ATARI)
    assert policy(obs, None).shape == (5,)
    path.write_bytes(to_bytes([args, [{"params": network}, dense(512, 4), dense(512, 1)]]))
    assert "size mismatch for actor/Dense_0/kernel: (512, 4), not (512, 6)" in refusal(path, ATARI)


@pytest.mark.parametrize("algo", ["ddpg_continuous_action_jax", "td3_continuous_action_jax"])
def test_the_actor_is_first_in_the_lists_of_cleanrl_jax_files(algo: str, tmp_path: Path) -> None:
    from flax.serialization import to_bytes

    path = tmp_path / "x.cleanrl_model"
    path.write_bytes(to_bytes([dense(3, 256, 256, 1), dense(4, 256, 256, 1)]))
    policy = build_policy(read_policy(path, algo=algo, env_id="Pendulum-v1"), PENDULUM)
    actions = policy(rows(PENDULUM), None)
    assert actions.shape == (5, 1) and (np.abs(actions) <= 2.0).all()


class Hostile:
    """Unpickled without care it makes a file, as it could do anything else."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("how", ["torch", "legacy", "pickle", "text", "beside weights"])
def test_hostile_pickle_is_refused_and_runs_nothing(how: str, tmp_path: Path) -> None:
    mark, path = tmp_path / "it-ran", tmp_path / "x.cleanrl_model"
    state: Any = {"actor_logstd": torch.zeros(1), "evil": Hostile(mark)} if how == "beside weights" else Hostile(mark)
    if how in ("pickle", "text"):
        path.write_bytes(pickle.dumps(state, protocol=0 if how == "text" else 4))
    else:
        torch.save(state, path, _use_new_zipfile_serialization=how != "legacy")
    assert str(path) in refusal(path, algo="ppo")
    assert not mark.exists()
    torch.load(path, weights_only=False) if how == "torch" else None
    assert mark.exists() == (how == "torch"), "the trap works when it is stepped into"


def test_damaged_and_foreign_files_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.cleanrl_model"
    assert "no such file" in refusal(path)
    whole = saved(path, dqn.QNetwork(CARTPOLE).state_dict()).read_bytes()
    for data in (b"", b"x", whole[: len(whole) // 2], b"\x80" + whole, b"{}", b"\x10" + bytes(7) + b"{" * 30):
        path.write_bytes(data)
        assert "x.cleanrl_model" in refusal(path)
    assert "holds no state dict" in refusal(saved(path, [1, 2]))
    assert "it names a tensor 0: a mapping of texts" in refusal(saved(path, {0: torch.zeros(2)}))
    assert "fits no algorithm here: no algorithm's network has its keys: w" in refusal(
        saved(path, {"w": torch.zeros(1)})
    )
    saved(path, dqn.QNetwork(CARTPOLE).state_dict())
    assert "did you mean 'dqn'?" in refusal(path, CARTPOLE, algo="dqnn")
    assert "is not a 'ppo' policy" in refusal(path, CARTPOLE, algo="ppo")
    assert "is not a 'dqn' policy" in refusal(path, ATARI, algo="dqn")
    saved(path, dqn.QNetwork(CARTPOLE).state_dict(), format=2)
    assert "format 2 is newer" in refusal(path)
    path.with_name(path.name + ".json").write_text("{")
    assert "no valid JSON" in refusal(path)


@pytest.mark.parametrize(
    "known", [{"observation_statistics": [1.0]}, {"args": ["x"]}, {"format": "new"}, {"env_id": 5}, {"algo": 5}]
)
def test_sidecar_with_values_of_the_wrong_kind_is_refused(known: dict[str, Any], tmp_path: Path) -> None:
    path = saved(tmp_path / "x.cleanrl_model", dqn.QNetwork(CARTPOLE).state_dict(), **known)
    assert f"x.cleanrl_model.json: {next(iter(known))}: a" in refusal(path)


@pytest.mark.parametrize("kind", ["float16", "float64", "int64", "complex64"])
@pytest.mark.parametrize("form", ["torch", "safetensors"])
def test_weights_of_another_type_are_refused_with_their_name(kind: str, form: str, tmp_path: Path) -> None:
    state = dqn.QNetwork(CARTPOLE).state_dict()
    state["network.0.weight"] = state["network.0.weight"].to(getattr(torch, kind))
    path = saved(tmp_path / "x.cleanrl_model", state)
    if form == "safetensors":
        path.write_bytes(save({name: value.numpy() for name, value in state.items()}))
    line = refusal(path, CARTPOLE, algo="dqn")
    assert f"network.0.weight is {kind}; the weights of policies are float32" in line


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("form", ["torch", "safetensors"])
def test_weights_that_are_not_finite_are_refused_with_their_name(number: float, form: str, tmp_path: Path) -> None:
    state = dqn.QNetwork(CARTPOLE).state_dict()
    state["network.4.bias"][1] = number
    path = saved(tmp_path / "x.cleanrl_model", state)
    if form == "safetensors":
        path.write_bytes(save({name: value.numpy() for name, value in state.items()}))
    assert "network.4.bias holds NaN or an infinity" in refusal(path, CARTPOLE, algo="dqn")


def test_weights_of_another_shape_are_refused_with_their_name(tmp_path: Path) -> None:
    state = dqn.QNetwork(CARTPOLE).state_dict()
    for shape in ((1,), (120, 5), (120, 4, 1)):
        state["network.0.weight"] = torch.zeros(shape)
        line = refusal(saved(tmp_path / "x.cleanrl_model", state), CARTPOLE, algo="dqn")
        assert "is not a 'dqn' policy" in line and "network.0.weight" in line


def test_observation_statistics_of_another_shape_are_refused(tmp_path: Path) -> None:
    state = ppo_continuous_action.Agent(PENDULUM).state_dict()
    for mean in ([0.0], 0.0, [[0.0, 0.0, 0.0]]):
        known = {"algo": "ppo_continuous_action", "observation_statistics": {"mean": mean, "var": [1.0, 1.0, 1.0]}}
        line = refusal(saved(tmp_path / "x.cleanrl_model", state, **known), PENDULUM)
        assert "observation_statistics.mean has the shape" in line


def test_a_file_names_no_more_atoms_than_it_has_numbers(tmp_path: Path) -> None:
    state = c51.QNetwork(CARTPOLE, torch.linspace(-5, 5, 11)).state_dict()
    path = saved(tmp_path / "x.cleanrl_model", {"model_weights": state, "args": {"n_atoms": 10**12}})
    assert "args.n_atoms is 1000000000000, more than the numbers in the file" in refusal(path, CARTPOLE, algo="c51")
    path = saved(tmp_path / "x.cleanrl_model", {"model_weights": state, "args": {"n_atoms": "many"}})
    assert "cannot be read as a policy" in refusal(path, CARTPOLE, algo="c51")
    path = saved(tmp_path / "x.cleanrl_model", {"model_weights": state, "args": [3]})
    assert "cannot be read as a policy" in refusal(path, CARTPOLE, algo="c51")


def test_the_module_of_an_environment_that_a_file_names_is_not_imported(tmp_path: Path) -> None:
    state = dqn.QNetwork(CARTPOLE).state_dict()
    path = saved(tmp_path / "x.cleanrl_model", state, algo="dqn", env_id="evilmod:X-v0")
    assert "x.cleanrl_model.json names the environment 'evilmod:X-v0', which would import 'evilmod'" in refusal(path)
    assert read_policy(path, env_id="evilmod:X-v0").env_id == "evilmod:X-v0"
    assert read_policy(path, env_id="CartPole-v1").env_id == "CartPole-v1"
    path.with_name(path.name + ".json").unlink()
    saved(path, {"model_weights": state, "args": {"env_id": "evilmod:X-v0"}})
    assert "would import 'evilmod'" in refusal(path, algo="dqn")


def test_a_fifo_is_refused_as_a_policy(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.cleanrl_model", {"w": torch.zeros(1)})
    path.unlink()
    path.symlink_to("/dev/zero")
    assert "no such file" in refusal(path, algo="dqn")


@pytest.mark.parametrize(
    "args", [{"gamma": "x"}, {"env_backend": []}, {"start_level": -1}, {"end_e": 7}, {"v_min": None}]
)
def test_arguments_that_a_policy_acts_by_are_checked(args: dict[str, Any], tmp_path: Path) -> None:
    state = dqn.QNetwork(CARTPOLE).state_dict()
    path = saved(tmp_path / "x.cleanrl_model", state, algo="dqn", env_id="CartPole-v1", args=args)
    if args == {"v_min": None}:
        assert read_policy(path).args == args
    else:
        assert f"args.{next(iter(args))}: " in refusal(path)
    path = saved(tmp_path / "y.cleanrl_model", {"model_weights": state, "args": args})
    assert args == {"v_min": None} or f"args.{next(iter(args))}: " in refusal(path, algo="dqn")
