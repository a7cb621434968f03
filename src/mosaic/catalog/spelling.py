"""Spelling: the closest environment to an unknown id."""

import re
from collections.abc import Callable, Iterable

from mosaic.catalog import procgen
from mosaic.catalog.environment import Environment
from mosaic.catalog.index import find, ids, successor

# An id's source, its version, and the frame skip in Gym's Atari ids: the parts that people omit or get wrong.
_AROUND = re.compile(r"^.*[/:]|[-_ ]?v\d+$|noframeskip|deterministic|[-_ ]")


def meant(
    env_id: str, able: Callable[[Environment], bool] = lambda environment: True, others: Iterable[str] = ()
) -> str | None:
    """Return the id to use instead, of an environment that `able` accepts or among `others`; None if none is close."""
    newer = successor(env_id)
    if newer is not None and _passes(newer, able):
        return newer
    aliases = (alias for alias in procgen.ALIASES if ":" not in alias)
    choices = [*(one for one in (*ids(), *aliases) if _passes(one, able)), *others]
    spelled = {one.lower(): one for one in choices}
    for one in choices:  # of the ids of one game, the first in the catalog's order
        spelled.setdefault(_bare(one), one)
    # difflib's work grows with the square of the length; a text longer than any id is close to none.
    written = env_id[:200].lower()
    return spelled.get(written) or spelled.get(_bare(written)) or _closest(written, spelled)


def _passes(env_id: str, able: Callable[[Environment], bool]) -> bool:
    environment = find(env_id)
    return environment is not None and able(environment)


def _bare(env_id: str) -> str:
    """Return `spaceinvaders` for ALE/SpaceInvaders-v5, SpaceInvadersNoFrameskip-v4 and space_invaders_v2."""
    return _AROUND.sub("", env_id.lower())


def _closest(written: str, spelled: dict[str, str]) -> str | None:
    from difflib import get_close_matches

    close = get_close_matches(written, spelled, n=1)
    return spelled[close[0]] if close else None
