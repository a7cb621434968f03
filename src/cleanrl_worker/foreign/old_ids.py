"""Environment ids of older versions, and their replacements in Gymnasium 1."""

from __future__ import annotations

import re
from typing import Container, Dict, Tuple

_NEWEST: Dict[int, Dict[Tuple[int, ...], Tuple[str, ...]]] = {
    5: {
        (1, 2, 3): ("Ant", "HalfCheetah", "Hopper", "Humanoid", "Swimmer", "Walker2d"),
        (1, 2): ("HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum", "Reacher"),
        (1, 2, 4): ("Pusher",),
    },
    4: {(1, 2, 3): ("Taxi",)},
    3: {
        (0, 1, 2): ("CarRacing",),
        (1, 2): ("LunarLander", "LunarLanderContinuous", "BipedalWalker", "BipedalWalkerHardcore"),
    },
    1: {(0,): ("Blackjack", "CliffWalking", "FrozenLake", "FrozenLake8x8", "Pendulum")},
}

REPLACED: Dict[str, str] = {
    "%s-v%d" % (name, version): "%s-v%d" % (name, newest)
    for newest, rows in _NEWEST.items()
    for versions, names in rows.items()
    for version in versions
    for name in names
}
"""old id → its replacement: the newest version whose dependencies can still be installed"""

# Four frames a step, as in `Deterministic`; Gym's plain ids sampled between two and four.
_ATARI = re.compile(r"^([A-Z][A-Za-z]+?)Deterministic-v[04]$")
_GAME = re.compile(r"^(ALE/)?[A-Z][A-Za-z]+?(NoFrameskip|Deterministic)?-v[045]$")


def played(env_id: str, registered: Container[str]) -> str:
    """Return the id to make instead of `env_id`, or `env_id` itself if nothing replaces it."""
    newer = REPLACED.get(env_id)
    if newer is None and env_id not in registered:
        newer = _ATARI.sub(r"ALE/\1-v5", env_id)
    return newer if newer is not None and newer in registered else env_id


def may_be_atari(env_id: str) -> bool:
    """Return True if `ale_py` could register this id."""
    return _GAME.match(env_id) is not None
