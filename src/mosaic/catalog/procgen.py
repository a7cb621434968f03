"""Procgen: sixteen games with generated levels, made by EnvPool."""

from collections.abc import Iterator

from mosaic.catalog.environment import ENVPOOL, Environment

_MODES = {
    "Easy": "with easy levels, the usual choice for small budgets",
    "Hard": "with hard levels, Procgen's default",
    "Extreme": "with levels harder than hard",
    "Memory": "with levels seen only in part, so that the agent must remember",
    "Exploration": "on one hard level that takes exploration to solve",
}

# Every game has Easy and Hard; a third column names its other modes.
_GAMES = (
    ("Bigfish", "Eat smaller fish to grow and keep away from bigger ones", ""),
    ("Bossfight", "Shoot a starship boss through its shields while dodging its fire", ""),
    ("Caveflyer", "Fly a ship through caves to a friendly ship and shoot targets on the way", "Memory Exploration"),
    ("Chaser", "Collect orbs in a maze and flee its enemies, or eat them after a star", "Extreme"),
    ("Climber", "Climb platforms and collect stars without touching monsters", "Exploration"),
    ("Coinrun", "Run and jump past saws, chasms and monsters to the coin at the far end", "Exploration"),
    ("Dodgeball", "Hit enemies with balls without being hit, then reach the exit", "Extreme Memory"),
    ("Fruitbot", "Steer through gaps, gather fruit and avoid everything else", ""),
    ("Heist", "Collect keys to open coloured locks and steal the gem", "Memory Exploration"),
    ("Jumper", "Double-jump through a cave to the carrot that a compass points at", "Memory Exploration"),
    ("Leaper", "Cross lanes of cars and a river of logs to the finish", "Extreme Exploration"),
    ("Maze", "Find the cheese in a maze", "Memory Exploration"),
    ("Miner", "Dig through dirt for diamonds, away from falling boulders, then reach the exit", "Memory"),
    ("Ninja", "Jump over ledges and throw stars at bombs on the way to the mushroom", "Exploration"),
    ("Plunder", "Fire at enemy ships and spare friendly ones before the time is up", ""),
    ("Starpilot", "Dodge and shoot in a side-scrolling space shooter", "Extreme"),
)


def _environments() -> Iterator[Environment]:
    for game, doc, more in _GAMES:
        for mode in ("Easy", "Hard", *more.split()):
            yield Environment(f"{game}{mode}-v0", "procgen", "discrete", "image", f"{doc}, {_MODES[mode]}.", ENVPOOL)
    for game, doc, _ in _GAMES:
        named = f"{doc}: CleanRL's name, easy unless distribution_mode says otherwise."
        yield Environment(game.lower(), "procgen", "discrete", "image", named, ENVPOOL)


ENVIRONMENTS = tuple(_environments())

# The procgen package's own names of the hard levels. They are accepted but not listed, since `distribution_mode` may
# select other levels: CleanRL's bare names are the catalog's, and easy.
ALIASES = {
    f"{package}procgen-{game.lower()}-v0": f"{game}Hard-v0" for game, _, _ in _GAMES for package in ("", "procgen:")
}


def level_trouble(env_id: str, mode: str) -> str | None:
    """Return why an id conflicts with `distribution_mode`; None if it does not, or if the id is not a Procgen game."""
    bare = env_id.lower().removeprefix("procgen:").removeprefix("procgen-").removesuffix("-v0")
    for game, _, more in _GAMES:
        named = bare.removeprefix(game.lower())
        modes = ("easy", "hard", *more.lower().split())
        if mode == "auto" or named == bare or named not in ("", *modes):
            continue
        if named not in ("", mode):
            return f"it has {named} levels, and distribution_mode says {mode}; leave one of them out"
        return None if mode in modes else f"it has no {mode} levels, only {', '.join(modes)}"
    return None
