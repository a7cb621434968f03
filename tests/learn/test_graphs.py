"""Updates as CUDA graphs: replayed where that can be done, as they are where it cannot."""

from types import SimpleNamespace

import pytest
import torch

from cleanrl_worker.learn import graphs

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def a_run(device: str, told: list[str], cudagraphs: bool = True) -> SimpleNamespace:
    return SimpleNamespace(
        args=SimpleNamespace(cudagraphs=cudagraphs, compile=False),
        device=torch.device(device),
        tell=lambda kind, payload: told.append(f"{kind}: {payload['message']}"),
    )


@pytest.mark.parametrize(("device", "cudagraphs"), [("cpu", True), ("cuda", False)])
def test_an_update_is_left_as_it_is_on_a_cpu_and_where_no_graphs_are_wanted(device, cudagraphs):
    def update(x: torch.Tensor) -> torch.Tensor:
        return x

    assert graphs.captured(a_run(device, [], cudagraphs))(update) is update


@GPU
def test_a_replay_does_what_the_update_does_for_every_shape_of_arguments():
    totals, told = torch.zeros(2, device="cuda"), []

    def update(x: torch.Tensor) -> torch.Tensor:
        totals[0] += x.sum() * torch.rand((), device="cuda")
        return x * totals[0]

    results = []
    for cudagraphs in (False, True):
        torch.manual_seed(3)
        totals.zero_()
        learn = graphs.captured(a_run("cuda", told, cudagraphs))(update)
        results.append([learn(torch.full((2 + n % 2,), float(n), device="cuda")).tolist() for n in range(16)])
    assert results[0] == results[1] and not told


@GPU
def test_what_cannot_be_recorded_goes_on_with_one_warning():
    total, told = torch.zeros((), device="cuda"), []

    @graphs.captured(a_run("cuda", told))
    def update(x: torch.Tensor) -> None:
        total.add_(x.sum() * (1 + 0 * torch.rand((), device="cuda")))
        assert x.sum().item() == 2.0  # looks at a value

    for _ in range(8):
        update(torch.ones(2, device="cuda"))
    assert total.item() == 16.0
    assert len(told) == 1 and told[0].startswith("warning: updates run without CUDA graphs")
