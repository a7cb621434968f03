"""What the algorithms learn on corridors whose values are known exactly: 5 steps of reward 1 each, discount 0.9."""

import importlib
import json
from functools import partial
from pathlib import Path

from cleanrl_worker.nets.jax.trees import dense_layers, tree_of

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_envs
from needs import needed

from cleanrl_worker.envs.jax.classic import CLASSICS, Classic
from cleanrl_worker.run import training
from cleanrl_worker.schema.parameters import describe
from mosaic.contract import metrics

tiny_envs.register()
GAMMA = 0.9
BOOTSTRAPPED = 1 / (1 - GAMMA)  # truncation is no end of the world: reward 1 for ever
TERMINATED = sum(GAMMA**t for t in range(5))  # the first observation's value when the fifth step ends it


DQN = ("dqn", "dqn_jax", "c51", "c51_jax")
ATOMS = {name: {"v_min": -15.0, "v_max": 15.0, "n_atoms": 31} for name in ("c51", "c51_jax")}


SAC = {
    "sac_continuous_action": {"autotune": False, "alpha": 0.0},
    "td3_continuous_action": {"learning_rate": 1e-3, "policy_frequency": 1},
    "ddpg_continuous_action": {"learning_rate": 1e-3, "policy_frequency": 1},
}
SAC |= {f"{name}_jax": options for name, options in SAC.items()}


def train(name, folder, **options):
    module = importlib.import_module(f"cleanrl_worker.algorithms.{name}")
    module.main(module.Args(run_dir=folder, cuda=False, **{"gamma": GAMMA, **options}))
    return metrics.read_rows(Path(folder) / "metrics.jsonl")


def policy_of(folder):
    import torch

    (path,) = Path(folder).glob("runs/*/*[!t].cleanrl_model")  # not .best
    return torch.load(path, weights_only=True)


def first_value(folder, obs=(0.0, 1.0)):
    """The critic's value of a corridor's start."""
    import torch

    state = policy_of(folder)
    x = torch.tensor([obs])
    sidecar = json.loads(next(Path(folder).glob("runs/*/*[!t].cleanrl_model.json")).read_text())
    if sidecar["observation_statistics"]:
        statistics = {key: np.array(value) for key, value in sidecar["observation_statistics"].items()}
        x = ((x - statistics["mean"]) / np.sqrt(statistics["var"] + 1e-8)).float()
    for layer in (0, 2, 4):
        x = x @ state[f"critic.{layer}.weight"].T + state[f"critic.{layer}.bias"]
        if layer < 4:
            x = torch.tanh(x)
    return float(x)


@pytest.mark.parametrize("name", DQN)
@pytest.mark.parametrize(("ending", "low", "high"), [("Truncating", 9.0, 10.6), ("Terminating", 2.0, 4.5)])
def test_dqn_values_bootstrap_at_a_truncation_and_stop_at_a_termination(name, ending, low, high, tmp_path):
    rows = train(
        name,
        tmp_path,
        env_id=f"Tiny/{ending}Scaled-v0",
        total_timesteps=1500,
        learning_starts=200,
        train_frequency=2,
        target_network_frequency=20,
        learning_rate=1e-3,
        buffer_size=1000,
        **ATOMS.get(name, {}),
    )
    q_values = [row["losses/q_values"] for row in rows if "losses/q_values" in row][-5:]
    assert low < np.mean(q_values) < high


# What comes before a truncation is also told by the test with two rooms, below.
@pytest.mark.parametrize("name", SAC)
@pytest.mark.parametrize(
    ("ending", "low", "high"),
    [pytest.param("Truncating", 8.5, 11.0, marks=pytest.mark.full), ("Terminating", 1.5, 4.5)],
)
def test_sac_values_bootstrap_at_a_truncation_and_stop_at_a_termination(name, ending, low, high, tmp_path):
    rows = train(
        name,
        tmp_path,
        env_id=f"Tiny/{ending}ScaledContinuous-v0",
        total_timesteps=500,
        learning_starts=100,
        tau=0.3,
        buffer_size=2000,
        batch_size=64,
        **SAC[name],
    )
    q_values = [row["losses/qf1_values"] for row in rows if "losses/qf1_values" in row][-3:]
    assert low < np.mean(q_values) < high


