"""Atari: game names, from which the ids of ale-py and EnvPool are derived."""

from collections.abc import Iterator

from mosaic.catalog.environment import ENVPOOL, GYMNASIUM, Environment

# The games that had an id before ALE/…-v5.
CLASSIC_GAMES = tuple(
    """
    Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider Berzerk Bowling
    Boxing Breakout Carnival Centipede ChopperCommand CrazyClimber Defender DemonAttack DoubleDunk ElevatorAction
    Enduro FishingDerby Freeway Frostbite Gopher Gravitar Hero IceHockey Jamesbond JourneyEscape Kangaroo Krull
    KungFuMaster MontezumaRevenge MsPacman NameThisGame Phoenix Pitfall Pong Pooyan PrivateEye Qbert Riverraid
    RoadRunner Robotank Seaquest Skiing Solaris SpaceInvaders StarGunner Tennis TimePilot Tutankham UpNDown Venture
    VideoPinball WizardOfWor YarsRevenge Zaxxon
    """.split()
)
LATER_GAMES = tuple(
    """
    Atlantis2 Backgammon BasicMath Blackjack Casino Crossbow Darkchambers DonkeyKong Earthworld Entombed Et
    FlagCapture Frogger Galaxian Hangman HauntedHouse HumanCannonball Kaboom KeystoneKapers KingKong Klax Koolaid
    LaserGates LostLuggage MarioBros MiniatureGolf MrDo Othello Pacman Pitfall2 SirLancelot SpaceWar Superman
    Surround Tetris TicTacToe3D Trondead Turmoil VideoCheckers VideoChess VideoCube WordZapper
    """.split()
)
GAMES = tuple(sorted(CLASSIC_GAMES + LATER_GAMES))

# EnvPool spells names after the ROM files; one comes out differently.
_ENVPOOL_SPELLING = {"TicTacToe3D": "TicTacToe3d"}


def _environments() -> Iterator[Environment]:
    for game in GAMES:
        yield Environment(
            f"ALE/{game}-v5",
            "atari",
            "discrete",
            "image",
            f"The Atari 2600 game {_title(game)}: in ale-py in colour, with sticky actions (0.25) and a frame skip of "
            "4. The Atari algorithms train on it as on its other ids: grey, 84×84, no sticky actions.",
            GYMNASIUM,
        )
    for game in CLASSIC_GAMES:
        yield Environment(
            f"{game}NoFrameskip-v4",
            "atari",
            "discrete",
            "image",
            f"The Atari 2600 game {_title(game)} frame by frame, without sticky actions: the usual base for "
            "DeepMind's preprocessing wrappers.",
            GYMNASIUM,
        )
    for game in GAMES:
        yield Environment(
            f"{_ENVPOOL_SPELLING.get(game, game)}-v5",
            "atari",
            "discrete",
            "image",
            f"The Atari 2600 game {_title(game)} in EnvPool: four stacked grey frames of 84×84, a frame skip of 4, "
            "no sticky actions.",
            ENVPOOL,
        )


def _title(game: str) -> str:
    """Return a game's title: MontezumaRevenge as Montezuma Revenge; digits stay with their word."""
    return "".join(f" {c}" if c.isupper() and not game[i - 1].isdigit() else c for i, c in enumerate(game)).strip()


ENVIRONMENTS = tuple(_environments())

# Ids of Gym's time with random or fixed frame skips, and raw ids of games that were added later; their successor is the
# game's ALE id.
RENAMED = {
    f"{game}{kind}-v{version}": f"ALE/{game}-v5"
    for games, kinds in ((CLASSIC_GAMES, ("", "Deterministic")), (LATER_GAMES, ("NoFrameskip",)))
    for game in games
    for kind in kinds
    for version in (0, 4)
}
