"""Schedules as people write them, and when a run leaves a stage."""

import json
from typing import Any

import numpy as np
import pytest

from mosaic.contract.curriculum import Course, Term, read_condition, read_schedule
from mosaic.contract.errors import ConfigError


def course(*stages: dict[str, Any]) -> Course:
    found = Course(read_schedule([{"env_id": f"E{index}-v0", **stage} for index, stage in enumerate(stages)]))
    found.begin(0)
    return found


def play(found: Course, returns: list[float], step: int = 0) -> None:
    for value in returns:
        found.add(step, value)


def test_all_binds_tighter_than_any_and_spaces_are_free() -> None:
    condition = read_condition(" steps>=100|episodes >= 5 & episode_return>= -1.5e1 ")
    assert condition == (
        (Term("steps", 100.0),),
        (Term("episodes", 5.0), Term("episode_return", -15.0)),
    )


def test_several_keys_of_a_stage_are_alternatives_and_none_is_a_hundred_thousand_steps() -> None:
    first, second = read_schedule(
        [{"env_id": "A", "steps": 5, "episode_return": 2, "condition": "episodes>=3"}, {"env_id": "B"}]
    )
    assert [str(group[0]) for group in first.condition] == ["steps>=5", "episode_return>=2", "episodes>=3"]
    assert [str(group[0]) for group in second.condition] == ["steps>=100000"]


