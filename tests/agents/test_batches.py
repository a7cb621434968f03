"""Batches from a replay memory: the same rows as the memory's own sample, on every device there is."""

import numpy as np
import pytest
import torch

from cleanrl_worker.agents import batches
from cleanrl_worker.agents.batches import Batches
from cleanrl_worker.kit.buffers import ReplayBuffer

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
