"""A scheduled checkpoint starts every environment anew: what that costs each algorithm, and when it happens."""

import importlib
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import tiny_envs
from needs import needed

from cleanrl_worker.config.config import parse_worker_config
from cleanrl_worker.envs import vectors
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.run import checkpoint, training
from cleanrl_worker.runtime import CleanRLWorkerRuntime
from cleanrl_worker.schema.parameters import describe
from mosaic.contract import metrics
from mosaic.contract.checkpoints import find_all

ALGORITHMS = describe()
ALWAYS = {"ppo", "ppo_continuous_action", "dqn", "sac_continuous_action", "dqn_jax"}
NO_LEARNING = {"learning_starts": 10**9, "buffer_size": 4096, "target_network_frequency": 10**9}
BRIEF = {"num_steps": 4, "num_minibatches": 2, "update_epochs": 1}
OWN = {
    "ppg_procgen": {"n_iteration": 1, "e_auxiliary": 1},
    "ppo_rnd_envpool": {"num_iterations_obs_norm_init": 0},
    **dict.fromkeys(("qdagger_dqn_atari_impalacnn", "qdagger_dqn_atari_jax_impalacnn"), tiny_envs.small_lesson(2, 0)),
}


class Uneven(tiny_envs.Corridor):
    """Episodes of 1 to 3 steps, 2 on average; with the shape of a `screen` its observations are images."""

    def __init__(self, continuous=False, screen=()):
        super().__init__(scaled=True, continuous=continuous)
        self.screen = np.zeros(screen, np.uint8)
        if screen:
            self.observation_space = gym.spaces.Box(0, 255, screen, np.uint8)

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed)
        self.length = int(self.np_random.integers(1, 4))
        return found

    def _obs(self):
        return self.screen.copy() if self.screen.shape else super()._obs()


def options_of(name, times):
    """Small sizes of an algorithm, at so many times its default number of environments."""
    args = importlib.import_module(DEFAULT_ALGO_REGISTRY[name]).Args
    fields = {field["name"] for field in ALGORITHMS[name]["fields"]}
    local = "local_num_envs" in fields
    count = (args.local_num_envs if local else args.num_envs) * times
    given = {"local_num_envs" if local else "num_envs": count}
    given |= {key: value for key, value in (BRIEF | NO_LEARNING).items() if key in fields}
    return given | OWN.get(name, {}), count


@pytest.mark.parametrize(
    ("name", "times"),
    [
        pytest.param(name, times, marks=() if name in ALWAYS else pytest.mark.full)
        for name in ALGORITHMS
        for times in (1, 16)
    ],
)
def test_checkpoints_cut_less_than_five_percent_of_the_steps(name, times, tmp_path, monkeypatch):
    needed(name)
    entry, (options, count) = ALGORITHMS[name], options_of(name, times)
    if "pettingzoo" in name:
        pytest.skip("its checkpoints are those of ppo_atari, and its games need two players")
    images = entry["observation_spaces"] == ["image"]
    screen = ((16, 16, 3) if "procgen" in name else (4, 84, 84)) if images else ()
    continuous = "discrete" not in entry["action_spaces"]
    made = []

    def make(*_given, **_more):
        one = partial(Uneven, continuous=continuous, screen=screen)
        made.append(vectors.SyncEnvs([lambda: vectors.SeededEpisodes(one())] * count))
        return made[-1]

    for maker in ("vector", "atari"):
        monkeypatch.setattr(vectors, maker, make)
    if name == "ppo_jax":
        monkeypatch.setattr(importlib.import_module("cleanrl_worker.envs.jax.classic"), "make", lambda args: None)
    cut = []
    save = training.Run.checkpoint
    monkeypatch.setattr(
        training.Run,
        "checkpoint",
        lambda run, step, given: (cut.append((step, int(made[0].episodes.lengths.sum()))), save(run, step, given))[1],
    )
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY[name])
    checkpoints = max(1, 64 // count)  # of few environments, more: one long episode is a large share of one window
    total = 20 * 2 * count * checkpoints * 5 // 4  # a checkpoint comes after 20 episodes of 2 steps
    module.main(
        module.Args(run_dir=tmp_path, cuda=False, num_threads=1, checkpoint_every=1, total_timesteps=total, **options)
    )
    assert cut, "a checkpoint was due"
    assert sum(lost for _, lost in cut) < 0.05 * cut[-1][0], cut


def rows_and_steps(folder, **options):
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY["ppo"])
    module.main(module.Args(run_dir=folder, cuda=False, num_steps=16, num_minibatches=2, update_epochs=1, **options))
    saved = sorted(int(path.name) for path in find_all(folder / "checkpoints") if checkpoint.read(path).exact)
    return metrics.comparable(folder / "metrics.jsonl"), saved


def test_the_distance_between_checkpoints_is_the_same_in_an_interrupted_run(tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    options = {"num_envs": 2, "checkpoint_every": 128, "total_timesteps": 6_000}
    rows, saved = rows_and_steps(whole, **options)
    assert saved and all(step % 128 == 0 for step in saved)
    lengths = [
        row["charts/episodic_length"]
        for row in metrics.read_rows(whole / "metrics.jsonl")
        if "charts/episodic_length" in row and row["step"] <= saved[-1]
    ]
    assert saved[-1] - ([0, *saved][-2]) >= 20 * 2 * min(10.0, np.mean(lengths[-100:])) / 2
    again, resaved = rows_and_steps(resumed, resume=whole / "checkpoints" / str(saved[0]), **options)
    assert again == rows and resaved == [step for step in saved if step > saved[0]][-len(resaved) :]


def test_environments_whose_state_is_saved_pass_no_barrier(tmp_path):
    """Cart-poles in JAX are cut by no checkpoint: with and without them, the rows are the same."""
    pytest.importorskip("jax")
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY["ppo_jax"])
    small = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "update_epochs": 1, "total_timesteps": 640}
    for name, every in (("with", 32), ("without", 0)):
        module.main(module.Args(run_dir=tmp_path / name, cuda=False, checkpoint_every=every, **small))
    rows = [metrics.comparable(tmp_path / name / "metrics.jsonl") for name in ("with", "without")]
    assert rows[0] == rows[1]
    assert all(checkpoint.read(path).exact for path in find_all(tmp_path / "with" / "checkpoints"))


def test_a_checkpoint_sooner_than_an_episode_is_warned_about_at_the_start_and_in_the_dry_run(tmp_path, capsys):
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY["ppo"])
    small = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "update_epochs": 1, "total_timesteps": 64}
    module.main(module.Args(run_dir=tmp_path, cuda=False, checkpoint_every=1999, **small))
    words = "checkpoint_every=1,999 is less than one episode of up to 500 steps in each of 4 environments (2,000 steps)"
    assert words in capsys.readouterr().err

    def warnings(algo, every):
        extras = {"algo_params": {"num_envs": 4, "checkpoint_every": every}}
        config = {"algo": algo, "env_id": "CartPole-v1", "total_timesteps": 10_000, "extras": extras}
        return CleanRLWorkerRuntime(parse_worker_config(config), dry_run=True).run().warnings

    assert [words in text for text in warnings("ppo", 1999)] == [True]
    assert not warnings("ppo", 2000) and not warnings("ppo_jax", 1999), "whose cart-poles are saved"
