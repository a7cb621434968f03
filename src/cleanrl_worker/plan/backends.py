"""Backends: who makes an environment of the catalog with what is installed here, and what they cannot do with it.

These are the rules of `envs.vectors` and `envs.pools`, told before a run starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from mosaic import catalog
from mosaic.catalog.games import POOL_FROM, UNDRAWN

GYMNASIUM, ENVPOOL, AUTO = "gymnasium", "envpool", "auto"
NAMES = (AUTO, GYMNASIUM, ENVPOOL)


def chosen(known: catalog.Environment, default: str, vectorization: str = "sync", num_envs: int = 1) -> str:
    """Whom `auto` takes: the first that is ready of those that an algorithm asks, its `default` before Gymnasium."""
    asked = (default, GYMNASIUM)
    if _is_atari(known):  # whatever the algorithm: the faster one, or who has the vectorization that is asked for
        asked = (ENVPOOL, GYMNASIUM) if num_envs >= POOL_FROM else (GYMNASIUM, ENVPOOL)
        asked = asked if vectorization == "sync" else (GYMNASIUM, GYMNASIUM)
    first = known.backends[0] if known.backends[0] in asked else asked[0]
    return next((backend for backend in asked if _is_ready(known, backend)), first)


def that_has(env_id: str, backend: str, trained_on: str | None = None) -> str:
    """`backend`, which has `trained_on`, or the other one where it lacks the environment."""
    known = catalog.find(env_id)
    asked = GYMNASIUM if backend == AUTO else backend
    if env_id == trained_on and backend != AUTO:
        return backend
    if known is None:  # of the user's own: Gymnasium alone makes them
        return AUTO
    if catalog.on_backend(known, asked) is not None:
        return backend
    return ENVPOOL if asked == GYMNASIUM else GYMNASIUM


def other_ready(
    made: catalog.Environment, backend: str, vectorization: str, film: bool, families: Sequence[str]
) -> str | None:
    """Who else could make it so, as things are."""
    for other in (GYMNASIUM, ENVPOOL):
        if other != backend and _is_ready(made, other):
            there = catalog.on_backend(made, other)
            if refusal(there, other, vectorization, film, families) is None:
                return other
    return None


def refusal(
    known: catalog.Environment | None, backend: str, vectorization: str, film: bool, families: Sequence[str]
) -> str | None:
    """Why this backend cannot make it so; an environment that the catalog does not know is of the user's own."""
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
    """The other way out, with all that it takes."""
    there = catalog.on_backend(known, GYMNASIUM)
    if there is None:
        return ", or take an environment of Gymnasium's"
    settings = "env_backend to gymnasium"
    if refusal(there, GYMNASIUM, vectorization, True, families):
        settings += " and vectorization to sync"
    missing = catalog.missing_package(there, GYMNASIUM)
    return f", or set {settings}" + (f" ({missing})" if missing else "")


def _vectorizations(known: catalog.Environment | None, families: Sequence[str]) -> tuple[str, ...]:
    """How Gymnasium's can run side by side in an algorithm for these families."""
    if known is None:
        return "sync", "async", "native"
    if _is_atari(known):
        return "sync", "native"
    frames = known.group == "image-games" and "procgen" not in families
    # Of Gymnasium's own only CartPole has a vector version, and it resets one step late.
    return ("sync",) if frames or known.group == "multiplayer" else ("sync", "async")


def _is_atari(known: catalog.Environment) -> bool:
    """Whether it is a game of frames; those for several players are made in another way."""
    return known.family == "atari" and known.group != "multiplayer"


def _is_ready(known: catalog.Environment, backend: str) -> bool:
    """Whether this backend has the environment and is installed."""
    made = catalog.on_backend(known, backend)
    return made is not None and catalog.missing_package(made, backend) is None
