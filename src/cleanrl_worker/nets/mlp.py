"""Actor-critic networks for flat observations and discrete actions."""

from typing import Any

import torch
from torch import nn

from cleanrl_worker.nets.layers import NumpyNet, Pullback, TanhTower, flat_size, orthogonal


class MLPAgent(nn.Module):
    """A shared trunk of two tanh layers, with a policy head and a value head."""

    def __init__(self, envs: Any, hidden: int = 64) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            orthogonal(nn.Linear(flat_size(envs.single_observation_space.shape), hidden)),
            nn.Tanh(),
            orthogonal(nn.Linear(hidden, hidden)),
            nn.Tanh(),
        )
        self.actor = orthogonal(nn.Linear(hidden, int(envs.single_action_space.n)), gain=0.01)
        self.critic = orthogonal(nn.Linear(hidden, 1), gain=1.0)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and values."""
        hidden = self.trunk(obs)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)

    def vjp(self, obs: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], Pullback]:
        """Return logits and values, and the pullback from their gradients to the parameters'."""
        outputs = self(obs)
        return outputs, lambda *gradients: torch.autograd.grad(outputs, list(self.parameters()), gradients)

    def numpy_policy(self) -> NumpyNet:
        """Return a function from observations to logits, for acting."""
        return NumpyNet(self.trunk, self.actor)


class SeparateMLPAgent(nn.Module):
    """CleanRL's separate networks for policy and value, without shared layers."""

    def __init__(self, envs: Any, hidden: int = 64) -> None:
        super().__init__()
        inputs = flat_size(envs.single_observation_space.shape)
        self.critic = TanhTower(inputs, hidden, hidden, 1, gain=1.0)
        self.actor = TanhTower(inputs, hidden, hidden, int(envs.single_action_space.n), gain=0.01)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and values."""
        return self.actor(obs), self.critic(obs).squeeze(-1)

    def vjp(self, obs: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], Pullback]:
        """Return logits and values, and the pullback from their gradients to the parameters'."""
        (values, to_critic), (logits, to_actor) = self.critic.vjp(obs), self.actor.vjp(obs)
        return (logits, values.squeeze(-1)), lambda d_logits, d_values: [
            *to_critic(d_values.unsqueeze(-1)),
            *to_actor(d_logits),
        ]

    def numpy_policy(self) -> NumpyNet:
        """Return a function from observations to logits, for acting."""
        return NumpyNet(self.actor)
