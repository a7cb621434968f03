"""Backends: the choice of one that is installed for an environment of the catalog, and their limitations.

These are the rules of `envs.vectors` and `envs.pools`, applied before a run starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from mosaic import catalog
from mosaic.catalog.games import POOL_FROM, UNDRAWN

GYMNASIUM, ENVPOOL, AUTO = "gymnasium", "envpool", "auto"
NAMES = (AUTO, GYMNASIUM, ENVPOOL)


def chosen(known: catalog.Environment, default: str, vectorization: str = "sync", num_envs: int = 1) -> str:
    """Return the backend that `auto` selects: the first that is ready, the algorithm's `default` before Gymnasium."""
    asked = (default, GYMNASIUM)
    if _is_atari(known):  # for any algorithm: the faster one, or the one with the requested vectorization
        asked = (ENVPOOL, GYMNASIUM) if num_envs >= POOL_FROM else (GYMNASIUM, ENVPOOL)
        asked = asked if vectorization == "sync" else (GYMNASIUM, GYMNASIUM)
    first = known.backends[0] if known.backends[0] in asked else asked[0]
    return next((backend for backend in asked if _is_ready(known, backend)), first)


def that_has(env_id: str, backend: str, trained_on: str | None = None) -> str:
    """Return `backend`, which has `trained_on`, or the other one if it lacks the environment."""
    known = catalog.find(env_id)
    asked = GYMNASIUM if backend == AUTO else backend
    if env_id == trained_on and backend != AUTO:
        return backend
    if known is None:  # a user's own environment: only Gymnasium makes it
        return AUTO
    if catalog.on_backend(known, asked) is not None:
        return backend
    return ENVPOOL if asked == GYMNASIUM else GYMNASIUM


def other_ready(
    made: catalog.Environment, backend: str, vectorization: str, film: bool, families: Sequence[str]
) -> str | None:
    """Return another installed backend that supports these settings, None if none does."""
    for other in (GYMNASIUM, ENVPOOL):
        if other != backend and _is_ready(made, other):
            there = catalog.on_backend(made, other)
            if refusal(there, other, vectorization, film, families) is None:
                return other
    return None


def refusal(
    known: catalog.Environment | None, backend: str, vectorization: str, film: bool, families: Sequence[str]
) -> str | None:
    """Return why this backend does not support these settings, else None; an unknown environment is a user's own."""
    if backend == ENVPOOL:
        if known is None or not film or not known.is_of(UNDRAWN):
            return None
        return f"EnvPool cannot film it; leave the video out{_or_filmed_by_gymnasium(known, vectorization, families)}"
    if vectorization == "native" and film:
        return "a native vector is not filmed; leave the video out, or set vectorization to sync"
    able = _vectorizations(known, families)
    if vectorization not in able:
        return f"it cannot run with vectorization {vectorization}; set it to {' or '.join(able)}"
    return None


def _or_filmed_by_gymnasium(known: catalog.Environment, vectorization: str, families: Sequence[str]) -> str:
    """Return the alternative advice, with all settings that it needs."""
    there = catalog.on_backend(known, GYMNASIUM)
    if there is None:
        return ", or take an environment of Gymnasium's"
    settings = "env_backend to gymnasium"
    if refusal(there, GYMNASIUM, vectorization, True, families):
        settings += " and vectorization to sync"
    missing = catalog.missing_package(there, GYMNASIUM)
    return f", or set {settings}" + (f" ({missing})" if missing else "")


def _vectorizations(known: catalog.Environment | None, families: Sequence[str]) -> tuple[str, ...]:
    """Return the vectorizations that Gymnasium supports for an algorithm of these families."""
    if known is None:
        return "sync", "async", "native"
    if _is_atari(known):
        return "sync", "native"
    frames = known.group == "image-games" and "procgen" not in families
    # Among Gymnasium's own environments only CartPole has a vector version, and it resets one step late.
    return ("sync",) if frames or known.group == "multiplayer" else ("sync", "async")


def _is_atari(known: catalog.Environment) -> bool:
    """Return True for an Atari game on frames; multiplayer ones are made differently."""
    return known.family == "atari" and known.group != "multiplayer"


def _is_ready(known: catalog.Environment, backend: str) -> bool:
    """Return True if this backend has the environment and is installed."""
    made = catalog.on_backend(known, backend)
    return made is not None and catalog.missing_package(made, backend) is None
