"""Which environment is meant by an id that nobody has."""

import pytest

from mosaic.catalog import Environment, find, meant


def for_one_player(environment: Environment) -> bool:
    return environment.family == "atari" and environment.action_space == "discrete"


@pytest.mark.parametrize(
    ("written", "id_to_use"),
    [
        ("pong", "ALE/Pong-v5"),
        ("space_invaders", "ALE/SpaceInvaders-v5"),
        ("Pong-v0", "ALE/Pong-v5"),
        ("Breakout-v4", "ALE/Breakout-v5"),
        ("TetrisNoFrameskip-v4", "ALE/Tetris-v5"),
        ("breakot", "ALE/Breakout-v5"),
        ("ale_py:ALE/Pong-v5", "ALE/Pong-v5"),
        ("pongnoframeskip-v4", "PongNoFrameskip-v4"),
        ("starpilot-v0", "starpilot"),
        ("BigFish-v0", "bigfish"),
        ("procgen_maze", "procgen-maze-v0"),
        ("procgen-bigfish-v1", "procgen-bigfish-v0"),
        ("cartpole", "CartPole-v1"),
        ("HalfCheetah-v3", "HalfCheetah-v5"),
        ("cheetah-run", "dm_control/cheetah-run-v0"),
    ],
)
def test_other_spellings_and_versions_lead_to_the_id_of_the_catalog(written: str, id_to_use: str) -> None:
    assert meant(written) == id_to_use
    assert find(id_to_use) is not None


def test_only_what_can_be_taken_is_meant() -> None:
    assert meant("pong", for_one_player) == "ALE/Pong-v5"
    assert meant("pong", lambda one: one.group == "multiplayer") == "pong_v3"
    assert meant("Pong-v0", lambda one: one.group == "multiplayer") == "pong_v3"
    assert meant("maze", for_one_player) != "maze"


def test_other_names_are_weighed_beside_the_ids() -> None:
    assert meant("atary", others=("atari", "procgen")) == "atari"
    assert meant("cartpole", others=("CartPole-v0",)) == "CartPole-v1"


@pytest.mark.parametrize("written", ["", "zzzzqqqq", "x" * 100_000])
def test_what_is_near_to_nothing_means_nothing(written: str) -> None:
    assert meant(written) is None
