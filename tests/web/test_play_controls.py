"""Which keys act in which environment."""

from typing import Any

import pytest

from mosaic import catalog
from mosaic.web.play_controls import DOWN, LEFT, RIGHT, UP, controls_for


def discrete(n: int, start: int = 0) -> dict[str, Any]:
    return {"type": "discrete", "n": n, "start": start}


def continuous(low: list[Any], high: list[Any]) -> dict[str, Any]:
    return {"type": "continuous", "shape": [len(low)], "low": low, "high": high}


def test_arrows_and_number_keys_push_the_cart() -> None:
    keys = controls_for("CartPole-v1", discrete(2))
    assert keys.names == ("push left", "push right")
    assert (keys.action([LEFT]), keys.action([RIGHT]), keys.action(["1"]), keys.action(["2"])) == (0, 1, 0, 1)
    assert keys.action([]) is None, "time stands still until a key is held"
    assert keys.action([LEFT, RIGHT]) == 1, "the key pressed last counts"
    assert keys.key_of(0) == "← or 1"


def test_where_there_is_something_like_waiting_time_goes_on_without_a_key() -> None:
    assert controls_for("LunarLander-v3", discrete(4)).action([]) == 0
    assert controls_for("MountainCar-v0", discrete(3)).action([]) == 1
    assert controls_for("ALE/Breakout-v5", discrete(4)).action([]) == 0
    assert controls_for("MiniGrid-Empty-5x5-v0", discrete(7)).action([]) is None


def test_actions_that_do_not_count_from_zero_are_shifted() -> None:
    keys = controls_for("MyOwn-v0", discrete(3, start=5))
    assert keys.names == ("action 5", "action 6", "action 7")
    assert keys.action(["1"]) == 5 and keys.action(["3"]) == 7 and keys.action(["4"]) is None


def test_a_continuous_action_rests_at_zero_and_is_pushed_to_its_ends() -> None:
    keys = controls_for("Pendulum-v1", continuous([-2.0], [2.0]))
    assert keys.action([]) == [0.0] and keys.action([LEFT]) == [-2.0] and keys.action([RIGHT]) == [2.0]
    two = controls_for("LunarLanderContinuous-v3", continuous([-1.0, 0.5], [1.0, 1.0]))
    assert two.action([]) == [0.0, 0.5] and two.action([RIGHT, UP]) == [1.0, 1.0] and two.action([DOWN]) == [0.0, 0.5]


def test_a_range_without_end_is_pushed_by_one() -> None:
    keys = controls_for("MyOwn-v0", continuous(["-Infinity"], ["Infinity"]))
    assert keys.action([LEFT]) == [-1.0] and keys.action([RIGHT]) == [1.0]


@pytest.mark.parametrize(
    ("env_id", "space", "reason"),
    [
        ("InvertedPendulum-v5", continuous([-3.0], [3.0]), "agent only: no human control"),
        ("BipedalWalker-v3", continuous([-1.0] * 4, [1.0] * 4), "4 numbers at a time"),
        ("MyOwn-v0", {"type": "multi_binary", "shape": [3]}, "multi binary"),
        ("MyOwn-v0", {}, "unknown"),
    ],
)
def test_where_a_person_cannot_act_the_reason_is_told(env_id: str, space: dict[str, Any], reason: str) -> None:
    keys = controls_for(env_id, space)
    assert not keys.possible and reason in keys.reason and keys.action([LEFT]) is None


def test_no_key_leads_out_of_the_action_space() -> None:
    for env_id in catalog.ids():
        for count in (2, 3, 4, 6, 7, 15, 18):
            keys = controls_for(env_id, discrete(count))
            assert all(0 <= action < count for action in keys.keys.values())
            assert not keys.possible or len(keys.names) == count
