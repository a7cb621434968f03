"""A curriculum of stages: read from a config, checked, and followed step by step; no I/O."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mosaic.contract.errors import ConfigError, nearest, shown

DEFAULT_CONDITION = "steps>=100000"
WINDOW = 100  # episodes of a stage that its mean return covers
MIN_EPISODES = 20  # fewer are not representative of a policy

QUANTITIES = ("steps", "episodes", "episode_return")
_KEYS = ("env_id", *QUANTITIES, "condition", "min_episodes", "patience", "demotion")
_TERM = re.compile(r"\s*(\w+)\s*>=\s*([-+.\w]+)\s*")


@dataclass(frozen=True)
class Term:
    """One comparison: true once a quantity of the stage has reached a value."""

    quantity: str
    value: float

    def __str__(self) -> str:
        return f"{self.quantity}>={self.value:.10g}"


Condition = tuple[tuple[Term, ...], ...]
"""true if any group holds, a group if all its terms hold; & binds tighter than |"""


@dataclass(frozen=True)
class Stage:
    """One environment, and the condition on which training leaves it."""

    env_id: str
    condition: Condition
    """if true, move to the next stage; ignored for the last one"""
    min_episodes: int = MIN_EPISODES
    """episodes of the stage before its mean return counts"""
    patience: int = 0
    """consecutive episodes for which the condition (or the demotion) must hold"""
    demotion: float | None = None
    """move back one stage if the mean return is below this"""


def read_schedule(value: Any, place: str = "extras.curriculum_schedule") -> tuple[Stage, ...]:
    """Return the stages of a JSON list, or of its text; raise ConfigError with the stage and the reason."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{place}: not JSON ({error}); a list of stages is needed") from None
    if not isinstance(value, Sequence) or not value:
        raise ConfigError(f'{place}: a list of stages like {{"env_id": …, "steps": …}} is needed, not {shown(value)}')
    return tuple(_read_stage(entry, f"{place}, stage {number}", number) for number, entry in enumerate(value, start=1))


def read_condition(text: Any, place: str = "condition") -> Condition:
    """Return the condition of a text: `steps>=N`, `episodes>=N`, `episode_return>=X`, joined by | (any) and & (all)."""
    if not isinstance(text, str):
        raise ConfigError(f"{place}: a text like {DEFAULT_CONDITION!r} is needed, not {shown(text)}")
    return tuple(tuple(_read_term(term, text, place) for term in group.split("&")) for group in text.split("|"))


