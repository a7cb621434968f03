import pytest

from mosaic import catalog
from mosaic.catalog import atari
from mosaic.catalog.games import GYM_GAMES, atari_game, near_game, newer_version, same_game

PATTERNS = (
    *("ALE/{}-v5", "{}NoFrameskip-v4", "{}-v5", "{}NoFrameskip-v5", "{}NoFrameskip-v0", "{}Deterministic-v4", "{}-v4"),
    *("{}-v0", "{}", "ALE/{}", "ALE/{}-v4", "ALE/{}NoFrameskip-v4", "ALE/{}NoFrameskip-v5", "ale/{}-v5"),
)


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "PongNoFrameskip-v4", "Pong-v5"])
def test_every_spelling_of_a_game_names_it(env_id: str) -> None:
    assert atari_game(env_id) == "Pong"


def test_a_game_is_found_as_either_package_spells_it_and_no_other_game_is_taken_for_it() -> None:
    assert same_game("ALE/TicTacToe3D-v5", ["Pong-v5", "TicTacToe3d-v5"]) == "TicTacToe3d-v5"
    assert same_game("TicTacToe3d-v5", ["ALE/Pong-v5", "ALE/TicTacToe3D-v5"]) == "ALE/TicTacToe3D-v5"
    assert same_game("ALE/Blackjack-v5", ["Blackjack-v1"]) is None


@pytest.mark.parametrize(
    "env_id",
    [
        *("Pong-v4", "PongNoFrameskip-v0", "Pong", "ALE/Pong", "PongDeterministic-v4"),
        *("PongNoFrameskip-v5", "pong-v5", "ALE/PongNoFrameskip-v4"),
    ],
)
def test_an_id_that_means_another_preparation_of_a_game_or_none_is_not_taken_for_it(env_id: str) -> None:
    assert same_game(env_id, ["Pong-v5", "ALE/Pong-v5"]) is None
    assert near_game(env_id, ["Pong-v5", "Tetris-v5"]).endswith("did you mean 'Pong-v5'?")


def test_files_alone_and_the_catalog_take_the_same_ids_for_a_game() -> None:
    assert set(atari.CLASSIC_GAMES) == GYM_GAMES
    games = {spelled for game in atari.GAMES for spelled in (game, game.lower(), game.capitalize())}
    listed = [known for env_id in catalog.ids("atari") if (known := catalog.find(env_id)) and known.players == 1]
    differing = []
    for backend in ("gymnasium", "envpool"):
        ids = [known.env_id for known in listed if backend in known.backends and "NoFrameskip" not in known.env_id]
        for env_id in (pattern.format(game) for pattern in PATTERNS for game in games):
            known = catalog.find(env_id)
            made = known and catalog.on_backend(known, backend)
            if made is not None and made.env_id not in ids:  # Gymnasium has the raw game as well
                made = catalog.find(f"ALE/{atari_game(made.env_id)}-v5")
            if same_game(env_id, ids) != (made and made.env_id):
                differing.append((env_id, backend))
    assert differing == []


def test_a_newer_version_is_the_newest_that_is_made_of_the_same_name() -> None:
    made = ["LunarLander-v2", "LunarLander-v3", "LunarLanderContinuous-v9", "Pong-v4"]
    assert newer_version("LunarLander-v1", made) == "LunarLander-v3"
    for env_id in ("LunarLander-v2", "Pong-v5", "Own-v0", "Own", "Own-vb"):
        assert newer_version(env_id, made) is None
