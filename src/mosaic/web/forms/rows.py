"""Rows: the type and limits of a form's field, from an algorithm's schema or the form's own, and its parser."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mosaic.contract.errors import ConfigError, nearest, shown
from mosaic.contract.limits import COMPUTED, Limits

# Fields of an algorithm with their own place in a form, or set by the worker.
OWN_PLACE = frozenset(
    {
        *("env_id", "seed", "total_timesteps", "total_frames", "cuda", "track", "tensorboard_dir", "run_dir"),
        *("wandb_project_name", "wandb_entity", "wandb_run_name", "resume", "additional_timesteps"),
    }
)
# The section of each other field; unlisted ones are hyper-parameters.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Saving and checkpoints": (
        *("save_model", "checkpoint_every", "checkpoint_budget_mb", "grace_seconds", "capture_video"),
        *("upload_model", "hf_entity"),
    ),
    "Environments and machine": (
        *("num_envs", "env_backend", "vectorization", "num_threads", "torch_deterministic", "exp_name"),
    ),
}
HYPER_PARAMETERS = "Hyper-parameters"
# A new user's first policy can be evaluated only if it was saved.
STARTS_ON = frozenset({"save_model"})

_WORDS = {"int": "a whole number", "float": "a number", "str": "a text", "path": "a path"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One field. `type` is int, float, str, bool, path or list[…]; an empty optional field is None."""

    name: str
    type: str = "str"
    default: Any = ""
    optional: bool = False
    needed: bool = False
    """a text that must not be empty"""
    choices: tuple[Any, ...] = ()
    help: str = ""
    label: str = ""
    least: float | None = None
    most: float | None = None
    start: Any = None
    """the form's first value, if it is not the default"""
    plain: bool = False
    """a choice without a default to differ from"""
    limits: Limits | None = None
    """the limits that the algorithm's own file declares"""

    @property
    def first(self) -> Any:
        """Return the field's value before any change."""
        return self.default if self.start is None else self.start

    @property
    def title(self) -> str:
        return self.label or self.name.replace("_", " ").capitalize()

    def read(self, given: Any) -> Any:
        """Return the value of a widget's content; ConfigError names the expected input."""
        if self.type == "bool":
            return _switch(self, given)
        text = "" if given is None else str(given).strip()
        if not text:
            return self._empty()
        value = _converted(self, self.type, text)
        if self.choices:
            return self._chosen(value)
        if isinstance(value, int | float) and not _between(self.least, value, self.most):
            raise ConfigError(f"{_range_words(self)} is needed, not {shown(text)}{self._default_words()}")
        self.check_limits(value)
        return value

    def check_limits(self, value: Any, other: Callable[[str], Any] = lambda name: None) -> None:
        """Raise ConfigError for a number beyond the limits; `other` returns the parameters that a limit refers to."""
        if self.limits is None or isinstance(value, bool) or not isinstance(value, int | float):
            return
        if why := self.limits.refusal(value, other):
            raise ConfigError(f"{why}{self._default_words()}")

    def takes(self, value: Any) -> bool:
        """Return True for a value that the field can show and read back."""
        try:
            self.read(self.shown(value))
        except ConfigError:
            return False
        return True

    def shown(self, value: Any) -> Any:
        """Return the value as a widget shows it: text, or a switch's bool, or a choice."""
        if self.type == "bool" or self.choices:
            return value
        if value is None:
            return ""
        if isinstance(value, list | tuple):
            return ", ".join(str(item) for item in value)
        return str(value)

    def _empty(self) -> Any:
        if self.optional:
            return None
        if self.type in ("str", "path") and not self.needed:
            return ""
        if self.type.startswith("list["):
            return []
        raise ConfigError(f"{_range_words(self)} is needed{self._default_words()}")

    def _chosen(self, value: Any) -> Any:
        if value not in self.choices:
            names = [str(choice) for choice in self.choices]
            raise ConfigError(f"{shown(value)} is none of {', '.join(names)}{nearest(str(value), names)}")
        return value

    def _default_words(self) -> str:
        return "" if self.default in (None, "") else f" (default {self.default})"


def schema_rows(entry: Mapping[str, Any]) -> dict[str, Row]:
    """Return an algorithm's parameters as rows, without computed ones and those with their own place."""
    rows = {}
    for field in entry.get("fields", ()):
        name, text = str(field["name"]), str(field.get("help") or "")
        limits = Limits(**field["limits"]) if field.get("limits") else None
        computed = limits == COMPUTED
        if name in OWN_PLACE or computed:
            continue
        rows[name] = Row(
            name=name,
            type=str(field.get("type") or "str"),
            default=field.get("default"),
            optional=bool(field.get("optional")) or field.get("default") is None,
            choices=tuple(field.get("choices") or ()),
            help=text,
            start=True if name in STARTS_ON else None,
            limits=limits,
        )
    return rows


def by_section(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows by section, the hyper-parameters first, without empty sections."""
    found: dict[str, list[Row]] = {HYPER_PARAMETERS: [], **{title: [] for title in SECTIONS}}
    places = {name: title for title, names in SECTIONS.items() for name in names}
    for row in rows:
        found[places.get(row.name, HYPER_PARAMETERS)].append(row)
    order = {name: place for names in SECTIONS.values() for place, name in enumerate(names)}
    for title in SECTIONS:
        found[title].sort(key=lambda row: order[row.name])
    return {title: some for title, some in found.items() if some}


def read_all(rows: Iterable[Row], given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of all valid fields, and by name the errors of the others."""
    values, problems = {}, {}
    for row in rows:
        try:
            values[row.name] = row.read(given.get(row.name, row.shown(row.first)))
        except ConfigError as error:
            problems[row.name] = str(error)
    return values, problems


def changed(rows: Iterable[Row], values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the changes from the defaults: name -> (default, value)."""
    return {
        row.name: (row.default, values[row.name])
        for row in rows
        if row.name in values and not _same(values[row.name], row.default)
    }


def _same(value: Any, default: Any) -> bool:
    if value in (None, "") and default in (None, ""):
        return True
    return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)


def _switch(row: Row, given: Any) -> bool | None:
    if isinstance(given, bool):
        return given
    if given in (None, ""):
        return None if row.optional else False
    words = {"true": True, "false": False}
    if str(given).lower() not in words:
        raise ConfigError(f"true or false is needed, not {shown(given)}")
    return words[str(given).lower()]


def _converted(row: Row, kind: str, text: str) -> Any:
    if kind.startswith("list["):
        return [_converted(row, kind[5:-1], part.strip()) for part in text.split(",") if part.strip()]
    if kind not in ("int", "float"):
        return text
    plain = text.replace("_", "").replace(",", "") if kind == "int" else text.replace("_", "")
    try:
        number = float(plain)
        if kind == "int":
            if plain.lstrip("+-").isdecimal():
                return int(plain)
            if number.is_integer() and abs(number) < 2**53:  # 1e6 is a million
                return int(number)
        elif not math.isnan(number):
            return number
    except (ValueError, OverflowError):
        pass
    raise ConfigError(f"{_range_words(row)} is needed, not {shown(text)}{row._default_words()}")


def _between(least: float | None, value: float, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _range_words(row: Row) -> str:
    words = _WORDS.get(row.type, row.type)
    if row.least is not None and row.most is not None:
        return f"{words} from {row.least:g} to {row.most:,.0f}"
    return words if row.least is None else f"{words}, {row.least:g} or more,"
