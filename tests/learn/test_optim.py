import pytest
import torch
from torch import nn

from cleanrl_worker.learn.optim import FlatAdam, FlatRAdam, flattened


@pytest.mark.parametrize(("kind", "original"), [(FlatAdam, torch.optim.Adam), (FlatRAdam, torch.optim.RAdam)])
def test_flat_adam_moves_as_torch_adam_with_clipping_does(kind, original):
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    theirs = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    theirs.load_state_dict(ours.state_dict())
    flat = kind(ours.parameters(), lr=1e-2, eps=1e-5)
    reference = original(theirs.parameters(), lr=1e-2, eps=1e-5)
    for _ in range(50):
        x = torch.randn(16, 3)
        flat.step((ours(x) ** 2).mean() * 10, max_grad_norm=0.5)
        reference.zero_grad()
        ((theirs(x) ** 2).mean() * 10).backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        reference.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


class RecordableAdam(FlatAdam):
    """As on a GPU, where the count of steps and the step size are tensors."""

    replayable = True


class RecordableRAdam(FlatRAdam):
    replayable = True


@pytest.mark.parametrize(("kind", "other"), [(RecordableAdam, FlatAdam), (RecordableRAdam, FlatRAdam)])
def test_adam_that_can_be_recorded_moves_as_the_other_does_and_goes_on_from_its_state(kind, other):
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 4), nn.Linear(3, 4)
    theirs.load_state_dict(ours.state_dict())
    recordable, plain = kind(ours.parameters(), lr=1e-2), other(theirs.parameters(), lr=1e-2)
    for number in range(40):
        if number == 20:
            state = {
                "mean": recordable.mean.numpy(),
                "variance": recordable.variance.numpy(),
                "steps": recordable.steps,
            }
            recordable = kind(ours.parameters(), lr=1.0)
            recordable.load_state_dict(state)
            assert recordable.steps == 20
        x = torch.randn(16, 3)
        recordable.lr = plain.lr = 1e-2 * (1 - number / 40)
        recordable.step((ours(x) ** 2).mean() * 10, max_grad_norm=0.5)
        plain.step((theirs(x) ** 2).mean() * 10, max_grad_norm=0.5)
    torch.testing.assert_close(recordable.flat, plain.flat, rtol=1e-4, atol=1e-6)
    assert recordable.state_dict()["steps"] == plain.state_dict()["steps"] == 40


def test_parameters_are_views_of_one_vector_and_keep_their_values():
    layer = nn.Linear(2, 2)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    optimizer = FlatAdam(layer.parameters(), lr=0.1)
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())
    optimizer.flat.zero_()
    assert not layer.weight.any() and not layer.bias.any()


def test_what_is_done_to_a_flattened_vector_is_done_to_the_parameters_also_after_a_load():
    layer, other = nn.Linear(2, 2), nn.Linear(2, 2)
    flat = flattened(layer.parameters())
    layer.load_state_dict(other.state_dict())
    flat.mul_(2)
    assert torch.equal(layer.weight, 2 * other.weight) and torch.equal(layer.bias, 2 * other.bias)


@pytest.mark.parametrize("kind", [FlatAdam, FlatRAdam])
def test_the_moments_of_units_that_never_fire_stay_numbers_that_a_cpu_is_fast_with(kind):
    dead = nn.Parameter(torch.ones(2))
    optimizer = kind([dead], lr=1e-3)
    optimizer.apply([torch.tensor([1e-4, 1.0])])
    optimizer.variance[0] = 1e-37  # as 70,000 updates would leave it
    for _ in range(1000):
        optimizer.apply([torch.tensor([0.0, 1.0])])
    smallest = torch.finfo(torch.float32).tiny
    assert optimizer.mean[0] > smallest and optimizer.variance[0] > smallest
    before = dead[0].item()
    optimizer.apply([torch.tensor([0.0, 1.0])])
    assert dead[0].item() == before, "and they move nothing"


@pytest.mark.parametrize("kind", [RecordableAdam, RecordableRAdam])
def test_adam_that_can_be_recorded_moves_in_pieces_as_it_does_in_one(kind, monkeypatch):
    monkeypatch.setattr("cleanrl_worker.learn.optim.PIECE", 5)
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 4), nn.Linear(3, 4)
    theirs.load_state_dict(ours.state_dict())
    pieces, whole = kind(ours.parameters(), lr=1e-2), kind(theirs.parameters(), lr=1e-2)
    for _ in range(10):
        gradients = [torch.randn(4, 3), torch.randn(4)]
        pieces.apply(gradients)
        whole.apply(gradients, max_grad_norm=1e9)
    torch.testing.assert_close(pieces.flat, whole.flat)
