"""Layers that several networks share, and networks run in numpy for acting."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import nn

LayerT = TypeVar("LayerT", nn.Linear, nn.Conv2d)


def orthogonal(layer: LayerT, gain: float = 2**0.5) -> LayerT:
    """PPO's initialisation: orthogonal weights of the given gain, no bias."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class NumpyNet:
    """Modules one after the other, computed in numpy: for acting.

    A torch call costs tens of microseconds before it computes anything; for the few rows of a rollout step numpy is
    several times faster. On the CPU the weights are shared, from a GPU they are copied: call `refresh` after an update.
    """

    def __init__(self, *modules: nn.Module) -> None:
        self._modules = [
            layer for module in modules for layer in (module if isinstance(module, nn.Sequential) else [module])
        ]
        self._shared = all(parameter.device.type == "cpu" for module in modules for parameter in module.parameters())
        self._layers = [_numpy_layer(layer) for layer in self._modules]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        for layer in self._layers:
            x = layer(x)
        return x

    def refresh(self) -> None:
        """Take today's weights."""
        if not self._shared:
            self._layers = [_numpy_layer(layer) for layer in self._modules]


def _numpy_layer(layer: nn.Module) -> Callable[[np.ndarray], np.ndarray]:
    if isinstance(layer, nn.Linear):
        weight = layer.weight.detach().cpu().numpy().T
        bias = layer.bias.detach().cpu().numpy()
        return lambda x: x @ weight + bias
    if isinstance(layer, nn.Tanh):
        return np.tanh
    if isinstance(layer, nn.ReLU):
        return lambda x: np.maximum(x, 0.0)
    raise TypeError(f"no numpy version of {type(layer).__name__}")


def flat_size(shape: tuple[int, ...] | None) -> int:
    """How many numbers an observation or action of this shape holds."""
    return int(np.prod(shape or (1,)))


def numbers(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Observations as the networks take them: float32 on the device."""
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).to(device)
