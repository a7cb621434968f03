"""Games: the ids that one Atari game goes by, when EnvPool is the one to run them, and what it cannot draw."""

from __future__ import annotations

import re
from collections.abc import Iterable

# EnvPool steps games in threads, ale-py one after the other: from so many on that is faster (docs/envpool_parity.md).
POOL_FROM = 2
# EnvPool's packages that cannot be drawn, by the catalog's families and groups: to draw a MuJoCo task kills the
# process, and toy text has no picture there.
UNDRAWN = {"mujoco": "mujoco.gym", "dm_control": "mujoco.dmc", "toy-text": "toy_text"}


def atari_game(env_id: str) -> str:
    """`Pong` for each of ALE/Pong-v5, PongNoFrameskip-v4 and Pong-v5, and for ids that only look like them."""
    return env_id.removeprefix("ALE/").rsplit("-v", 1)[0].removesuffix("NoFrameskip")


def same_game(env_id: str, ids: Iterable[str]) -> str | None:
    """Of ids of ale-py or EnvPool, that of the same game; capitals do not count: EnvPool has TicTacToe3d-v5.

    None for Pong-v4, PongNoFrameskip-v0 and the like: they mean other frame skips, or actions that stick.
    """
    if re.fullmatch(r"(ALE/)?\w+-v5|\w+NoFrameskip-v4", env_id) is None:
        return None
    wanted = f"{atari_game(env_id)}-v5".lower()
    return next((one for one in ids if one.removeprefix("ALE/").lower() == wanted), None)