def test_a_schedule_may_come_as_text() -> None:
    stages = [{"env_id": "A", "steps": 5}, {"env_id": "B"}]
    assert read_schedule(json.dumps(stages)) == read_schedule(stages)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "a list of stages"),
        ("no json", "not JSON"),
        ({"env_id": "A"}, "a list of stages"),
        (["A"], "stage 1: an object with an env_id is needed, not 'A'"),
        ([{"steps": 4}], "stage 1: env_id"),
        ([{"env_id": "A", "step": 4}], "unknown key 'step'; did you mean 'steps'?"),
        ([{"env_id": "A", "steps": 0}], "steps: a whole number, 1 or more, is needed, not 0"),
        ([{"env_id": "A", "steps": 1.5}], "a whole number"),
        ([{"env_id": "A", "steps": True}], "a whole number"),
        ([{"env_id": "A", "episode_return": float("nan")}], "a number is needed"),
        ([{"env_id": "A", "condition": 3}], "a text like 'steps>=100000' is needed, not 3"),
        ([{"env_id": "A", "condition": "steps>100"}], "'steps>100' in 'steps>100' is no condition; use steps>=N"),
        ([{"env_id": "A", "condition": "return>=1"}], "is no condition"),
        ([{"env_id": "A", "condition": "steps>=1 &"}], "'' in 'steps>=1 &' is no condition"),
        ([{"env_id": "A", "condition": "steps>=x"}], "'x' in 'steps>=x' is no number"),
        ([{"env_id": "A", "condition": "episodes>=1 || steps>=2"}], "is no condition"),
        ([{"env_id": "A", "min_episodes": 0}], "min_episodes: a whole number, 1 or more,"),
        ([{"env_id": "A", "patience": -1}], "patience: a whole number, 0 or more,"),
        ([{"env_id": "A", "demotion": 0.5}], "there is no stage before the first one"),
    ],
)
def test_what_is_no_schedule_is_refused_in_one_line(stages: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_schedule(stages)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_steps_count_from_the_beginning_of_the_stage() -> None:
    found = course({"steps": 100}, {"steps": 50}, {})
    assert not found.due(99) and found.move(99) == {}
    assert found.due(128)
    assert found.move(128) == {"stage": 1, "env_id": "E1-v0", "step": 128, "reason": "steps>=100"}
    assert not found.due(177) and found.due(178)


def test_the_last_stage_is_never_left_forwards() -> None:
    found = course({"steps": 1}, {"steps": 1})
    found.move(10)
    assert not found.due(10**9)


def test_returns_count_once_there_are_enough_episodes_of_this_stage() -> None:
    found = course({"episode_return": 1.0}, {"episode_return": 1.0}, {})
    play(found, [5.0] * 19)
    assert not found.due(0)
    play(found, [5.0])
    assert found.move(0)["reason"] == "episode_return>=1"
    assert not found.due(0), "the returns of the stage before are forgotten"


def test_the_mean_is_that_of_the_last_hundred_episodes() -> None:
    found = course({"episode_return": 1.0}, {})
    play(found, [-1000.0] + [1.0] * 99)
    assert not found.due(0)
    play(found, [1.0])
    assert found.due(0)


def test_all_of_a_group_must_hold() -> None:
    found = course({"condition": "steps>=100 & episodes>=2"}, {})
    assert not found.due(200)
    play(found, [0.0, 0.0])
    assert not found.due(99) and found.due(100)


def test_patience_asks_for_episodes_in_a_row() -> None:
    found = course({"episode_return": 1.0, "min_episodes": 1, "patience": 3}, {})
    play(found, [1.0, 1.0])
    assert not found.due(0)
    play(found, [-10.0, 20.0, 1.0])
    assert not found.due(0), "the mean was too low in between"
    play(found, [1.0])
    assert found.due(0)


def test_a_stage_that_is_too_hard_goes_back_and_starts_anew_there() -> None:
    found = course({"steps": 10}, {"demotion": 0.5, "min_episodes": 2}, {})
    found.move(10)
    play(found, [0.0])
    assert not found.due(11)
    play(found, [0.2])
    assert found.move(12) == {"stage": 0, "env_id": "E0-v0", "step": 12, "reason": "episode_return 0.1 < 0.5"}
    assert not found.due(21) and found.due(22)


def test_the_last_stage_can_be_demoted_from() -> None:
    found = course({"steps": 10}, {"demotion": 0.5, "min_episodes": 1})
    found.move(10)
    play(found, [0.0])
    assert found.move(11)["stage"] == 0


def test_a_restored_course_knows_its_mean_return_before_another_episode_ends() -> None:
    saved = course({"condition": "steps>=100 & episode_return>=0.5"}, {})
    saved.begin(0)
    for step in range(1, 31):
        saved.add(step, 1.0)
    again = course({"condition": "steps>=100 & episode_return>=0.5"}, {})
    again.load_state_dict(saved.state_dict())
    assert [again.due(99), again.due(100)] == [saved.due(99), saved.due(100)] == [False, True]


def test_a_restored_course_decides_as_the_one_that_was_saved() -> None:
    stages = [{"steps": 10}, {"episode_return": 1.0, "patience": 2, "min_episodes": 3}, {}]
    whole = course(*stages)
    whole.move(10)
    play(whole, [0.3, 1.2, 2.5])
    again = Course(whole.stages)
    saved = {name: np.array(value) if isinstance(value, list) else value for name, value in whole.state_dict().items()}
    again.load_state_dict(saved)
    assert again.state_dict() == whole.state_dict()
    assert again.begin(99) == {}, "it goes on in its stage"
    for found in (whole, again):
        play(found, [1.0, 1.0])
    assert whole.due(20) and again.due(20)


def test_a_state_of_another_curriculum_is_refused_and_of_none_begins_anew() -> None:
    other = Course(read_schedule([{"env_id": "A", "steps": 1}, {"env_id": "B"}]))
    other.begin(0)
    other.move(1)
    with pytest.raises(ValueError, match="it was saved in stage 2, B"):
        course({"steps": 1}, {}).load_state_dict(other.state_dict())
    fresh = Course(other.stages)
    fresh.load_state_dict({})
    assert fresh.begin(70)["step"] == 70


def test_without_stages_nothing_is_ever_due() -> None:
    none = Course(())
    none.add(1, 1.0)
    assert not none.due(10**9) and none.move(10**9) == {} and none.state_dict() == {} and none.metrics() == {}
