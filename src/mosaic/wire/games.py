"""Games: the ids that one Atari game goes by, and what of EnvPool's is taken, drawn, or too old."""

from __future__ import annotations

import re
from collections.abc import Iterable

# EnvPool steps games in threads, ale-py one after the other: from so many on that is faster (docs/envpool_parity.md).
POOL_FROM = 2
# EnvPool's packages that cannot be drawn, by the catalog's families and groups: to draw a MuJoCo task kills the
# process, and toy text has no picture there.
UNDRAWN = {"mujoco": "envpool.mujoco.gym", "dm_control": "envpool.mujoco.dmc", "toy-text": "envpool.toy_text"}


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


def newer_version(env_id: str, made: Iterable[str]) -> str | None:
    """Of the ids that Gymnasium makes, the one that has replaced this; None where it makes this, or no later one."""
    name, _, version = env_id.rpartition("-v")
    versions = {int(one.rpartition("-v")[2]) for one in made if re.fullmatch(rf"{re.escape(name)}-v\d+", one)}
    if not version.isdecimal() or int(version) in versions or max(versions, default=0) <= int(version):
        return None
    return f"{name}-v{max(versions)}"
