import pytest

from mosaic.wire.games import atari_game, same_game


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "PongNoFrameskip-v4", "Pong-v5"])
def test_every_spelling_of_a_game_names_it(env_id: str) -> None:
    assert atari_game(env_id) == "Pong"


def test_a_game_is_found_whatever_its_capitals_and_no_other_game_is_taken_for_it() -> None:
    assert same_game("ALE/TicTacToe3D-v5", ["Pong-v5", "TicTacToe3d-v5"]) == "TicTacToe3d-v5"
    assert same_game("TicTacToe3d-v5", ["ALE/Pong-v5", "ALE/TicTacToe3D-v5"]) == "ALE/TicTacToe3D-v5"
    assert same_game("ALE/Blackjack-v5", ["Blackjack-v1"]) is None


@pytest.mark.parametrize("env_id", ["Pong-v4", "PongNoFrameskip-v0", "Pong", "ALE/Pong", "PongDeterministic-v4"])
def test_an_id_that_means_another_preparation_of_a_game_is_not_taken_for_it(env_id: str) -> None:
    assert same_game(env_id, ["Pong-v5", "ALE/Pong-v5"]) is None
