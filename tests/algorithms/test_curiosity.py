"""What random network distillation calls normal: the frames and the curiosity of all steps so far."""

import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from cleanrl_worker.algorithms.ppo_rnd_envpool import Args, CuriosityScale, FrameScale, Novelty, main
from cleanrl_worker.learn.normalize import RunningStatistics
from cleanrl_worker.run.resume import REQUEUE


@pytest.mark.parametrize(("steps", "envs"), [(3, 1), (5, 7), (3, 128), (2, 300)])
def test_the_scale_of_frames_is_that_of_the_newest_of_each_four(steps, envs):
    rng = np.random.default_rng(0)
    scale, seen = FrameScale(torch.device("cpu")), RunningStatistics((84, 84))
    for brightest in (256, 20):
        frames = rng.integers(0, brightest, (steps, envs, 4, 84, 84), dtype=np.uint8)
        frames[..., :10, :] = 255  # of a wall that never changes the variance is exactly 0
        scale.observe(torch.from_numpy(frames))
        seen.update(frames[:, :, 3].reshape(-1, 84, 84).astype(np.float64))
    np.testing.assert_allclose(scale.statistics.mean[0], seen.mean, rtol=1e-12)
    np.testing.assert_allclose(scale.statistics.var[0], seen.var, rtol=1e-9)
    assert scale.statistics.count == seen.count
    normal = scale(torch.from_numpy(frames[0, :, 3:]))
    wanted = (frames[0, :, 3] - seen.mean) / np.sqrt(seen.var + 1e-8)
    np.testing.assert_allclose(normal[:, 0].numpy(), wanted.clip(-5, 5), atol=1e-4)


def test_curiosity_is_divided_by_the_deviation_of_its_discounted_sum():
    curiosity = np.random.default_rng(0).gamma(2.0, 3.0, (64, 8)).astype(np.float32)
    scale, sums, all_sums = CuriosityScale(8, 0.9), np.zeros(8), []
    for row in curiosity:
        sums = 0.9 * sums + row
        all_sums.append(sums)
    np.testing.assert_allclose(scale.observe(curiosity), curiosity / np.std(all_sums), rtol=1e-4)


@pytest.mark.parametrize(
    ("share", "pieces", "frames"),
    [
        (0.0, 2, [0, 0]),
        (0.05, 2, [1, 1]),
        (0.25, 2, [4, 4]),
        (0.26, 2, [5, 5]),
        (1.0, 2, [16, 16]),
        (0.3, 3, [3, 3, 3, 1]),
    ],
)
def test_the_predictor_learns_from_its_share_of_each_minibatch(share, pieces, frames, tmp_path, monkeypatch):
    """The last minibatch may be a short one: of 32 rows in three pieces it has 2."""
    plain, learned, weights = Novelty.forward, [], []

    def noted(novelty, seen):
        if torch.is_grad_enabled():
            learned.append(len(seen))
        weights.append(novelty.predictor[-1].bias.detach().clone())
        return plain(novelty, seen)

    monkeypatch.setattr(Novelty, "forward", noted)
    sizes = {"num_envs": 4, "num_steps": 8, "num_minibatches": pieces, "update_epochs": 1}
    where = {"env_id": "mosaic/Catch-v0", "run_dir": tmp_path, "cuda": False, "num_iterations_obs_norm_init": 0}
    main(Args(total_timesteps=64, update_proportion=share, **sizes, **where))
    assert learned == frames * 2
    moved = (weights[-1] - weights[0]).abs().max()
    assert moved < 1e-9 if share == 0 else moved > 1e-6  # Adam's smallest steps are of no account


def test_random_play_is_told_and_a_signal_ends_it_at_once(tmp_path):
    """On a CPU it takes minutes, in which there is nothing to save yet: the run asks to be started again."""
    alone = ("-m", "cleanrl_worker.algorithms.ppo_rnd_envpool", "--env-id=mosaic/Catch-v0", f"--run-dir={tmp_path}")
    small = ("--num-envs=2", "--num-steps=8", "--num-iterations-obs-norm-init=1000000", "--no-cuda")
    with subprocess.Popen([sys.executable, *alone, *small], stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == "playing at random, to know the scale of frames: 0 of 16,000,000 steps\n"
            run.send_signal(signal.SIGTERM)
            assert run.wait(60) == REQUEUE
        finally:
            run.kill()  # one that goes on would be waited for
