"""The JSON beside a policy file: which algorithm and environment it is of, its args, its observation statistics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mosaic.wire.errors import ConfigError, shown

FORMAT = 1
# People write sidecars for CleanRL's files by hand.
_KINDS: tuple[tuple[str, type, str], ...] = (
    *(("format", int, "a whole number"), ("algo", str, "a text"), ("env_id", str, "a text")),
    *(("args", dict, "a JSON object"), ("observation_statistics", dict, "a JSON object of mean and var")),
)


def sidecar_of(policy: Path) -> Path:
    return policy.with_name(policy.name + ".json")


def read_sidecar(policy: Path) -> dict[str, Any]:
    """What lies beside a policy file; {} where there is nothing, as with CleanRL's. ConfigError says what is wrong."""
    path = sidecar_of(policy)
    try:
        known = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"policy sidecar {path}: cannot be read: {error}") from error
    if not isinstance(known, dict):
        raise ConfigError(f"policy sidecar {path}: a JSON object is needed")
    for name, kinds, words in _KINDS:
        if known.get(name) is not None and not isinstance(known[name], kinds):
            raise ConfigError(f"policy sidecar {path}: {name}: {words} is needed, not {shown(known[name])}")
    if known.get("format", FORMAT) > FORMAT:
        raise ConfigError(
            f"policy sidecar {path}: format {known['format']} is newer than this version reads ({FORMAT})"
        )
    return known
