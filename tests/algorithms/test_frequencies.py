"""Work per step: frequencies count the steps of all environments, and each environment explores for itself."""

import importlib

import numpy as np
import pytest
from needs import needed

from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.run import checkpoint

FLAT = {"env_id": "CartPole-v1", "total_timesteps": 320, "learning_starts": 64, "train_frequency": 4}
FLAT |= {"buffer_size": 400, "batch_size": 8, "target_network_frequency": 40}
SWING = {"env_id": "Pendulum-v1", "total_timesteps": 128, "learning_starts": 32, "buffer_size": 300, "batch_size": 8}
GAME = {"env_id": "mosaic/Catch-v0", "total_timesteps": 96, "learning_starts": 48, "buffer_size": 256, "batch_size": 2}
FULL = pytest.mark.full
CASES = [
    ("dqn", FLAT, 64),
    pytest.param("c51", FLAT, 64, marks=FULL),
    pytest.param("dqn_jax", FLAT, 64, marks=FULL),
    pytest.param("c51_jax", FLAT, 64, marks=FULL),
    ("sac_continuous_action", SWING, 96),
    ("td3_continuous_action", SWING, 96),
    pytest.param("ddpg_continuous_action", SWING, 96, marks=FULL),
    pytest.param("sac_continuous_action_jax", SWING, 96, marks=FULL),
    pytest.param("td3_continuous_action_jax", SWING, 96, marks=FULL),
    pytest.param("ddpg_continuous_action_jax", SWING, 96, marks=FULL),
    ("dqn_atari", GAME | {"train_frequency": 4}, 12),
    pytest.param("c51_atari", GAME | {"train_frequency": 4}, 12, marks=FULL),
    pytest.param("rainbow_atari", GAME | {"train_frequency": 4}, 12, marks=FULL),
    pytest.param("sac_atari", GAME | {"update_frequency": 4}, 12, marks=FULL),
    pytest.param("dqn_atari_jax", GAME | {"train_frequency": 4}, 12, marks=FULL),
    pytest.param("c51_atari_jax", GAME | {"train_frequency": 4}, 12, marks=FULL),
]


def updates(name, folder, num_envs, options):
    """Return how often Adam has stepped for the critic, from the last checkpoint."""
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY[name])
    module.main(module.Args(run_dir=folder, cuda=False, num_threads=1, num_envs=num_envs, **options))
    found = checkpoint.newest(folder / "checkpoints", print)
    counts = found.document["numbers"] | found.arrays
    counts = {key: int(np.max(value)) for key, value in counts.items() if key.endswith(("/count", "/steps", "/step"))}
    (critic,) = {value for key, value in counts.items() if "actor" not in key and "alpha" not in key} or {0}
    return critic


@pytest.mark.parametrize(("name", "options", "expected"), CASES)
def test_updates_are_as_many_with_one_environment_as_with_sixteen(name, options, expected, tmp_path):
    needed(name)
    one, many = (updates(name, tmp_path / str(count), count, options) for count in (1, 16))
    assert abs(one - expected) <= 1 and abs(many - one) <= 1, (one, many)


def test_each_environment_explores_for_itself(tmp_path, monkeypatch):
    """Half of the actions are random: of sixteen environments some explore in nearly every step, rarely all."""
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY["dqn"])
    monkeypatch.setattr(module.NumpyNet, "__call__", lambda _net, obs: np.eye(2)[np.full(len(obs), 1)])
    seen = []
    make = module.vectors.vector

    def recorded(*given):
        made = make(*given)
        step = made.step
        made.step = lambda actions: (seen.append(np.array(actions)), step(actions))[1]
        return made

    monkeypatch.setattr(module.vectors, "vector", recorded)
    always = {"start_e": 0.5, "end_e": 0.5, "learning_starts": 10**6, "buffer_size": 2000}
    module.main(module.Args(run_dir=tmp_path, cuda=False, num_envs=16, total_timesteps=1600, **always))
    mixed = [0 < (actions == 0).sum() < 16 for actions in seen]
    assert np.mean(mixed) > 0.9
    assert 0.2 < np.mean(np.concatenate(seen) == 0) < 0.3
