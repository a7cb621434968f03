"""Policy files of torch, safetensors and flax, read into arrays by numpy alone without executing their code."""

import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from mosaic.contract import weights
from mosaic.contract.fields import POLICY_BYTES, read_bytes
from mosaic.contract.weights import Stored, is_safetensors
from mosaic.contract.weights import require_floats as require_floats

# Errors that readers and networks raise for a damaged, foreign or malicious file.
UNREADABLE = (
    *(pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError),
    *(TypeError, AttributeError, AssertionError, struct.error, OverflowError, MemoryError, SafetensorError),
)

MOST_ITEMS = 10_000
_ARRAY, _NUMBER = 1, 3  # of flax's extensions of msgpack


def as_array(stored: Stored) -> np.ndarray:
    """Return a tensor of a torch file as a view of the file."""
    dtype = np.dtype(stored.dtype)
    strides = tuple(stride * dtype.itemsize for stride in stored.strides)
    return np.ndarray(stored.shape, dtype, stored.content, stored.offset * dtype.itemsize, strides)


def read_file(path: Path) -> bytes:
    """Return a policy file's bytes; raise one of UNREADABLE if it is too large or not a plain file."""
    return read_bytes(path, "file", POLICY_BYTES)


def read(data: bytes, make: Callable[[Stored], Any] = as_array) -> Any:
    """Return a file's arrays, a torch file's as built by `make`; raise one of UNREADABLE if it is unreadable."""
    if weights.is_torch(data):
        return weights.read_torch(data, make)
    if not is_safetensors(data):
        return _read_flax(data)
    from safetensors.numpy import load

    weights.check_safetensors(data)
    return load(data)


def acting_network(content: Any) -> tuple[Any, dict[str, Any]]:
    """Return the weights that act (DDPG's and TD3's come before the critics') and C51's args."""
    if isinstance(content, dict) and set(content) == {"model_weights", "args"}:
        return content["model_weights"], dict(content["args"])
    return (content[0] if isinstance(content, tuple | list) and content else content), {}


def critics_of(content: Any) -> list[Any]:
    """Return the critics' weights that follow the actor's in a file of DDPG or TD3."""
    return list(content[1:]) if isinstance(content, tuple | list) else []


def _read_flax(data: bytes) -> Any:
    """Return the content of a flax file, msgpack without code: named arrays, or lists of them with args."""
    try:
        import msgpack
    except ImportError:
        raise ValueError(f"{weights.FORMATS}, and one of flax needs msgpack: pip install 'mosaic-rl[jax]'") from None

    def array(code: int, packed: bytes) -> Any:
        if code not in (_ARRAY, _NUMBER):
            raise ValueError("it holds more than arrays")
        shape, dtype, content = msgpack.unpackb(packed, raw=True)
        found = np.frombuffer(content, np.dtype(dtype.decode())).reshape(shape)
        return found if code == _ARRAY else found[()]

    try:
        tree = msgpack.unpackb(data, ext_hook=array, raw=False, max_array_len=MOST_ITEMS, max_map_len=MOST_ITEMS)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{weights.FORMATS} ({error})") from error
    if isinstance(tree, dict) and set(tree) == {"model_weights", "args"}:
        return {"model_weights": _flat(tree["model_weights"]), "args": tree["args"]}
    if isinstance(tree, dict) and "env_id" in (tree.get("0") or ()):  # PPO's args, then network, actor and critic
        parts = zip(("network", "actor", "critic"), tree["1"].values(), strict=True)
        return {"model_weights": _flat({"params": {name: part["params"] for name, part in parts}}), "args": tree["0"]}
    if isinstance(tree, dict) and "0" in tree:  # a list: DDPG's and TD3's actor, then the critics
        return tuple(_flat(part) for part in tree.values())
    return _flat(tree)


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves by path, named as in our own JAX policies: `params/Dense_0/kernel`."""
    if not isinstance(tree, dict):
        raise ValueError("it holds no named arrays")
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found.update(_flat(value, f"{prefix}{key}/") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return found