class Course:
    """A run's position in its curriculum: the stage, its start and its episodes. A checkpoint contains all of it.

    A stage changes only at the steps that the run asks for. Without stages nothing changes.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)
        self._began: int | None = None
        self._held = 0
        """consecutive episodes for which the stage was to be left; negative: for the one before"""
        self._enter(0, None)

    @property
    def stage(self) -> Stage:
        return self.stages[self.index]

    def begin(self, step: int) -> dict[str, Any]:
        """Start the first stage here, unless one was started or restored; return a `stage` event's payload, or {}."""
        if self._began is not None:
            return {}
        self._began = step
        return self._told(step, "the first stage")

    def add(self, step: int, episode_return: float) -> None:
        """Add the return of a finished episode of this stage."""
        if not self.stages:
            return
        self._episodes += 1
        self._returns.append(episode_return)
        self._mean = math.fsum(self._returns) / len(self._returns)
        wish = self._wish(step)
        self._held = self._held + wish if self._held * wish >= 0 and wish else wish

    def due(self, step: int) -> bool:
        """Return True if the stage should change at this step."""
        wish = self._wish(step) if self.stages else 0
        return wish != 0 and wish * self._held >= self.stage.patience

    def move(self, step: int) -> dict[str, Any]:
        """Enter the next stage, or the one before, if that is due; return a `stage` event's payload, or {}."""
        if not self.due(step):
            return {}
        wish, reason = self._wish(step), self._reason(step)
        self._enter(self.index + wish, step)
        return self._told(step, reason)

    def metrics(self) -> dict[str, float]:
        """Return the tags that a row of metrics contains."""
        return {"curriculum/stage": self.index} if self.stages else {}

    def state_dict(self) -> dict[str, Any]:
        if not self.stages:
            return {}
        where = {"stage": self.index, "env_id": self.stage.env_id, "began": self._began}
        return where | {"episodes": self._episodes, "returns": list(self._returns), "held": self._held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved position; the state of a run without a curriculum is empty, and the first stage starts."""
        if not state or not self.stages:
            return
        index, env_id = int(state["stage"]), state["env_id"]
        if not 0 <= index < len(self.stages) or self.stages[index].env_id != env_id:
            raise ValueError(f"it was saved in stage {index + 1}, {env_id}, which this curriculum does not have there")
        self._enter(index, state["began"])
        self._episodes, self._held = int(state["episodes"]), int(state["held"])
        self._returns.extend(float(value) for value in state["returns"])
        self._mean = math.fsum(self._returns) / len(self._returns) if self._returns else 0.0

    def _enter(self, index: int, step: int | None) -> None:
        self.index = index
        self._began, self._episodes, self._held = step, 0, 0
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self._mean = 0.0

    def _told(self, step: int, reason: str) -> dict[str, Any]:
        return {"stage": self.index, "env_id": self.stage.env_id, "step": step, "reason": reason}

    def _wish(self, step: int) -> int:
        """Return 1 for the next stage, -1 for the one before, 0 to stay."""
        stage = self.stage
        if self.index + 1 < len(self.stages) and self._met(step) is not None:
            return 1
        known = self._episodes >= stage.min_episodes
        return -1 if stage.demotion is not None and known and self._mean < stage.demotion else 0

    def _met(self, step: int) -> tuple[Term, ...] | None:
        for group in self.stage.condition:
            for term in group:
                if not self._holds(term, step):
                    break
            else:
                return group
        return None

    def _holds(self, term: Term, step: int) -> bool:
        if term.quantity == "steps":
            return step - (self._began or 0) >= term.value
        if term.quantity == "episodes":
            return self._episodes >= term.value
        return self._episodes >= self.stage.min_episodes and self._mean >= term.value

    def _reason(self, step: int) -> str:
        met = self._met(step) if self.index + 1 < len(self.stages) else None
        if met is not None:
            return " & ".join(map(str, met))
        return f"episode_return {self._mean:.10g} < {self.stage.demotion:.10g}"


def _read_stage(entry: Any, place: str, number: int) -> Stage:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{place}: an object with an env_id is needed, not {shown(entry)}")
    for key in entry:
        if key not in _KEYS:
            near = nearest(str(key), _KEYS) or ";"
            raise ConfigError(f"{place}: unknown key {shown(key)}{near} known are {', '.join(_KEYS)}")
    given = {key: value for key, value in entry.items() if value is not None and value != ""}
    env_id = given.get("env_id")
    if not isinstance(env_id, str) or not env_id.strip() or not env_id.isprintable():
        raise ConfigError(f"{place}: env_id: the name of an environment is needed, not {shown(env_id)}")
    groups: list[tuple[Term, ...]] = [(_term(key, given[key], place),) for key in QUANTITIES if key in given]
    if "condition" in given or not groups:
        groups += read_condition(given.get("condition", DEFAULT_CONDITION), f"{place}: condition")
    demotion = given.get("demotion")
    if demotion is not None and number == 1:
        raise ConfigError(f"{place}: demotion: there is no stage before the first one")
    return Stage(
        env_id=env_id,
        condition=tuple(groups),
        min_episodes=int(_number(given.get("min_episodes", MIN_EPISODES), f"{place}: min_episodes", least=1)),
        patience=int(_number(given.get("patience", 0), f"{place}: patience", least=0)),
        demotion=None if demotion is None else _number(demotion, f"{place}: demotion"),
    )


def _read_term(term: str, text: str, place: str) -> Term:
    found = _TERM.fullmatch(term)
    if found is None or found[1] not in QUANTITIES:
        near = nearest(found[1], QUANTITIES) if found else ""
        forms = ", ".join(f"{name}>={'X' if name == 'episode_return' else 'N'}" for name in QUANTITIES)
        raise ConfigError(
            f"{place}: {shown(term.strip())} in {shown(text)} is no condition{near or ';'} "
            f"use {forms}, joined by | and &"
        )
    try:
        value = float(found[2])
    except ValueError:
        raise ConfigError(f"{place}: {shown(found[2])} in {shown(text)} is no number") from None
    return _term(found[1], value, place)


def _term(quantity: str, value: Any, place: str) -> Term:
    least = None if quantity == "episode_return" else 1
    return Term(quantity, _number(value, f"{place}: {quantity}", least))


def _number(value: Any, place: str, least: int | None = None) -> float:
    """Return a finite number; with `least`, an integer not below it."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or (least is not None and (value < least or value != int(value))):
        words = "a number" if least is None else f"a whole number, {least} or more,"
        raise ConfigError(f"{place}: {words} is needed, not {shown(value)}")
    return float(value)
