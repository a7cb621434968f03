import numpy as np
import pytest
import torch
from torch import nn

from cleanrl_worker.nets.layers import NumpyNet, orthogonal


def test_the_numpy_network_gives_what_torch_gives_and_follows_the_weights():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 3))
    policy = NumpyNet(net)
    x = torch.randn(5, 4)
    np.testing.assert_allclose(policy(x.numpy()), net(x).detach().numpy(), atol=1e-5)
    with torch.no_grad():
        net[3].weight.add_(torch.randn(64))
        net[3].bias.add_(torch.randn(64))
        net[5].bias.add_(1.0)
    np.testing.assert_allclose(policy(x.numpy()), net(x).detach().numpy(), atol=1e-5)


def test_a_layer_without_a_numpy_version_is_named():
    with pytest.raises(TypeError, match="no numpy version of Softplus"):
        NumpyNet(nn.Softplus())


def test_orthogonal_weights_have_the_gain_asked_for():
    layer = orthogonal(nn.Linear(8, 8), gain=0.5)
    torch.testing.assert_close(layer.weight @ layer.weight.T, 0.25 * torch.eye(8), atol=1e-5, rtol=0)
    assert not layer.bias.any()
