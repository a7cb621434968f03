"""The recipe of a run: which of its arguments decide what it computes, and which a continuation inherits."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from mosaic.wire.limits import COMPUTED

# Where and how a run writes is its own matter, never inherited from the run it goes on from.
PLACES = frozenset(
    {"run_dir", "tensorboard_dir", "resume", "additional_timesteps", "exp_name", "track", "wandb_run_name"}
)
# Nor do these change what a run computes; of --cuda, the device that was really used counts.
BYSTANDERS = frozenset(
    {"cuda", "wandb_project_name", "wandb_entity", "save_model", "upload_model", "hf_entity", "capture_video"}
    | {"checkpoint_budget_mb", "grace_seconds", "cudagraphs"}
)


def computed(args_type: Any) -> set[str]:
    """The arguments that a run computes from others."""
    hints = typing.get_type_hints(args_type, include_extras=True)
    return {name for name, hint in hints.items() if COMPUTED in getattr(hint, "__metadata__", ())}


def inherited(args_type: Any, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Of a saved run's arguments, those that a run of this type goes on with where nothing else is said."""
    known = {field.name for field in dataclasses.fields(args_type)} - PLACES - computed(args_type)
    return {name: value for name, value in saved.items() if name in known}


def changes(args_type: Any, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What differs between two recipes: name to [old, new]."""
    recipe = now.keys() - PLACES - BYSTANDERS - computed(args_type)
    # an argument that the saved run does not know is younger than it is: what it did is now the default
    old = {name: before.get(name, getattr(args_type, name, None)) for name in sorted(recipe)}
    return {name: [value, now[name]] for name, value in old.items() if value != now[name]}
