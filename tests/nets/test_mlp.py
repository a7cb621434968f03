from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cleanrl_worker.nets.mlp import MLPAgent, SeparateMLPAgent

ENVS = SimpleNamespace(single_observation_space=SimpleNamespace(shape=(4,)), single_action_space=SimpleNamespace(n=3))


@pytest.mark.parametrize("agent_type", [MLPAgent, SeparateMLPAgent])
def test_acting_in_numpy_uses_the_same_policy_as_learning(agent_type):
    agent = agent_type(ENVS)
    x = torch.randn(6, 4)
    logits, values = agent(x)
    assert values.shape == (6,)
    np.testing.assert_allclose(agent.numpy_policy()(x.numpy()), logits.detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("agent_type", [MLPAgent, SeparateMLPAgent])
def test_the_pullback_gives_what_autograd_gives_in_the_order_of_the_parameters(agent_type):
    agent = agent_type(ENVS)
    x = torch.randn(6, 4)
    (logits, values), pull = agent.vjp(x)
    expected_logits, expected_values = agent(x)
    torch.testing.assert_close((logits.detach(), values.detach()), (expected_logits.detach(), expected_values.detach()))
    gradients = torch.randn(6, 3), torch.randn(6)
    scalar = (expected_logits * gradients[0]).sum() + (expected_values * gradients[1]).sum()
    torch.testing.assert_close(tuple(pull(*gradients)), torch.autograd.grad(scalar, list(agent.parameters())))


def test_separate_networks_carry_cleanrl_keys():
    keys = set(SeparateMLPAgent(ENVS).state_dict())
    assert keys == {
        f"{tower}.{layer}.{part}" for tower in ("critic", "actor") for layer in (0, 2, 4) for part in ("weight", "bias")
    }


def test_the_shared_network_is_one_trunk_of_64_and_64_with_two_heads():
    shapes = {
        name: tuple(value.shape) for name, value in MLPAgent(ENVS).state_dict().items() if name.endswith("weight")
    }
    assert shapes == {
        "trunk.0.weight": (64, 4),
        "trunk.2.weight": (64, 64),
        "actor.weight": (3, 64),
        "critic.weight": (1, 64),
    }
