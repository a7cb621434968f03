"""Policy files of image DQNs, read with numpy only and converted between torch and flax.

A torch process need not import jax for a flax file, nor a JAX process torch for a torch file.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from cleanrl_worker.run import policy_files

# Layer names in torch and in flax: DQN's own network, and IMPALA's. The first linear layer is the last but one.
NATURE = {f"network.{place}": f"Conv_{number}" for number, place in enumerate((0, 2, 4))}
NATURE |= {"network.7": "Dense_0", "network.9": "Dense_1"}
IMPALA = {f"network.{number}.conv": f"ConvSequence_{number}/Conv_0" for number in range(3)}
IMPALA |= {
    f"network.{number}.res_block{block}.conv{layer}": f"ConvSequence_{number}/ResidualBlock_{block}/Conv_{layer}"
    for number, block, layer in itertools.product(range(3), range(2), range(2))
}
IMPALA |= {"network.5": "Dense_0", "network.7": "Dense_1"}

State = dict[str, np.ndarray]


def read(data: bytes) -> State:
    """Return the acting network's arrays under the file's names; raise one of UNREADABLE for anything else."""
    state = policy_files.acting_network(policy_files.read(data))[0]
    if not isinstance(state, dict) or not all(isinstance(value, np.ndarray) for value in state.values()):
        raise ValueError("it holds no named arrays")
    policy_files.require_floats(state)
    return dict(state)


def is_flax(state: Mapping[str, Any]) -> bool:
    return any(name.startswith("params/") for name in state)


def layers_of(state: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the layers of the network with these names, mapping torch's name to flax's."""
    for layers in (NATURE, IMPALA):
        names = [name for pair in layers.items() for name in (f"{pair[0]}.weight", f"params/{pair[1]}/kernel")]
        if sum(name in state for name in names) == len(layers):
            return layers
    raise ValueError("it has the layers of neither DQN's network nor IMPALA's")


def as_flax(state: Mapping[str, np.ndarray]) -> State:
    """Return the arrays in the layout of our JAX policies."""
    if is_flax(state):
        return dict(state)
    layers, found = layers_of(state), {}
    channels = _channels(layers, lambda torch_name, _: len(state[f"{torch_name}.weight"]))
    for torch_name, name in layers.items():
        weight = state[f"{torch_name}.weight"]
        if name == "Dense_0":  # its inputs are the last convolution's outputs, in torch channel by channel
            weight = weight.reshape(len(weight), channels, *_square(weight.shape[1] / channels))
        kernel = weight.transpose(2, 3, 1, 0) if weight.ndim == 4 else weight.T
        found[f"params/{name}/kernel"] = kernel.reshape(-1, len(weight)) if name == "Dense_0" else kernel
        found[f"params/{name}/bias"] = state[f"{torch_name}.bias"]
    return found


def as_torch(state: Mapping[str, np.ndarray]) -> State:
    """Return the arrays in the layout of our torch policies."""
    if not is_flax(state):
        return dict(state)
    layers, found = layers_of(state), {}
    channels = _channels(layers, lambda _, name: state[f"params/{name}/kernel"].shape[-1])
    for torch_name, name in layers.items():
        kernel = state[f"params/{name}/kernel"]
        if name == "Dense_0":
            kernel = kernel.reshape(*_square(len(kernel) / channels), channels, -1)
        weight = kernel.transpose(3, 2, 0, 1) if kernel.ndim == 4 else kernel.T
        found[f"{torch_name}.weight"] = weight.reshape(len(weight), -1) if name == "Dense_0" else weight
        found[f"{torch_name}.bias"] = state[f"params/{name}/bias"]
    return {name: np.ascontiguousarray(array) for name, array in found.items()}


def _channels(layers: Mapping[str, str], outputs: Any) -> int:
    """Return the output channels of the last convolution."""
    return int(outputs(*[pair for pair in layers.items() if "Conv" in pair[1]][-1]))


def _square(places: float) -> tuple[int, int]:
    side = math.isqrt(int(places))
    return side, side
