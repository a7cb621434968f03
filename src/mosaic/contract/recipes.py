"""The recipe of a run: the arguments that decide its results, and those that a continuation inherits."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic.contract.errors import ConfigError, shown
from mosaic.contract.limits import COMPUTED

# The locations and outputs of a run are its own, never inherited from the run it continues.
PLACES = frozenset(
    {"run_dir", "tensorboard_dir", "resume", "additional_timesteps", "exp_name", "track", "wandb_run_name"}
    | {"upload_model", "hf_entity"}  # a checkpoint from elsewhere must not choose where a policy is uploaded
)
# These do not change a run's results either; of --cuda, the device that was really used counts.
BYSTANDERS = frozenset(
    {"cuda", "wandb_project_name", "wandb_entity", "save_model", "upload_model", "hf_entity", "capture_video"}
    | {"checkpoint_budget_mb", "grace_seconds", "cudagraphs"}
)


def computed(args_type: Any) -> set[str]:
    """Return the arguments that a run computes from others."""
    hints = typing.get_type_hints(args_type, include_extras=True)
    return {name for name, hint in hints.items() if COMPUTED in getattr(hint, "__metadata__", ())}


def inherited(args_type: Any, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a saved run that this one keeps by default; raise ConfigError for a wrong type."""
    known = {field.name for field in dataclasses.fields(args_type)} - PLACES - computed(args_type)
    kept = {name: value for name, value in saved.items() if name in known}
    hints = typing.get_type_hints(args_type)
    for name, value in kept.items():
        if not _fits(value, hints[name]):
            raise ConfigError(f"the saved run's argument {name} is {shown(value)}, which its type does not allow")
    return kept


def _fits(value: Any, hint: Any) -> bool:
    """Return True if a JSON value is valid for this type."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is typing.Literal:
        return value in parts
    if origin in (list, tuple):
        return isinstance(value, list) and all(_fits(item, parts[0]) for item in value)
    if hint in (None, types.NoneType):
        return value is None
    if hint is float:
        return type(value) in (int, float)
    return type(value) is (str if hint is Path else hint)


def resumption(step: int, exact: bool, changed: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the `resumed` event's payload and the terminal's line of a run that continues with these changes."""
    exact = exact and not changed
    payload = {"step": step, "exact": exact, "changed": changed}
    listed = [f"{name} {old} → {new}" for name, (old, new) in changed.items()]
    if "total_timesteps" in changed:
        payload["schedules"] = "recomputed over the new total_timesteps"
        listed.append("schedules are recomputed over the new total")
    kind = "exactly" if exact else "not bit for bit"
    return payload, f"resumed {kind} at step {step:,}" + ("; changed: " + ", ".join(listed)) * bool(listed)


def changes(args_type: Any, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the differences of two recipes: name to [old, new]."""
    recipe = now.keys() - PLACES - BYSTANDERS - computed(args_type)
    # an argument that the saved run lacks is newer than that run: its former behaviour is now the default
    old = {name: before.get(name, getattr(args_type, name, None)) for name in sorted(recipe)}
    return {name: [value, now[name]] for name, value in old.items() if value != now[name]}
