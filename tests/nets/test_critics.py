import pytest
import torch
from torch import nn

from cleanrl_worker.nets.critics import TwinLinear, action_slopes, least_slopes, twin_values, twin_vjp

KINDS = [(torch.float64, {"rtol": 1e-10, "atol": 1e-10}), (torch.float32, {"rtol": 1e-4, "atol": 1e-6})]


def layers_of(dtype: torch.dtype) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(TwinLinear(a, b) for a, b in ((7, 16), (16, 12), (12, 1))).to(dtype)


def one_by_one(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    """Both networks as their paper has them, for autograd to differentiate."""
    first, second, last = layers
    both = []
    for which in range(2):
        hidden = x
        for layer in (first, second):
            hidden = torch.relu(hidden @ layer.weight[which] + layer.bias[which])
        both.append((hidden @ last.weight[which] + last.bias[which]).squeeze(-1))
    return torch.stack(both)


@pytest.mark.parametrize(("dtype", "near"), KINDS)
@pytest.mark.parametrize("batch", [1, 5, 64])
def test_the_gradients_of_twin_critics_are_those_of_autograd(dtype, near, batch):
    layers = layers_of(dtype)
    x, target = torch.randn(batch, 7, dtype=dtype), torch.randn(batch, dtype=dtype)
    expected = one_by_one(layers, x)
    loss = ((expected - target) ** 2).mean(dim=1).sum()
    values, pull = twin_vjp(layers, x)
    torch.testing.assert_close(values, expected.detach(), **near)
    found = pull((values - target) * (2.0 / batch))
    for slope, other in zip(found, torch.autograd.grad(loss, list(layers.parameters())), strict=True):
        torch.testing.assert_close(slope, other, **near)


@pytest.mark.parametrize(("dtype", "near"), KINDS)
@pytest.mark.parametrize("batch", [1, 5, 64])
def test_the_slopes_by_the_actions_are_those_of_autograd(dtype, near, batch):
    layers = layers_of(dtype)
    obs, actions = torch.randn(batch, 5, dtype=dtype), torch.randn(batch, 2, dtype=dtype, requires_grad=True)
    expected = one_by_one(layers, torch.cat([obs, actions], dim=1))[0]
    values, slopes = action_slopes([(layer.weight[0], layer.bias[0, 0]) for layer in layers], obs, actions)
    torch.testing.assert_close(values, expected.detach(), **near)
    torch.testing.assert_close(slopes, torch.autograd.grad(expected.sum(), actions)[0], **near)


@pytest.mark.parametrize(("dtype", "near"), KINDS)
@pytest.mark.parametrize("batch", [1, 5, 64])
def test_the_slopes_of_the_smaller_value_are_those_of_autograd(dtype, near, batch):
    layers = layers_of(dtype)
    obs, actions = torch.randn(batch, 5, dtype=dtype), torch.randn(batch, 2, dtype=dtype, requires_grad=True)
    expected = one_by_one(layers, torch.cat([obs, actions], dim=1)).amin(dim=0)
    values, slopes = least_slopes(list(layers), obs, actions)
    torch.testing.assert_close(values, expected.detach(), **near)
    torch.testing.assert_close(slopes, torch.autograd.grad(expected.sum(), actions)[0], **near)


def test_where_both_values_are_equal_the_slope_is_that_of_one():
    layers = layers_of(torch.float64)
    with torch.no_grad():
        for pair in layers.parameters():
            pair[1] = pair[0]
    obs, actions = torch.randn(5, 5, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    of_first = action_slopes([(layer.weight[0], layer.bias[0, 0]) for layer in layers], obs, actions)
    torch.testing.assert_close(least_slopes(list(layers), obs, actions), of_first)


def test_twin_layers_computed_apart_as_on_a_gpu_give_the_same():
    first, second, _ = layers_of(torch.float32)
    x = torch.randn(2, 5, 7)
    with torch.no_grad():
        torch.testing.assert_close(first.relu_apart(x), first.relu(x))
        torch.testing.assert_close(second.relu_apart(first.relu(x)), torch.relu(second(first.relu(x))))


def test_twin_values_can_also_be_differentiated():
    layers = layers_of(torch.float64)
    x = torch.randn(5, 7, dtype=torch.float64)
    found = torch.autograd.grad(twin_values(layers, x).sum(), list(layers.parameters()))
    torch.testing.assert_close(found, torch.autograd.grad(one_by_one(layers, x).sum(), list(layers.parameters())))
