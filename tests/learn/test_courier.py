"""Arrays on their way to the networks and back: the same numbers, on every device there is."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cleanrl_worker.learn.courier import Courier

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_what_is_fetched_is_what_was_sent(device):
    courier, fetched = Courier(torch.device(device)), []
    for number in range(20):
        sent = courier.send(np.full((3, 2), number, np.uint8))
        assert sent.device.type == device and sent.dtype == torch.uint8
        fetched.append(courier.fetch(sent.sum(dim=1)))
    assert [row.tolist() for row in fetched] == [[2 * number] * 3 for number in range(20)]


@GPU
def test_arrays_of_one_shape_arrive_in_the_same_tensor():
    courier = Courier(torch.device("cuda"))
    first = courier.send(np.zeros((2, 2), np.float32))
    assert courier.send(np.ones((2, 2), np.float32)) is first
    assert courier.send(np.ones((2, 3), np.float32)) is not first


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize("cudagraphs", [True, False])
def test_what_is_asked_is_answered_as_it_was_when_asked(device, cudagraphs):
    args = SimpleNamespace(cudagraphs=cudagraphs, compile=False)
    run: Any = SimpleNamespace(args=args, device=torch.device(device), tell=lambda *_: pytest.fail("not recorded"))
    weight = torch.ones((), device=device)

    @Courier(run.device).both_ways(run)
    def total(seen):
        return (seen * weight).sum(dim=1)

    for number in range(20):
        rows = 3 if number % 2 else 2  # shapes take turns
        asked = total(np.full((rows, 2), number, np.float32))
        weight.add_(1)  # as an update would that is begun before the answer is fetched
        assert asked.fetch().tolist() == [2 * number * (number + 1)] * rows
