"""Layers shared by several networks, and networks evaluated in numpy for acting."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import nn

LayerT = TypeVar("LayerT", nn.Linear, nn.Conv2d)
# A map from the gradients of a network's outputs to those of its parameters (a vector-Jacobian product).
Pullback = Callable[..., Sequence[torch.Tensor]]


def orthogonal(layer: LayerT, gain: float = 2**0.5) -> LayerT:
    """Apply PPO's initialisation: orthogonal weights with the given gain, no bias."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class Tower(nn.Sequential):
    """Linear layers with an activation between them."""

    activated: Callable[[nn.Linear, torch.Tensor], torch.Tensor]
    """the activated outputs of a linear layer"""
    pull_back: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """the gradient of an activation's input, from that of its output (overwritten) and the output"""

    def vjp(self, x: torch.Tensor) -> tuple[torch.Tensor, Pullback]:
        """Return the outputs, and the pullback from their gradient to the parameters' (in `parameters()` order)."""
        return vjp(type(self), [layer for layer in self if isinstance(layer, nn.Linear)], x)


@torch.no_grad()
def vjp(tower: type[Tower], linears: Sequence[nn.Linear], x: torch.Tensor) -> tuple[torch.Tensor, Pullback]:
    """Return the outputs of a tower with these layers, and the pullback from their gradient to the parameters'.

    Written out, because autograd's overhead is as large as the arithmetic of such small networks.
    """
    inputs = [x]
    for linear in linears[:-1]:
        inputs.append(tower.activated(linear, inputs[-1]))

    @torch.no_grad()
    def pull(gradient: torch.Tensor) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for linear, given in zip(reversed(linears), reversed(inputs), strict=True):
            found += [gradient.sum(dim=0), gradient.t() @ given]
            if given is not x:
                gradient = tower.pull_back(gradient @ linear.weight, given)
        return found[::-1]

    return torch.addmm(linears[-1].bias, inputs[-1], linears[-1].weight.t()), pull


class TanhTower(Tower):
    """CleanRL's PPO network for flat observations."""

    def __init__(self, *sizes: int, gain: float) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes[:-1]):
            layers += [orthogonal(nn.Linear(inputs, outputs)), nn.Tanh()]
        super().__init__(*layers, orthogonal(nn.Linear(sizes[-2], sizes[-1]), gain=gain))

    @staticmethod
    def activated(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return _tanh(torch.addmm(linear.bias, x, linear.weight.t()))

    @staticmethod
    def pull_back(gradient: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.tanh_backward(gradient, output)  # the derivative is 1 - tanh^2, and tanh is known


class ReluTower(Tower):
    """CleanRL's DQN network for flat observations."""

    def __init__(self, *sizes: int) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes[:-1]):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        super().__init__(*layers, nn.Linear(sizes[-2], sizes[-1]))

    @staticmethod
    def activated(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return relu_of(linear.weight.t(), linear.bias, x)

    @staticmethod
    def pull_back(gradient: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        return through_relu(gradient, output)


def relu_of(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return max(0, x @ weight + bias) without a gradient: one kernel on a GPU."""
    return torch._addmm_activation(bias, x, weight)


def through_relu(gradient: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Convert the gradient of ReLU's output to its input's, in place: zero for inactive units."""
    return torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


def _tanh(x: torch.Tensor) -> torch.Tensor:
    """Apply tanh in place; on the CPU, numpy's is eight times as fast as torch's."""
    if x.device.type != "cpu":
        return x.tanh_()
    np.tanh(x.numpy(), out=x.numpy())
    return x


class NumpyNet:
    """A sequence of modules, evaluated in numpy for acting.

    A torch call has an overhead of tens of microseconds; for the few rows of a rollout step, numpy is several times
    faster. On the CPU the weights are shared, from a GPU they are copied: call `refresh` after an update.
    """

    def __init__(self, *modules: nn.Module) -> None:
        layers = [layer for module in modules for layer in (module if isinstance(module, nn.Sequential) else [module])]
        parameters = [parameter for layer in layers for parameter in layer.parameters()]
        self._mirror = ParameterMirror(parameters) if any(parameter.is_cuda for parameter in parameters) else None
        self._layers = [_numpy_layer(layer, self._mirror) for layer in layers]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if self._mirror is not None:
            self._mirror.wait()
        for layer in self._layers:
            x = layer(x)
        return x

    def refresh(self) -> None:
        """Copy the current weights from a GPU; a no-op on the CPU."""
        if self._mirror is not None:
            self._mirror.refresh()


class ParameterMirror:
    """A copy of GPU parameters in pinned memory, updated asynchronously.

    Parameters that an optimizer made views of one vector are copied in one piece.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._places: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """by storage: its range with the parameters, on the GPU and in pinned memory"""
        for storage in {_storage(parameter) for parameter in parameters}:
            inside = [parameter for parameter in parameters if _storage(parameter) == storage]
            first = min(parameter.storage_offset() for parameter in inside)
            size = max(parameter.storage_offset() + parameter.numel() for parameter in inside) - first
            there = inside[0].detach().as_strided((size,), (1,), first)
            self._places[storage] = there, torch.empty(size, pin_memory=True)
        self._stream, self._copied = torch.cuda.current_stream(), torch.cuda.Event()
        self.refresh()

    def of(self, parameter: torch.Tensor) -> np.ndarray:
        """Return the copy of the parameter as a numpy array."""
        there, here = self._places[_storage(parameter)]
        first = parameter.storage_offset() - there.storage_offset()
        return here[first : first + parameter.numel()].view_as(parameter).numpy()

    def refresh(self) -> None:
        for there, here in self._places.values():
            here.copy_(there, non_blocking=True)
        self._copied.record(self._stream)
        self._waiting = True

    def wait(self) -> None:
        """Wait until the copy is complete."""
        if self._waiting:
            self._copied.synchronize()
            self._waiting = False


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _numpy_layer(layer: nn.Module, mirror: ParameterMirror | None) -> Callable[[np.ndarray], np.ndarray]:
    seen = mirror.of if mirror is not None else lambda parameter: parameter.detach().numpy()
    if isinstance(layer, nn.Linear):
        weight, bias = seen(layer.weight).T, seen(layer.bias)
        return lambda x: x @ weight + bias
    if isinstance(layer, nn.LayerNorm):
        return _numpy_norm(seen(layer.weight), seen(layer.bias), layer.eps)
    if isinstance(layer, nn.Tanh):
        return np.tanh
    if isinstance(layer, nn.ReLU):
        return lambda x: np.maximum(x, 0.0)
    raise TypeError(f"no numpy version of {type(layer).__name__}")


def _numpy_norm(scale: np.ndarray, shift: np.ndarray, eps: float) -> Callable[[np.ndarray], np.ndarray]:
    average = np.full((len(scale), 1), 1.0 / len(scale), np.float32)  # a product with it is faster than np.mean
    epsilon = np.float32(eps)

    def normalize(x: np.ndarray) -> np.ndarray:
        centered = x - x @ average
        return centered * (scale / np.sqrt((centered * centered) @ average + epsilon)) + shift

    return normalize


def flat_size(shape: tuple[int, ...] | None) -> int:
    """Return the size of an observation or action of this shape."""
    return int(np.prod(shape or (1,)))


def numbers(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return observations as float32 on the device, as the networks accept them."""
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).to(device)
