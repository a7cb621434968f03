"""The match of environments and algorithms; environments that fit and are installed come first."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from mosaic import catalog


@dataclass(frozen=True, slots=True)
class Offer:
    """An environment offered for an algorithm; `trouble` is the reason of a refusal, "" if it fits."""

    env_id: str
    trouble: str = ""

    @property
    def label(self) -> str:
        return f"{self.env_id} ({self.trouble})" if self.trouble else self.env_id


def offers(entry: Mapping[str, Any], family: str = "") -> list[Offer]:
    """Return the environments of a family, or all: fitting and installed ones, then not installed, then the rest."""
    found = [one for one in map(catalog.find, catalog.ids(family or None)) if one is not None]
    ranked = []
    for place, environment in enumerate(found):
        misfit, missing = why_not(entry, environment), lacking(environment)
        trouble = misfit or ("not installed" if missing else "")
        ranked.append(((bool(misfit), bool(missing), place), Offer(environment.env_id, trouble)))
    return [offer for _, offer in sorted(ranked, key=lambda one: one[0])]


def algorithm_for(schema: Mapping[str, Any], env_id: str, wanted: str) -> str:
    """Return the wanted algorithm if it fits an environment of the catalog, else the first fitting one."""
    environment = catalog.find(env_id)
    if environment is None:
        return wanted
    fitting = [name for name, entry in schema.items() if not why_not(entry, environment)]
    return wanted if wanted in fitting or not fitting else fitting[0]


def families(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the label of every family by name, those with fitting environments first."""
    count = {name: sum(not one.trouble for one in offers(entry, name)) for name in catalog.FAMILIES}
    ordered = sorted(catalog.FAMILIES.values(), key=lambda family: count[family.name] == 0)
    return {family.name: f"{family.label} ({count[family.name]} fit)" for family in ordered}


def why_not(entry: Mapping[str, Any], environment: catalog.Environment) -> str:
    """Return a short reason why an algorithm cannot learn an environment; "" if it can."""
    wanted = entry.get("families") or ()
    words = {
        "family": f"for {' and '.join(wanted)} only",
        "actions": f"{environment.action_space} actions",
        "observations": f"{environment.observation_space} observations",
    }
    found = catalog.misfit(environment, entry.get("action_spaces") or (), entry.get("observation_spaces") or (), wanted)
    return words[found] if found else ""


@cache
def lacking(environment: catalog.Environment) -> str:
    """Return what `env_backend` auto needs installed, with the command to install it; "" for nothing."""
    return catalog.missing_to_train(environment) or ""


def look_again() -> None:
    """Clear the cache: a user who reloads the form may have installed a package."""
    importlib.invalidate_caches()
    lacking.cache_clear()


def describe(entry: Mapping[str, Any], env_id: str) -> tuple[str, str, str]:
    """Return a description of the chosen environment, its spaces, and its problem."""
    environment = catalog.find(env_id)
    if environment is None:
        newer = catalog.successor(env_id)
        trouble = f"did you mean {newer}?" if newer else ""
        return "Not in the catalog: Gymnasium's own registry is asked before the run starts.", "", trouble
    spaces = f"{environment.observation_space} observations, {environment.action_space or 'unknown'} actions"
    misfit = why_not(entry, environment)
    return environment.doc, spaces, f"it has {misfit}" if misfit.endswith("s") else misfit


def about(name: str, entry: Mapping[str, Any]) -> str:
    """Return a paragraph about an algorithm, from its own file's docstring."""
    if not entry:
        return f"{name} is a module or script of your own: its parameters go under “Other settings”."
    defaults = {field["name"]: field.get("default") for field in entry.get("fields", ())}
    sentence = str(entry.get("doc") or "").partition(" Siblings:")[0]
    drives = f"It drives {' and '.join(entry.get('action_spaces') or ['any'])} actions"
    sees = f"learns from {', '.join(entry.get('observation_spaces') or ['any'])} observations"
    only = f", on {' and '.join(entry['families'])} environments only" if entry.get("families") else ""
    steps = defaults.get("total_timesteps")
    usual = f" A full training takes {steps:,} steps by default." if isinstance(steps, int) else ""
    return f"{sentence} {drives} and {sees}{only}.{usual}"
