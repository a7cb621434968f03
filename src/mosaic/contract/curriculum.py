"""A curriculum of stages: read from a config, checked, and followed step by step; pure."""

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
WINDOW = 100  # episodes of a stage that its mean return is taken over
MIN_EPISODES = 20  # fewer say nothing about a policy

QUANTITIES = ("steps", "episodes", "episode_return")
_KEYS = ("env_id", *QUANTITIES, "condition", "min_episodes", "patience", "demotion")
_TERM = re.compile(r"\s*(\w+)\s*>=\s*([-+.\w]+)\s*")


@dataclass(frozen=True)
class Term:
    """One comparison: a quantity of the stage has reached a value."""

    quantity: str
    value: float

    def __str__(self) -> str:
        return f"{self.quantity}>={self.value:.10g}"


Condition = tuple[tuple[Term, ...], ...]
"""any of these groups, of which all terms hold; & binds tighter than |"""


@dataclass(frozen=True)
class Stage:
    """One environment, and when training leaves it."""

    env_id: str
    condition: Condition
    """met: on to the next stage; the last one's is never asked"""
    min_episodes: int = MIN_EPISODES
    """episodes of the stage before its mean return counts"""
    patience: int = 0
    """episodes in a row after which the condition (or the demotion) must have held"""
    demotion: float | None = None
    """back to the stage before when the mean return is below this"""


def read_schedule(value: Any, place: str = "extras.curriculum_schedule") -> tuple[Stage, ...]:
    """The stages of a JSON list, or of its text; ConfigError names the stage and what is wrong with it."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{place}: not JSON ({error}); a list of stages is needed") from None
    if not isinstance(value, Sequence) or not value:
        raise ConfigError(f'{place}: a list of stages like {{"env_id": …, "steps": …}} is needed, not {shown(value)}')
    return tuple(_read_stage(entry, f"{place}, stage {number}", number) for number, entry in enumerate(value, start=1))


def read_condition(text: Any, place: str = "condition") -> Condition:
    """`steps>=N`, `episodes>=N`, `episode_return>=X`, joined by | (any) and & (all)."""
    if not isinstance(text, str):
        raise ConfigError(f"{place}: a text like {DEFAULT_CONDITION!r} is needed, not {shown(text)}")
    return tuple(tuple(_read_term(term, text, place) for term in group.split("&")) for group in text.split("|"))


class Course:
    """Where a run stands in its curriculum: the stage, when it began, and its episodes. All of it is in a checkpoint.

    Stages are left at the steps that the run asks for, never in between. Without stages nothing ever is.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)
        self._began: int | None = None
        self._held = 0
        """episodes in a row after which the stage was to be left; negative: for the one before"""
        self._enter(0, None)

    @property
    def stage(self) -> Stage:
        return self.stages[self.index]

    def begin(self, step: int) -> dict[str, Any]:
        """Start the first stage here, unless one was started or restored; a `stage` event's payload, or {}."""
        if self._began is not None:
            return {}
        self._began = step
        return self._told(step, "the first stage")

    def add(self, step: int, episode_return: float) -> None:
        """An episode of this stage has ended."""
        if not self.stages:
            return
        self._episodes += 1
        self._returns.append(episode_return)
        self._mean = math.fsum(self._returns) / len(self._returns)
        wish = self._wish(step)
        self._held = self._held + wish if self._held * wish >= 0 and wish else wish

    def due(self, step: int) -> bool:
        """Whether the stage is to be left at this step."""
        wish = self._wish(step) if self.stages else 0
        return wish != 0 and wish * self._held >= self.stage.patience

    def move(self, step: int) -> dict[str, Any]:
        """Enter the next stage, or the one before, where that is due; a `stage` event's payload, or {}."""
        if not self.due(step):
            return {}
        wish, reason = self._wish(step), self._reason(step)
        self._enter(self.index + wish, step)
        return self._told(step, reason)

    def metrics(self) -> dict[str, float]:
        """What a row of metrics says of it."""
        return {"curriculum/stage": self.index} if self.stages else {}

    def state_dict(self) -> dict[str, Any]:
        if not self.stages:
            return {}
        where = {"stage": self.index, "env_id": self.stage.env_id, "began": self._began}
        return where | {"episodes": self._episodes, "returns": list(self._returns), "held": self._held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What a run without a curriculum saved is nothing: the first stage starts then."""
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
        """1 for the next stage, -1 for the one before, 0 to stay."""
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
    """A finite number; with `least`, a whole one from there on."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or (least is not None and (value < least or value != int(value))):
        words = "a number" if least is None else f"a whole number, {least} or more,"
        raise ConfigError(f"{place}: {words} is needed, not {shown(value)}")
    return float(value)
