"""Trees of JAX arrays: network parameters, parts of checkpoints and policy files, and acting in numpy.

Every algorithm file in JAX imports this module first (ruff keeps it there), so that they all share one error message
for a missing JAX, flax or optax.
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
    """Select the device that `--cuda` allows, without preallocating its memory; call before any computation.

    XLA uses `--num-threads` CPU threads (0: one per core). They are part of the recipe: another number sums in another
    order. It reads them once, at a process's first use.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if not args.cuda:
        jax.config.update("jax_platforms", "cpu")
    ours = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    args.num_threads = args.num_threads or len(ours)  # possibly not all cores of a shared machine
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = str(args.num_threads)
    jax.devices()
    del os.environ["NPROC"]
    if before is not None:
        os.environ["NPROC"] = before


def compiled(what: str, function: Callable[[], Any]) -> None:
    """Call a jitted function once to compile it before training; print the start and the duration."""
    print(f"compiling {what} …", flush=True)
    started = time.monotonic()
    jax.block_until_ready(function())
    print(f"compiled {what} in {time.monotonic() - started:.1f} s", flush=True)


def dense(features: int, x: jax.Array) -> jax.Array:
    """Apply a layer initialised like torch's; flax's, with 1.7 times larger weights, learn HalfCheetah more slowly."""
    bound = x.shape[-1] ** -0.5

    def uniform(key: jax.Array, shape: Any, dtype: Any = jnp.float32, **_: Any) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return nn.Dense(features, kernel_init=uniform, bias_init=uniform)(x)


def outputs_of(network: nn.Module, params: Any, *inputs: Any) -> jax.Array:
    """Return the output of a network with a single output: flax's own `apply` is typed as Any."""
    outputs: Any = network.apply({"params": params}, *inputs)
    return outputs


def first_params(network: nn.Module, seed: int, *inputs: Any) -> Any:
    """Return parameters initialised like flax's default: LeCun normal kernels truncated at two deviations, zero biases.

    In numpy, because compiling flax's own initialisation of a few convolutions takes five seconds.
    """
    rng = np.random.default_rng((seed, 1))  # a separate stream: `run.rng` uses the seed alone

    def drawn(shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 1:
            return np.zeros(shape, np.float32)
        values = rng.standard_normal(shape)
        while (far := np.abs(values) > 2.0).any():
            values[far] = rng.standard_normal(far.sum())
        deviation = math.sqrt(1.0 / math.prod(shape[:-1])) / 0.87962566  # corrected for the truncation
        return (values * deviation).astype(np.float32)

    return jax.device_put(tree_of({name: drawn(shape) for name, shape in _shapes(network, inputs).items()})["params"])


def params_of(network: nn.Module, state: Mapping[str, Any], *inputs: Any) -> Any:
    """Return the network's parameters from a policy file's arrays; raise ValueError for a missing or wrong shape."""
    shapes = _shapes(network, inputs)
    for name, shape in shapes.items():
        if name not in state:
            raise ValueError(f"it has no {name}")
        if np.shape(state[name]) != shape:
            raise ValueError(f"size mismatch for {name}: {np.shape(state[name])}, not {shape}")
    return jax.device_put(tree_of({name: np.asarray(state[name], np.float32) for name in shapes})["params"])


class Trees:
    """Named trees of arrays in a checkpoint; a leaf is named by its path, such as `params/Dense_0/kernel`."""

    def __init__(self, **trees: Any) -> None:
        self.trees = trees

    def state_dict(self) -> dict[str, np.ndarray]:
        return arrays_of(self.trees)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load every tree in `state` (a policy file only has the acting one); refuse one that does not fit."""
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
    """Return the leaves by their paths."""
    return {path_of(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(tree))}


def shapes_of(tree: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the leaves, by their paths."""
    return {path_of(path): tuple(leaf.shape) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def path_of(path: Any) -> str:
    """Return a JAX path as one name: `params/Dense_0/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def tree_of(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dicts from named arrays, the inverse of `arrays_of`."""
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
    """Return layers `Dense_0`, `Dense_1`, … in numpy: for an acting step's few rows, a jitted call costs too much."""
    if others := [name for name in layers if not name.startswith("Dense_")]:
        raise ValueError(f"the network has no {others[0]}")
    names = sorted(layers, key=lambda name: int(name.rpartition("_")[2]))
    layers = jax.device_get(layers)  # all at once: from a GPU, each separate transfer would block
    dense = [(np.asarray(layers[name]["kernel"]), np.asarray(layers[name]["bias"])) for name in names]

    def outputs(x: np.ndarray) -> np.ndarray:
        for kernel, bias in dense[:-1]:
            x = activation(x @ kernel + bias)
        return x @ dense[-1][0] + dense[-1][1]

    return outputs


def _shapes(network: nn.Module, inputs: tuple[Any, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the network's parameters, by their paths."""
    return shapes_of(jax.eval_shape(lambda: network.init(jax.random.key(0), *inputs)))
