"""Index: every environment by its id, the ids of a family, and the successor of an old id."""

from functools import cache

from mosaic.catalog import (
    atari,
    babyai,
    box2d,
    classic,
    dm_control,
    images,
    minigrid,
    mujoco,
    players,
    procgen,
    toy_text,
)
from mosaic.catalog.environment import Environment
from mosaic.catalog.families import FAMILIES

# In the order of FAMILIES, so that lists read the same everywhere.
_MODULES = (classic, toy_text, box2d, images, atari, players, procgen, mujoco, dm_control, minigrid, babyai)

_ENVIRONMENTS: dict[str, Environment] = {
    environment.env_id: environment for module in _MODULES for environment in module.ENVIRONMENTS
}


def find(env_id: str) -> Environment | None:
    """Return the environment of this exact id or alias; None for custom environments, which are not in the catalog."""
    return _ENVIRONMENTS.get(procgen.ALIASES.get(env_id, env_id))


def on_backend(environment: Environment, backend: str) -> Environment | None:
    """Return the environment as this backend has it; None if the backend lacks it.

    An Atari game has the ids ALE/Pong-v5, PongNoFrameskip-v4 and EnvPool's Pong-v5; case is ignored (EnvPool has
    TicTacToe3d-v5).
    """
    if backend in environment.backends or environment.family != "atari" or environment.group == players.GROUP:
        return environment if backend in environment.backends else None
    game = environment.env_id.removeprefix("ALE/").rpartition("-v")[0].removesuffix("NoFrameskip")
    wanted = (f"{game}-v5" if backend == "envpool" else f"ALE/{game}-v5").lower()
    return next((_ENVIRONMENTS[env_id] for env_id in ids("atari") if env_id.lower() == wanted), None)


def ids(family: str | None = None, group: str | None = None) -> tuple[str, ...]:
    """Return all ids, or those of a family, or of a group within it."""
    if family is not None and family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}; the families are {', '.join(FAMILIES)}")
    return tuple(
        environment.env_id
        for environment in _ENVIRONMENTS.values()
        if family in (None, environment.family) and group in (None, environment.group)
    )


def successor(env_id: str) -> str | None:
    """Return the id that replaces an older version or spelling; None if no newer one exists."""
    renamed = atari.RENAMED.get(env_id)
    if renamed is not None:
        return renamed
    name, _, version = env_id.rpartition("-v")
    if not version.isdecimal():
        return None
    newest_version, newest_id = _newest().get(name, (-1, None))
    return newest_id if newest_version > int(version) else None


@cache
def _newest() -> dict[str, tuple[int, str]]:
    """Return the highest version of each name, and its id."""
    newest: dict[str, tuple[int, str]] = {}
    for env_id, environment in _ENVIRONMENTS.items():
        # EnvPool's bare Atari names collide with other games' (Blackjack-v1 is not an older Blackjack-v5).
        if environment.family == "atari" and "envpool" in environment.backends:
            continue
        name, numbered, version = env_id.rpartition("-v")
        if not numbered:  # Procgen's bare names, and PettingZoo's, whose versions are written _v3
            continue
        newest[name] = max(newest.get(name, (-1, "")), (int(version), env_id))
    return newest