@pytest.mark.parametrize("vectorization", ["sync", "native"])
@pytest.mark.parametrize(("ending", "low", "high"), [("Truncating", 8.5, 11.0), ("Terminating", 3.3, 4.9)])
def test_ppo_values_bootstrap_at_a_truncation_and_stop_at_a_termination(vectorization, ending, low, high, tmp_path):
    train(
        "ppo",
        tmp_path,
        env_id=f"Tiny/{ending}Scaled-v0",
        total_timesteps=8000,
        num_steps=25,
        learning_rate=3e-3,
        network="separate",
        vectorization=vectorization,
        clip_vloss=False,
        save_model=True,
    )
    assert low < first_value(tmp_path) < high


PQN = {"num_steps": 25, "learning_rate": 3e-3, "start_e": 0.1}


@pytest.mark.parametrize(("ending", "low", "high"), [("Truncating", 9.0, 10.6), ("Terminating", 2.0, 4.5)])
def test_pqn_values_bootstrap_at_a_truncation_and_stop_at_a_termination(ending, low, high, tmp_path):
    rows = train("pqn", tmp_path, env_id=f"Tiny/{ending}Scaled-v0", total_timesteps=8000, **PQN)
    q_values = [row["losses/q_values"] for row in rows if "losses/q_values" in row][-5:]
    assert low < np.mean(q_values) < high


def test_pqn_bootstraps_from_the_final_observation_not_from_the_next_episode(tmp_path):
    rows = train("pqn", tmp_path, env_id="Tiny/TwoRooms-v0", total_timesteps=8000, **PQN)
    q_values = [row["losses/q_values"] for row in rows if "losses/q_values" in row][-5:]
    # a quarter of the steps at -11, the others at 10; how many of 5 * 25 are the first alone moves that by 0.8
    assert 2.0 < np.mean(q_values) < 7.5, "4.75; -2.6 where nothing is bootstrapped, -42 from the next episode"


GAUSSIAN = ("ppo_continuous_action", "rpo_continuous_action")


@pytest.mark.parametrize("name", [GAUSSIAN[0], pytest.param(GAUSSIAN[1], marks=pytest.mark.full)])
def test_ppo_continuous_values_bootstrap_at_a_truncation(name, tmp_path):
    values = {}
    for ending in ("Truncating", "Terminating"):
        train(
            name,
            tmp_path / ending,
            env_id=f"Tiny/{ending}ScaledContinuous-v0",
            total_timesteps=5000,
            num_steps=200,
            num_minibatches=8,
            update_epochs=4,
            learning_rate=3e-3,
            clip_vloss=False,
            save_model=True,
        )
        values[ending] = first_value(tmp_path / ending)
    # rewards are scaled by a running deviation, so only the ratio is known: 10 / 4.1, the scale being near equal
    assert values["Truncating"] > 1.5 * values["Terminating"] > 0


def test_ppo_bootstraps_from_the_final_observation_not_from_the_next_episode(tmp_path):
    train(
        "ppo",
        tmp_path,
        env_id="Tiny/TwoRooms-v0",
        total_timesteps=8000,
        num_steps=25,
        learning_rate=3e-3,
        clip_vloss=False,
        save_model=True,
    )
    assert 8.5 < first_value(tmp_path, (1.0, 0.0)) < 11.0, "the second room is worth 10"


ROOMS = Classic(  # TwoRooms in jnp: the state is the number of steps
    size=1,
    start=lambda drawn: drawn * 0.0,
    observe=lambda states: jnp.concatenate([states > 0, states == 0], axis=-1) * 1.0,
    step=lambda states, actions: (states + 1, jnp.where(states[:, 0] == 0, -20.0, 1.0), states[:, 0] < 0),
    limit=4,
)
CORRIDORS = {  # and the scaled corridors, the last observation of which is as the first
    "Truncating": ROOMS._replace(
        observe=lambda states: jnp.concatenate([states % 5 / 5, states * 0 + 1], axis=-1),
        step=lambda states, actions: (states + 1, jnp.ones(len(states)), states[:, 0] < 0),
        limit=5,
    )
}
CORRIDORS["Terminating"] = CORRIDORS["Truncating"]._replace(
    step=lambda states, actions: (states + 1, jnp.ones(len(states)), states[:, 0] == 4), limit=100
)


