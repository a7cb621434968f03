"""Batches from a replay memory: the same rows as the memory's own sample, on every device there is."""

import numpy as np
import pytest
import torch

from cleanrl_worker.envs.episodes import Step
from cleanrl_worker.learn import batches
from cleanrl_worker.learn.batches import Batches, FrameBatches
from cleanrl_worker.learn.buffers import ReplayBuffer
from cleanrl_worker.learn.frame_buffer import FrameReplay

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize(("shape", "kind"), [((), np.int64), ((3,), np.float32)])
@pytest.mark.parametrize(
    ("device", "smallest_twin"),
    [("cpu", 0), pytest.param("cuda", 10, marks=GPU), pytest.param("cuda", 1000, marks=GPU)],
)
def test_a_draw_is_the_sample_of_the_same_generator(monkeypatch, device, smallest_twin, shape, kind):
    monkeypatch.setattr(batches, "SMALLEST_TWIN", smallest_twin)
    plain, ours = (ReplayBuffer(37, (2,), shape, kind) for _ in range(2))
    drawing = Batches(ours, 16, torch.device(device))
    rng, numbers = np.random.default_rng(1), (np.random.default_rng(2), np.random.default_rng(2))
    for count in (3, 1, 40, 2, 90, 5, 30):
        for _ in range(count):
            obs, actions = rng.random((2, 2)), (rng.random((2, *shape)) * 9).astype(kind)
            transition = (obs, actions, rng.random(2), rng.random((2, 2)), rng.random(2) < 0.5)
            plain.add(*transition)
            ours.add(*transition)
        expected, found = plain.sample(16, numbers[0]), drawing.at(drawing.draw(numbers[1]))
        for name, part in zip(expected._fields, found, strict=True):
            assert part.device.type == device
            np.testing.assert_array_equal(part.cpu().numpy(), getattr(expected, name), strict=True)


@pytest.mark.parametrize(
    ("device", "largest_twin"),
    [("cpu", 0), pytest.param("cuda", 2**20, marks=GPU), pytest.param("cuda", 0, marks=GPU)],
)
def test_a_draw_of_frames_is_the_sample_of_the_same_generator(monkeypatch, device, largest_twin):
    monkeypatch.setattr(batches, "LARGEST_TWIN", largest_twin)
    monkeypatch.setattr(batches, "BLOCK", 7)
    plain, ours = (FrameReplay(40, (4, 5, 5)) for _ in range(2))
    for memory in (plain, ours):
        memory.frames = memory.frames[:60].copy()  # the ring of frames wraps, too
    drawing = FrameBatches(ours, 16, torch.device(device))
    rng, numbers = np.random.default_rng(1), (np.random.default_rng(2), np.random.default_rng(2))
    obs = rng.integers(0, 255, (2, 4, 5, 5)).astype(np.uint8)
    for count in (5, 1, 30, 2, 90, 5):
        for _ in range(count):
            final_obs = np.concatenate([obs[:, 1:], rng.integers(0, 255, (2, 1, 5, 5)).astype(np.uint8)], axis=1)
            ends, after = rng.random(2) < 0.1, final_obs.copy()
            after[ends] = rng.integers(0, 255, (int(ends.sum()), 4, 5, 5))
            reached = Step(after, rng.random(2), ends, np.zeros(2, bool), final_obs, [])
            actions = rng.integers(0, 5, 2)
            for memory in (plain, ours):
                memory.add(obs, actions, reached)
            obs = after
        expected, found = plain.sample(16, numbers[0]), drawing.at(drawing.draw(numbers[1]))
        for name, part in zip(expected._fields, found, strict=True):
            assert part.device.type == device
            np.testing.assert_array_equal(part.cpu().numpy(), getattr(expected, name), strict=True)
