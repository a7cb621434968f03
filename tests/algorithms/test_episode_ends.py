"""What comes after an episode's end in the algorithms for images: nothing, or the last frames of what was cut off.

The others are in test_learning.py, where the values they learn tell it.
"""

import importlib
from functools import partial

import jax
import numpy as np
import pytest
import tiny_envs
from needs import needed

from cleanrl_worker.envs import vectors
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.run import training
from cleanrl_worker.schema.parameters import describe
from mosaic.contract import metrics

# one that samples a memory: the tag of its values, and what makes it learn soon
RATES = {"learning_rate": 1e-3, "train_frequency": 1}
ATOMS = RATES | {"v_min": -2.0, "v_max": 12.0}
SAC = {"q_lr": 1e-3, "update_frequency": 1, "autotune": False, "alpha": 0.0}
MEMORIES = {
    "dqn_atari": ("losses/q_values", RATES),
    "dqn_atari_jax": ("losses/q_values", RATES),
    "c51_atari": ("losses/q_values", ATOMS),
    "c51_atari_jax": ("losses/q_values", ATOMS),
    "rainbow_atari": ("losses/q_values", ATOMS),
    "sac_atari": ("losses/qf1_values", SAC),
    "qdagger_dqn_atari_impalacnn": ("losses/q_values", RATES | tiny_envs.small_lesson(2, 1)),
    "qdagger_dqn_atari_jax_impalacnn": ("losses/q_values", RATES | tiny_envs.small_lesson(2, 1)),
}
# one that learns from rollouts: where its function of the advantages is given the next values, and small sizes of it
ROLLOUTS = {
    "ppo_atari": {},
    "ppo_atari_envpool": {},
    "ppo_atari_lstm": {},
    "ppo_atari_multigpu": {},
    "ppo_atari_envpool_xla_jax": {},
    "ppo_atari_envpool_xla_jax_scan": {},
    "ppo_rnd_envpool": {"num_iterations_obs_norm_init": 0},
    "ppo_procgen": {},
    "ppg_procgen": {"n_iteration": 1, "e_auxiliary": 0},
    "ppo_pettingzoo_ma_atari": {},
    "pqn_atari_envpool": {},
    "pqn_atari_envpool_lstm": {},
}


def test_every_algorithm_for_images_is_asked_what_comes_after_an_end():
    images = [name for name, entry in describe().items() if entry["observation_spaces"] == ["image"]]
    assert sorted([*MEMORIES, *ROLLOUTS]) == sorted(images)


def train(name, folder, **options):
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY[name])
    module.main(module.Args(run_dir=folder, cuda=False, num_threads=1, **options))
    return metrics.read_rows(folder / "metrics.jsonl")


@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize(("truncates", "low", "high"), [(True, 3.5, 6.5), (False, 0.9, 2.6)])
def test_values_bootstrap_at_a_truncation_and_stop_at_a_termination(name, truncates, low, high, tmp_path, monkeypatch):
    corridor = partial(tiny_envs.Dark, truncates, length=2)  # short, and a small discount: values that are learned soon
    monkeypatch.setattr(vectors, "atari", lambda args, _folder: vectors.SyncEnvs([corridor] * args.num_envs))
    if "qdagger" in name:  # a teacher that is no better than its student counts for nothing
        module = importlib.import_module(DEFAULT_ALGO_REGISTRY[name])
        monkeypatch.setattr(module, "mean_return", lambda *_given: 1.0)
    tag, options = MEMORIES[name]
    small = {"total_timesteps": 100, "learning_starts": 20, "buffer_size": 100, "batch_size": 8}
    rows = train(name, tmp_path, gamma=0.8, target_network_frequency=4, **small, **options)
    assert low < [row[tag] for row in rows if tag in row][-1] < high, "5, or 1.67 where every second step is the last"


@pytest.mark.parametrize("name", ROLLOUTS)
def test_a_rollout_goes_on_with_the_last_frames_of_what_was_cut_off_and_with_nothing_after_an_end(
    name, tmp_path, monkeypatch
):
    """Nothing is learned here: the values that a batch goes on with are compared with each other."""
    needed(name)
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY[name])
    maths, place = ("lambda_returns", 1) if "pqn" in name else ("gae", 2)
    plain, kept = getattr(module, maths), []

    def noted(*given):
        if "_jax" in name:
            jax.debug.callback(lambda found: kept.append(np.array(found)), given[place])
        else:
            kept.append(given[place].copy())
        return plain(*given)

    def dawns(args, _video_folder=None, view=None):
        players = 2 if "pettingzoo" in name else 0
        made = vectors.SyncEnvs([partial(tiny_envs.Dawns, players)] * args.num_envs)
        if players:
            view.matches.extend(made.envs)
        return made

    monkeypatch.setattr(module, maths, noted)
    monkeypatch.setattr(vectors, "atari", dawns)
    monkeypatch.setattr(vectors, "vector", dawns)
    monkeypatch.setattr(module, "register", lambda _env_id: 2, raising=False)
    monkeypatch.setattr(training.Run, "evaluate", lambda *_given, **_more: None)  # there is no such game to play
    count = "local_num_envs" if "multigpu" in name else "num_envs"
    sizes = {count: 2, "total_timesteps": 20, "num_steps": 10, "num_minibatches": 1}
    train(name, tmp_path, learning_rate=0.0, **sizes, **ROLLOUTS[name])
    jax.effects_barrier()

    # compiling runs it once before, on nothing; curiosity's own values come after the game's
    rows = kept[-1] if "_jax" in name else kept[0]
    cut, alike, ended = rows[3], rows[7], rows[9]  # what the 4th step led to, the 8th, and the 10th
    np.testing.assert_allclose(cut, alike, rtol=1e-5, atol=1e-7)
    assert (abs(cut) > 1e-6).all() and (ended == 0.0).all()
