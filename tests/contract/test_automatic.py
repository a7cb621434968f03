"""Automatic curricula as people write them, and when another task is chosen."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mosaic.contract.automatic import Automatic, AutomaticCourse, read_automatic
from mosaic.contract.errors import ConfigError


class InTurn:
    """Chooses one task after the other."""

    def __init__(self) -> None:
        self.next, self.told = 0, list[tuple[int, list[float]]]()

    def sample(self) -> int:
        self.next += 1
        return (self.next - 1) % 2

    def tell(self, task: int, returns: Sequence[float]) -> None:
        self.told.append((task, list(returns)))

    def probabilities(self) -> list[float]:
        return [0.25, 0.75]

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.next = state["next"]


PLAN = Automatic("lp", ("A", "B"), episodes=3, steps=100)


def test_a_task_is_left_after_its_episodes_or_steps_and_the_chooser_is_told_how_it_went() -> None:
    chooser = InTurn()
    course = AutomaticCourse(PLAN, chooser)
    assert course.begin(0) == {"stage": 0, "env_id": "A", "step": 0, "reason": "lp"}
    for value in (1.0, 0.0, 2.0):
        assert course.move(30) == {}
        course.add(30, value)
    assert course.move(40)["env_id"] == "B" and chooser.told == [(0, [1.0, 0.0, 2.0])]
    assert not course.due(139) and course.due(140)
    assert course.metrics() == {"curriculum/stage": 1, "curriculum/A_prob": 0.25, "curriculum/B_prob": 0.75}


def test_a_restored_course_goes_on_with_its_task_and_chooser() -> None:
    course = AutomaticCourse(PLAN, InTurn())
    course.begin(0)
    course.add(1, 0.5)
    saved = {key: value for key, value in course.state_dict().items() if key != "chooser"} | {"chooser/next": 1}
    again = AutomaticCourse(PLAN, InTurn())
    again.load_state_dict(saved)
    assert again.begin(50) == {} and again.state_dict() == course.state_dict()
    with pytest.raises(ValueError, match="it was saved in task 1, A"):
        AutomaticCourse(Automatic("lp", ("B", "A")), InTurn()).load_state_dict(saved)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{", "not JSON"),
        ([], "an object like"),
        ({"method": "plr", "task": []}, "unknown key 'task'; did you mean 'tasks'?"),
        ({"method": "pl", "tasks": ["A", "B"]}, "'pl' is none of plr, lp, domain_randomization; did you mean 'plr'?"),
        ({"method": "plr"}, "two or more different environments are needed, not None"),
        ({"method": "plr", "tasks": ["A", "A"]}, "two or more different environments"),
        ({"method": "plr", "tasks": ["A", 1]}, "two or more different environments"),
        (
            {"method": "plr", "tasks": ["A", "B"], "episodes": 0},
            "episodes: a whole number, 1 or more, is needed, not 0",
        ),
        ({"method": "lp", "tasks": ["A", "B"], "success_return": "x"}, "success_return: a number is needed, not 'x'"),
    ],
)
def test_what_is_no_automatic_curriculum_is_refused_in_one_line(given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_automatic(given)
    assert message in str(caught.value) and "\n" not in str(caught.value)
