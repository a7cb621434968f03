"""Trees of JAX arrays: as parts of checkpoints and policy files, and acting in numpy."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cleanrl_worker.kit.args import RunArgs


def prepare(args: RunArgs) -> None:
    """Choose the device that `--cuda` allows, and leave its memory to others too; before anything is computed."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if not args.cuda:
        jax.config.update("jax_platforms", "cpu")


def compiled(what: str, function: Callable[[], Any]) -> None:
    """Call a jitted function once for nothing, so that training need not wait for its compiler; say how long."""
    started = time.monotonic()
    jax.block_until_ready(function())
    print(f"compiled {what} in {time.monotonic() - started:.1f} s", flush=True)


class Trees:
    """Named trees of arrays as a part of a checkpoint; a leaf goes by its path, such as `params/Dense_0/kernel`."""

    def __init__(self, **trees: Any) -> None:
        self.trees = trees

    def state_dict(self) -> dict[str, np.ndarray]:
        return arrays_of(self.trees)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take every leaf that `state` has (a policy file has only what acts); one of another shape is refused."""
        paths, structure = jax.tree_util.tree_flatten_with_path(self.trees)
        named = [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in paths]
        if not any(name in state for name, _ in named):
            raise ValueError(f"it has none of {', '.join(name for name, _ in named[:3])}, …")
        for name, leaf in named:
            if name in state and np.shape(state[name]) != np.shape(leaf):
                raise ValueError(f"size mismatch for {name}: {np.shape(state[name])}, not {np.shape(leaf)}")
        leaves = [jnp.asarray(state.get(name, leaf), dtype=jnp.asarray(leaf).dtype) for name, leaf in named]
        self.trees = jax.tree_util.tree_unflatten(structure, leaves)


def arrays_of(tree: Any) -> dict[str, np.ndarray]:
    """The leaves by their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


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
    names = sorted(layers, key=lambda name: int(name.rpartition("_")[2]))
    dense = [(np.asarray(layers[name]["kernel"]), np.asarray(layers[name]["bias"])) for name in names]

    def outputs(x: np.ndarray) -> np.ndarray:
        for kernel, bias in dense[:-1]:
            x = activation(x @ kernel + bias)
        return x @ dense[-1][0] + dense[-1][1]

    return outputs