def jax_values(folder, *rows):
    """What the critic of ppo_jax makes of observations."""
    from safetensors.numpy import load_file

    (path,) = Path(folder).glob("runs/*/*[!t].cleanrl_model")
    critic = dense_layers(tree_of(load_file(path))["params"]["critic"], np.tanh)
    return critic(np.array(rows, np.float32))[:, 0]


PPO_JAX = {"total_timesteps": 12000, "num_steps": 25, "learning_rate": 3e-3, "clip_vloss": False, "save_model": True}


@pytest.mark.parametrize("inside", [True, False], ids=["inside the compiled function", "outside of it"])
def test_ppo_jax_values_bootstrap_at_a_truncation_and_stop_at_a_termination(inside, tmp_path, monkeypatch):
    for ending, (low, high) in {"Truncating": (8.5, 11.0), "Terminating": (3.3, 4.9)}.items():
        env_id = f"Tiny/{ending}Scaled-v0"
        monkeypatch.setitem(CLASSICS, env_id, CORRIDORS[ending])
        backend = "auto" if inside else "gymnasium"
        train("ppo_jax", tmp_path / ending, env_id=env_id, env_backend=backend, **PPO_JAX)
        assert low < jax_values(tmp_path / ending, (0.0, 1.0))[0] < high
    monkeypatch.setitem(CLASSICS, "Tiny/TwoRooms-v0", ROOMS)
    train("ppo_jax", tmp_path / "rooms", env_id="Tiny/TwoRooms-v0", env_backend=backend, **PPO_JAX)
    assert 8.5 < jax_values(tmp_path / "rooms", (1.0, 0.0))[0] < 11.0, "the second room is worth 10"


@pytest.mark.parametrize("name", DQN)
def test_dqn_bootstraps_from_the_final_observation_not_from_the_next_episode(name, tmp_path):
    options = {"learning_starts": 200, "train_frequency": 2, "target_network_frequency": 20, "learning_rate": 1e-3}
    options |= ATOMS.get(name, {})
    rows = train(name, tmp_path, env_id="Tiny/TwoRooms-v0", total_timesteps=1800, buffer_size=1000, **options)
    q_values = [row["losses/q_values"] for row in rows if "losses/q_values" in row][-5:]
    assert 3.5 < np.mean(q_values) < 6.0, "a quarter of the steps at -11, the others at 10"


@pytest.mark.parametrize("name", SAC)
def test_sac_bootstraps_from_the_final_observation_not_from_the_next_episode(name, tmp_path):
    options = {
        "learning_starts": 100,
        "tau": 0.3,
        "buffer_size": 2000,
        "batch_size": 64,
        **SAC[name],
    }
    env_id = "Tiny/TwoRoomsContinuous-v0"
    rows = train(name, tmp_path, env_id=env_id, total_timesteps=700, **options)
    q_values = [row["losses/qf1_values"] for row in rows if "losses/qf1_values" in row][-3:]
    # a quarter of the steps at -11, the others at 10; how many of 3 * 64 are the first alone moves that by 0.7
    assert 2.0 < np.mean(q_values) < 7.5, "4.75; -2.6 where nothing is bootstrapped, -42 from the next episode"


@pytest.mark.parametrize("name", GAUSSIAN)
def test_ppo_continuous_bootstraps_from_the_final_observation_not_from_the_next_episode(name, tmp_path):
    train(
        name,
        tmp_path,
        env_id="Tiny/TwoRoomsContinuous-v0",
        total_timesteps=5000,
        num_steps=200,
        num_minibatches=8,
        update_epochs=4,
        learning_rate=3e-3,
        clip_vloss=False,
        save_model=True,
    )
    first, second = first_value(tmp_path, (0.0, 1.0)), first_value(tmp_path, (1.0, 0.0))
    # rewards are scaled by a running deviation, so only the ratio of -11 to 10 is known
    assert second > 0 and -1.6 < first / second < -0.7


def test_every_algorithm_for_rows_of_numbers_is_asked_what_comes_after_an_end():
    flat = [name for name, entry in describe().items() if entry["observation_spaces"] != ["image"]]
    assert sorted(["ppo", "ppo_jax", "pqn", *GAUSSIAN, *DQN, *SAC]) == sorted(flat)


