"""An automatic curriculum: tasks chosen by the learner's returns; read from a config, checked, and followed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mosaic.contract.curriculum import Stage
from mosaic.contract.errors import ConfigError, nearest, shown

METHODS = ("plr", "lp", "domain_randomization")
EPISODES, STEPS = (
    20,
    10_000,
)  # of a task before another one is chosen: enough for a mean return, soon enough to turn back
_KEYS = ("method", "tasks", "episodes", "steps", "success_return")


@dataclass(frozen=True)
class Automatic:
    """An automatic curriculum as a config declares it."""

    method: str
    tasks: tuple[str, ...]
    episodes: int = EPISODES
    """a task ends after this many episodes, or"""
    steps: int = STEPS
    """after this many steps, whichever comes first"""
    success_return: float | None = None
    """an episode with at least this return is solved (None: above 0)"""


class Chooser(Protocol):
    """The algorithm that chooses the next task; it draws from numpy's global generator."""

    def sample(self) -> int: ...

    def tell(self, task: int, returns: Sequence[float]) -> None:
        """Add the returns of a task's episodes since it was chosen."""
        ...

    def probabilities(self) -> list[float]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def read_automatic(value: Any, place: str = "extras.curriculum") -> Automatic:
    """Return the curriculum of a JSON object, or of its text; raise ConfigError if it is invalid."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{place}: not JSON ({error})") from None
    if not isinstance(value, Mapping):
        raise ConfigError(f'{place}: an object like {{"method": "plr", "tasks": […]}} is needed, not {shown(value)}')
    for key in value:
        if key not in _KEYS:
            near = nearest(str(key), _KEYS) or ";"
            raise ConfigError(f"{place}: unknown key {shown(key)}{near} known are {', '.join(_KEYS)}")
    method, tasks = value.get("method"), value.get("tasks") or ()
    if method not in METHODS:
        raise ConfigError(
            f"{place}.method: {shown(method)} is none of {', '.join(METHODS)}{nearest(str(method), METHODS)}"
        )
    named = isinstance(tasks, list | tuple) and all(isinstance(task, str) and task.strip() for task in tasks)
    if not named or len(set(tasks)) != len(tasks) or len(tasks) < 2:
        raise ConfigError(
            f"{place}.tasks: two or more different environments are needed, not {shown(value.get('tasks'))}"
        )
    counts = {name: _count(value.get(name), default, f"{place}.{name}") for name, default in
              (("episodes", EPISODES), ("steps", STEPS))}  # fmt: skip
    success = value.get("success_return")
    if success is not None and (not isinstance(success, int | float) or not math.isfinite(success)):
        raise ConfigError(f"{place}.success_return: a number is needed, not {shown(success)}")
    return Automatic(method, tuple(tasks), **counts, success_return=success)


class AutomaticCourse:
    """A run's position in an automatic curriculum, with the interface of `curriculum.Course`.

    All environments play the chosen task; a new one is chosen only at the steps that the run asks for.
    """

    def __init__(self, plan: Automatic, chooser: Chooser) -> None:
        self._plan, self._chooser = plan, chooser
        self.stages = tuple(Stage(env_id, ()) for env_id in plan.tasks)
        self.index = 0
        self._began: int | None = None
        self._returns: list[float] = []

    @property
    def stage(self) -> Stage:
        return self.stages[self.index]

    def begin(self, step: int) -> dict[str, Any]:
        """Choose the first task, unless one was restored."""
        return self._choose(step) if self._began is None else {}

    def add(self, step: int, episode_return: float) -> None:
        self._returns.append(episode_return)

    def due(self, step: int) -> bool:
        played = step - (self._began or 0)
        return len(self._returns) >= self._plan.episodes or played >= self._plan.steps

    def move(self, step: int) -> dict[str, Any]:
        """Choose a task if one is due; it may be the same one."""
        if not self.due(step):
            return {}
        self._chooser.tell(self.index, self._returns)
        return self._choose(step)

    def metrics(self) -> dict[str, float]:
        chances = zip(self._plan.tasks, self._chooser.probabilities(), strict=True)
        return {"curriculum/stage": self.index} | {f"curriculum/{task}_prob": chance for task, chance in chances}

    def state_dict(self) -> dict[str, Any]:
        where = {"stage": self.index, "env_id": self.stage.env_id, "began": self._began}
        return where | {"returns": list(self._returns), "chooser": self._chooser.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not state:
            return
        index, env_id = int(state["stage"]), state["env_id"]
        if not 0 <= index < len(self.stages) or self.stages[index].env_id != env_id:
            raise ValueError(f"it was saved in task {index + 1}, {env_id}, which this curriculum does not have there")
        self.index, self._began = index, state["began"]
        self._returns = [float(value) for value in state["returns"]]
        begin = "chooser/"
        self._chooser.load_state_dict({k.removeprefix(begin): v for k, v in state.items() if k.startswith(begin)})

    def _choose(self, step: int) -> dict[str, Any]:
        self.index, self._began, self._returns = self._chooser.sample(), step, []
        return {"stage": self.index, "env_id": self.stage.env_id, "step": step, "reason": self._plan.method}


def _count(value: Any, default: int, place: str) -> int:
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{place}: a whole number, 1 or more, is needed, not {shown(value)}")
    return value
