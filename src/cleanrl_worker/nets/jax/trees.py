"""Trees of JAX arrays: as parameters of networks, as parts of checkpoints and policy files, and acting in numpy.

Every algorithm file in JAX imports this module first (ruff keeps it there), so that one refusal serves for all where
JAX, flax or optax is missing.
"""

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cleanrl_worker.run.args import RunArgs, told_by

try:
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax as optax
except ModuleNotFoundError as error:
    if needs := told_by(error):
        raise SystemExit(f"this algorithm {needs}") from None
    raise


def prepare(args: RunArgs) -> None:
    """Choose the device that `--cuda` allows, and leave its memory to others too; before anything is computed.

    XLA gets as many CPU threads as `--num-threads` says (0: one for each core). They are part of the recipe: another
    number adds in another order. It reads them once, at a process's first use.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if not args.cuda:
        jax.config.update("jax_platforms", "cpu")
    ours = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    args.num_threads = args.num_threads or len(ours)  # of a shared machine perhaps not all cores
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = str(args.num_threads)
    jax.devices()
    del os.environ["NPROC"]
    if before is not None:
        os.environ["NPROC"] = before


def compiled(what: str, function: Callable[[], Any]) -> None:
    """Call a jitted function once for nothing, so that training need not wait for its compiler; tell of both ends."""
    print(f"compiling {what} …", flush=True)
    started = time.monotonic()
    jax.block_until_ready(function())
    print(f"compiled {what} in {time.monotonic() - started:.1f} s", flush=True)


def dense(features: int, x: jax.Array) -> jax.Array:
    """A layer that begins as torch's do; flax's, with weights 1.7 times as large, learn HalfCheetah more slowly."""
    bound = x.shape[-1] ** -0.5

    def uniform(key: jax.Array, shape: Any, dtype: Any = jnp.float32, **_: Any) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return nn.Dense(features, kernel_init=uniform, bias_init=uniform)(x)


def outputs_of(network: nn.Module, params: Any, *inputs: Any) -> jax.Array:
    """What a network of one output answers: flax's own `apply` may answer anything."""
    outputs: Any = network.apply({"params": params}, *inputs)
    return outputs


def first_params(network: nn.Module, seed: int, *inputs: Any) -> Any:
    """Parameters drawn as flax does by default: kernels of LeCun's normal, cut off at two deviations, and no biases.

    In numpy, for to compile flax's own way of it for a few convolutions takes five seconds.
    """
    rng = np.random.default_rng((seed, 1))  # a stream of its own: `run.rng` has the seed alone

    def drawn(shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 1:
            return np.zeros(shape, np.float32)
        values = rng.standard_normal(shape)
        while (far := np.abs(values) > 2.0).any():
            values[far] = rng.standard_normal(far.sum())
        deviation = math.sqrt(1.0 / math.prod(shape[:-1])) / 0.87962566  # what cutting off left of it
        return (values * deviation).astype(np.float32)

    return jax.device_put(tree_of({name: drawn(shape) for name, shape in _shapes(network, inputs).items()})["params"])


def params_of(network: nn.Module, state: Mapping[str, Any], *inputs: Any) -> Any:
    """The network's parameters from a policy file's arrays; ValueError where one is missing or of another shape."""
    shapes = _shapes(network, inputs)
    for name, shape in shapes.items():
        if name not in state:
            raise ValueError(f"it has no {name}")
        if np.shape(state[name]) != shape:
            raise ValueError(f"size mismatch for {name}: {np.shape(state[name])}, not {shape}")
    return jax.device_put(tree_of({name: np.asarray(state[name], np.float32) for name in shapes})["params"])


class Trees:
    """Named trees of arrays as a part of a checkpoint; a leaf goes by its path, such as `params/Dense_0/kernel`."""

    def __init__(self, **trees: Any) -> None:
        self.trees = trees

    def state_dict(self) -> dict[str, np.ndarray]:
        return arrays_of(self.trees)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take every tree that `state` has (a policy file has only what acts); one that does not fit is refused."""
        paths, structure = jax.tree_util.tree_flatten_with_path(self.trees)
        named = [(path_of(path), leaf) for path, leaf in paths]
        if not any(name in state for name, _ in named):
            raise ValueError(f"it has none of {', '.join(name for name, _ in named[:3])}, …")
        given = {name.partition("/")[0] for name in state}
        for name, leaf in named:
            if name not in state and name.partition("/")[0] in given:
                raise ValueError(f"it has no {name}")
            if name in state and np.shape(state[name]) != np.shape(leaf):
                raise ValueError(f"size mismatch for {name}: {np.shape(state[name])}, not {np.shape(leaf)}")
        leaves = [jnp.asarray(state.get(name, leaf), dtype=jnp.asarray(leaf).dtype) for name, leaf in named]
        self.trees = jax.tree_util.tree_unflatten(structure, leaves)


def arrays_of(tree: Any) -> dict[str, np.ndarray]:
    """The leaves by their paths."""
    return {path_of(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(tree))}


def shapes_of(tree: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of the leaves, by their paths."""
    return {path_of(path): tuple(leaf.shape) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def path_of(path: Any) -> str:
    """JAX's own as one name: `params/Dense_0/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def tree_of(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What `arrays_of` made of nested dicts, back again."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *folders, leaf = name.split("/")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[leaf] = array
    return tree


def dense_layers(
    layers: Mapping[str, Any], activation: Callable[[np.ndarray], np.ndarray]
) -> Callable[[np.ndarray], np.ndarray]:
    """Layers `Dense_0`, `Dense_1`, … in numpy: for the few rows of an acting step a jitted call costs too much."""
    if others := [name for name in layers if not name.startswith("Dense_")]:
        raise ValueError(f"the network has no {others[0]}")
    names = sorted(layers, key=lambda name: int(name.rpartition("_")[2]))
    layers = jax.device_get(layers)  # all at once: from a GPU, one after the other is waited for
    dense = [(np.asarray(layers[name]["kernel"]), np.asarray(layers[name]["bias"])) for name in names]

    def outputs(x: np.ndarray) -> np.ndarray:
        for kernel, bias in dense[:-1]:
            x = activation(x @ kernel + bias)
        return x @ dense[-1][0] + dense[-1][1]

    return outputs


def _shapes(network: nn.Module, inputs: tuple[Any, ...]) -> dict[str, tuple[int, ...]]:
    """Of the network's parameters, by their paths."""
    return shapes_of(jax.eval_shape(lambda: network.init(jax.random.key(0), *inputs)))
