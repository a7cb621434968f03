"""Policies as evaluation uses them (observations in, actions out), and their files."""

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cleanrl_worker.run.policy_files import Stored, as_array, read
from mosaic.contract import versions
from mosaic.contract.errors import StorageError
from mosaic.contract.paths import write_atomic
from mosaic.contract.sidecars import FORMAT, sidecar_of

Policy = Callable[[np.ndarray, np.random.Generator | None], np.ndarray]
"""A map from observation rows to action rows, sampled with the generator, or greedy with None."""


def normalized(policy: Policy, statistics: Mapping[str, np.ndarray]) -> Policy:
    """Return the policy with the frozen observation normalization (`mean`, `var`) of its training."""
    mean, var = (np.asarray(statistics[name], np.float64) for name in ("mean", "var"))
    return lambda obs, rng: policy(scaled(obs, mean, var), rng)


def scaled(obs: np.ndarray, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    """Return normalized observations, clipped to ±10."""
    return np.minimum(np.maximum((obs - mean) / np.sqrt(var + 1e-8), -10.0), 10.0).astype(np.float32)


def write(path: Path, state: Any, statistics: Mapping[str, np.ndarray] | None, about: Mapping[str, Any]) -> Path:
    """Write the policy (torch tensors by torch.save, numpy arrays as safetensors) and its sidecar."""
    frozen = {key: np.asarray(value).tolist() for key, value in (statistics or {}).items()}
    sidecar = {"format": FORMAT, **about, "observation_statistics": frozen or None, "versions": versions.installed()}
    try:
        write_atomic(path, _state_bytes(state))
        write_atomic(sidecar_of(path), json.dumps(sidecar, indent=2))
    except StorageError as error:
        raise SystemExit(str(error)) from error
    return path


def as_tensor(stored: Stored) -> Any:
    """Return a tensor of a policy file on the CPU, copied to its own memory."""
    import torch

    return torch.from_numpy(as_array(stored).copy())


def _state_bytes(state: Any) -> bytes:
    if isinstance(state, Mapping) and all(isinstance(value, np.ndarray) for value in state.values()):
        from safetensors.numpy import save

        return save({key: np.ascontiguousarray(value) for key, value in state.items()})
    import torch

    given, told = io.BytesIO(), io.BytesIO()
    torch.save(state, given)
    torch.save(
        read(given.getvalue(), as_tensor), told
    )  # as every reader loads it: on the CPU, tensors and plain values
    return told.getvalue()
