"""Games: the ids of one Atari game, EnvPool's packages without rendering, and the successors of old ids."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mosaic.contract.errors import nearest

# EnvPool steps games in threads, ale-py sequentially: from this many on EnvPool is faster (docs/envpool_parity.md).
POOL_FROM = 2
# EnvPool's packages that cannot render, by the catalog's families and groups: rendering a MuJoCo task kills the
# process, and EnvPool's toy text has no renderer.
UNDRAWN = {"mujoco": "envpool.mujoco.gym", "dm_control": "envpool.mujoco.dmc", "toy-text": "envpool.toy_text"}

# The games that were in Gym: only they have a NoFrameskip-v4. The catalog, which must not import anything, has a copy,
# also of the one game that EnvPool spells differently; a test compares the two.
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
    """Return `Pong` for ALE/Pong-v5, PongNoFrameskip-v4 and Pong-v5, and likewise for ids that only look like them."""
    return env_id.removeprefix("ALE/").rsplit("-v", 1)[0].removesuffix("NoFrameskip")


def same_game(env_id: str, ids: Iterable[str]) -> str | None:
    """Return the -v5 id of the same game among the `ids` of ale-py or EnvPool.

    None for Pong-v4, PongNoFrameskip-v0 and the like, which have other frame skips or sticky actions, and for ids that
    do not exist, such as PongNoFrameskip-v5, pong-v5 and TetrisNoFrameskip-v4.
    """
    spellings = _spellings(env_id)
    return next((one for one in ids if one in spellings), None) if env_id in spellings else None


def near_game(env_id: str, ids: Iterable[str]) -> str:
    """Return `; did you mean 'Pong-v5'?` for an id that no game has."""
    return nearest(f"{atari_game(env_id).removesuffix('Deterministic')}-v5", ids)


def _spellings(env_id: str) -> tuple[str, ...]:
    """Return every id of the game that this id seems to name."""
    pooled = atari_game(env_id)
    game = next((name for name, spelled in ENVPOOL_SPELLING.items() if spelled == pooled), pooled)
    raw = (f"{game}NoFrameskip-v4",) if game in GYM_GAMES else ()
    return f"ALE/{game}-v5", f"{ENVPOOL_SPELLING.get(game, game)}-v5", *raw


def newer_version(env_id: str, made: Iterable[str]) -> str | None:
    """Return the id among `made` that has replaced this one; None if Gymnasium makes this id, or no later version."""
    name, _, version = env_id.rpartition("-v")
    versions = {int(one.rpartition("-v")[2]) for one in made if re.fullmatch(rf"{re.escape(name)}-v\d+", one)}
    if not version.isdecimal() or int(version) in versions or max(versions, default=0) <= int(version):
        return None
    return f"{name}-v{max(versions)}"
