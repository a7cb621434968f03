"""Games: the ids that one Atari game goes by, and what of EnvPool's is taken, drawn, or too old."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mosaic.contract.errors import nearest

# EnvPool steps games in threads, ale-py one after the other: from so many on that is faster (docs/envpool_parity.md).
POOL_FROM = 2
# EnvPool's packages that cannot be drawn, by the catalog's families and groups: to draw a MuJoCo task kills the
# process, and toy text has no picture there.
UNDRAWN = {"mujoco": "envpool.mujoco.gym", "dm_control": "envpool.mujoco.dmc", "toy-text": "envpool.toy_text"}

# The games that were in Gym: they alone have a NoFrameskip-v4. The catalog, which may import nothing, has them as well,
# and the one game that EnvPool spells differently; a test compares the two.
GYM_GAMES = frozenset(
    """
    Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider Berzerk Bowling
    Boxing Breakout Carnival Centipede ChopperCommand CrazyClimber Defender DemonAttack DoubleDunk ElevatorAction
    Enduro FishingDerby Freeway Frostbite Gopher Gravitar Hero IceHockey Jamesbond JourneyEscape Kangaroo Krull
    KungFuMaster MontezumaRevenge MsPacman NameThisGame Phoenix Pitfall Pong Pooyan PrivateEye Qbert Riverraid
    RoadRunner Robotank Seaquest Skiing Solaris SpaceInvaders StarGunner Tennis TimePilot Tutankham UpNDown Venture
    VideoPinball WizardOfWor YarsRevenge Zaxxon
    """.split()
)
ENVPOOL_SPELLING = {"TicTacToe3D": "TicTacToe3d"}


def atari_game(env_id: str) -> str:
    """`Pong` for each of ALE/Pong-v5, PongNoFrameskip-v4 and Pong-v5, and for ids that only look like them."""
    return env_id.removeprefix("ALE/").rsplit("-v", 1)[0].removesuffix("NoFrameskip")


def same_game(env_id: str, ids: Iterable[str]) -> str | None:
    """Of the -v5 ids of ale-py or EnvPool, that of the same game.

    None for Pong-v4, PongNoFrameskip-v0 and the like, which mean other frame skips or actions that stick, and for what
    nobody has, such as PongNoFrameskip-v5, pong-v5 and TetrisNoFrameskip-v4.
    """
    spellings = _spellings(env_id)
    return next((one for one in ids if one in spellings), None) if env_id in spellings else None


def near_game(env_id: str, ids: Iterable[str]) -> str:
    """`; did you mean 'Pong-v5'?` for an id that means no game as it is written."""
    return nearest(f"{atari_game(env_id).removesuffix('Deterministic')}-v5", ids)


def _spellings(env_id: str) -> tuple[str, ...]:
    """Every id of the game that this one seems to name."""
    pooled = atari_game(env_id)
    game = next((name for name, spelled in ENVPOOL_SPELLING.items() if spelled == pooled), pooled)
    raw = (f"{game}NoFrameskip-v4",) if game in GYM_GAMES else ()
    return f"ALE/{game}-v5", f"{ENVPOOL_SPELLING.get(game, game)}-v5", *raw


def newer_version(env_id: str, made: Iterable[str]) -> str | None:
    """Of the ids that Gymnasium makes, the one that has replaced this; None where it makes this, or no later one."""
    name, _, version = env_id.rpartition("-v")
    versions = {int(one.rpartition("-v")[2]) for one in made if re.fullmatch(rf"{re.escape(name)}-v\d+", one)}
    if not version.isdecimal() or int(version) in versions or max(versions, default=0) <= int(version):
        return None
    return f"{name}-v{max(versions)}"