class Duel(gym.Env):
    """Two players, three steps; each step the first wins what the second loses."""

    observation_space = gym.spaces.Box(0, 255, (2, 6, 84, 84), np.uint8)
    action_space = gym.spaces.MultiDiscrete([3, 3])
    rewards = np.zeros(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros((2, 6, 84, 84), np.uint8), {}

    def step(self, action):
        self.steps += 1
        self.rewards = np.array([2.0, -2.0])
        return np.zeros((2, 6, 84, 84), np.uint8), 2.0, self.steps == 3, False, {}


def test_the_returns_of_each_player_are_logged(tmp_path, monkeypatch):
    from cleanrl_worker.algorithms import ppo_pettingzoo_ma_atari
    from cleanrl_worker.envs import vectors

    def duels(args, _video_folder, view):
        made = vectors.SyncEnvs([Duel] * args.num_envs)
        view.matches.extend(made.envs)
        return made

    monkeypatch.setattr(vectors, "vector", duels)
    monkeypatch.setattr(ppo_pettingzoo_ma_atari, "register", lambda _env_id: 2)
    sizes = {"total_timesteps": 32, "num_envs": 4, "num_steps": 8, "num_minibatches": 1, "num_threads": 1}
    rows = train("ppo_pettingzoo_ma_atari", tmp_path, **sizes)
    for tag, value in {"return": 6.0, "return-player0": 6.0, "return-player1": -6.0, "length-player1": 3}.items():
        assert [row[f"charts/episodic_{tag}"] for row in rows if f"charts/episodic_{tag}" in row] == [value] * 4


@pytest.mark.parametrize("name", ["ppo_atari_lstm", "pqn_atari_envpool_lstm"])
def test_a_memory_begins_anew_with_each_life(name, tmp_path, monkeypatch):
    """Corridors of five steps whose ends are lost lives: no game is over, and yet all before is forgotten."""
    from cleanrl_worker.envs import vectors

    class Lives(vectors.SyncEnvs):
        def _over(self, ends):
            return np.zeros_like(ends)

    module = importlib.import_module(f"cleanrl_worker.algorithms.{name}")
    network, given = module.QNetwork if "pqn" in name else module.Agent, []
    plain = network.forward

    def noted(self, obs, memory, starts):
        given.append(starts.flatten().tolist())
        return plain(self, obs, memory, starts)

    monkeypatch.setattr(network, "forward", noted)
    monkeypatch.setattr(vectors, "atari", lambda args, _folder: Lives([partial(tiny_envs.Dark, False)] * args.num_envs))
    train(name, tmp_path, total_timesteps=12, num_envs=1, num_steps=12, num_minibatches=1, num_threads=1)
    assert [at for at, starts in enumerate(given[:12]) if starts == [1.0]] == [5, 10]
    assert [at for at, start in enumerate(given[-1]) if start] == [5, 10], "learning forgets where acting did"


@pytest.mark.parametrize(("paid", "score"), [((1.0, -1.0), 0.0), ((1.0, 4.0), 2.5)])
def test_a_policy_of_several_players_is_judged_by_all_of_them(paid, score, tmp_path, monkeypatch, capsys):
    needed("ppo_pettingzoo_ma_atari")
    from cleanrl_worker.envs.players import Match

    def step(self, action):
        self.rewards = np.array(paid)
        return self._obs(), paid[0], True, False, {}

    monkeypatch.setattr(Match, "step", step)
    monkeypatch.setattr(training.Run, "evaluate", lambda *_given, **_more: None)
    # a game is set up anew after each step, which takes its time
    sizes = {"total_timesteps": 4, "num_envs": 2, "num_steps": 2, "num_minibatches": 1, "num_threads": 1}
    rows = train("ppo_pettingzoo_ma_atari", tmp_path, update_epochs=1, save_model=True, **sizes)
    assert {row["charts/episodic_return"] for row in rows if "charts/episodic_return" in row} == {paid[0]}
    (best,) = tmp_path.glob("runs/*/*.best.cleanrl_model.json")
    assert json.loads(best.read_text())["training_return"] == score
    assert ("the newest is kept as such" in capsys.readouterr().out) == (sum(paid) == 0)
