"""The kinds of values that fields accept: types, ranges and sizes, and the error for a value that does not fit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from mosaic.contract.errors import ConfigError, nearest, shown

DEPTH = 64
"""levels of objects and arrays within each other"""
MOST_VALUES, MOST_WIDE_VALUES = 200_000, 2_000_000
LEAST_INT, MOST_INT = -(1 << 63), (1 << 63) - 1
NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""the spelling in our JSON lines of floats that JSON lacks"""


class FieldError(ConfigError):
    """A field whose value has the wrong type, range or size; its text is one line, whatever the field's name."""

    def __init__(self, message: str) -> None:
        super().__init__("".join(letter if letter.isprintable() else " " for letter in message))


@dataclass(frozen=True)
class Kind:
    """The values that a field accepts; `words` describe them in a refusal."""

    words: str
    fits: Callable[[Any], bool]
    inner: Callable[[Any, str], None] | None = None
    """checks the parts of a value that fits"""
    secret: bool = False
    """a refusal does not quote the value"""
    choices: tuple[str, ...] = ()
    """a refusal suggests the nearest"""

    def check(self, value: object, place: str) -> None:
        """Raise FieldError unless the value fits."""
        if not self.fits(value):
            if self.choices and isinstance(value, str):
                near = nearest(value, self.choices)
                raise FieldError(f"{place}: {shown(value)} is none of {', '.join(self.choices)}{near}")
            refuse(place, self.words, None if self.secret else value, quoted=not self.secret)
        if self.inner is not None:
            self.inner(value, place)


@dataclass(frozen=True)
class Table:
    """A JSON object with fields of known kinds; null stands for an absent field."""

    fields: Mapping[str, Kind | Table]
    required: tuple[str, ...] = ()
    closed: bool = False
    """unknown fields are refused instead of checked for depth and range only"""
    words: str = "a JSON object"
    secret: bool = field(default=False)

    def check(self, value: object, place: str = "") -> None:
        """Raise FieldError for the first field that does not fit."""
        if not isinstance(value, Mapping):
            refuse(place or "document", self.words, value)
        bounded(value, place, wide=True)
        self.check_fields(value, place)  # before the numbers of any field: a known field has its own range
        bounded(value, place)

    def check_fields(self, value: Mapping[str, Any], place: str) -> None:
        """Check the known fields only; the caller has bounded the document."""
        dot = f"{place}." if place else ""
        for name in self.required:
            if value.get(name) is None:
                raise FieldError(f"{dot}{name}: missing")
        for name, item in value.items():
            kind = self.fields.get(name)
            if kind is None and self.closed:
                raise FieldError(f"{dot}{name}: unknown field{nearest(str(name), self.fields)}")
            if kind is None or item is None:
                continue
            if isinstance(kind, Table):
                if not isinstance(item, Mapping):
                    refuse(f"{dot}{name}", kind.words, item)
                kind.check_fields(item, f"{dot}{name}")
            else:
                kind.check(item, f"{dot}{name}")


def refuse(place: str, words: str, value: object, *, quoted: bool = True) -> NoReturn:
    """Raise the FieldError for a value that does not match `words`."""
    raise FieldError(f"{place}: {words} is needed" + (f", not {shown(value)}" if quoted else ""))


def whole(least: int = LEAST_INT, most: int = MOST_INT) -> Kind:
    """Return the kind of an integer in a range; true and 1.0 are refused."""
    return Kind(
        f"a whole number from {least} to {most}",
        lambda value: type(value) is int and least <= value <= most,
    )


def number(least: float = -math.inf, most: float = math.inf, *, above: float | None = None) -> Kind:
    """Return the kind of a finite number in a range that contains `least` and `most` but not `above`."""
    words = f"a number between {least:,.10g} and {most:,.10g}" if math.isfinite(least + most) else "a finite number"
    if above is not None:
        words = f"a number above {above:,.10g}" + (f" and at most {most:,.10g}" if math.isfinite(most) else "")

    def fits(value: Any) -> bool:
        if type(value) is int and not LEAST_INT <= value <= MOST_INT:
            return False
        in_range = type(value) in (int, float) and math.isfinite(value) and least <= value <= most
        return in_range and (above is None or value > above)

    return Kind(words, fits)


def text(most: int = 4096, *, secret: bool = False) -> Kind:
    """Return the kind of a text without NUL that UTF-8 can encode."""
    words = f"a text (at most {most:,} characters, no NUL)"
    return Kind(words, lambda value: type(value) is str and len(value) <= most and is_clean(value), secret=secret)


def name(most: int = 300) -> Kind:
    """Return the kind of a printable text that is not blank."""
    words = f"a printable text of at most {most} characters"
    return Kind(
        words,
        lambda value: type(value) is str and len(value) <= most and bool(value.strip()) and value.isprintable(),
    )


def section(**fields: Kind | Table) -> Table:
    """Return the table of a JSON object with these fields and no others."""
    return Table(fields, closed=True)


def choice(*names: str) -> Kind:
    return Kind(f"one of {', '.join(names)}", lambda value: type(value) is str and value in names, choices=names)


def list_of(kind: Kind | Table, most: int = 10_000) -> Kind:
    """Return the kind of an array whose items are of one kind."""

    def inner(value: Any, place: str) -> None:
        for index, item in enumerate(value):
            kind.check(item, f"{place}[{index}]")

    return Kind(
        f"a list of at most {most:,}", lambda value: isinstance(value, list | tuple) and len(value) <= most, inner
    )


def json_list(kind: Kind) -> Kind:
    """Return the kind of a text that holds a JSON array whose items are of one kind."""

    def fits(value: Any) -> bool:
        if value == "[]":  # nearly always, and lists are long
            return True
        try:
            found = json.loads(value) if type(value) is str else None
        except (ValueError, RecursionError):
            return False
        return type(found) is list and all(kind.fits(item) for item in found)

    return Kind(f"a JSON list, each item {kind.words},", fits)


def map_of(kind: Kind | Table, most: int = 10_000, key: Kind | None = None, secret: bool = False) -> Kind:
    """Return the kind of an object with arbitrary keys and values of one kind."""
    names = text(300) if key is None else key

    def inner(value: Any, place: str) -> None:
        for title, item in value.items():
            names.check(title, f"{place}: a name")
            kind.check(item, f"{place}.{title}")

    words = f"a JSON object of at most {most:,} names"
    return Kind(words, lambda value: isinstance(value, Mapping) and len(value) <= most, inner, secret)


FLAG = Kind("true or false", lambda value: type(value) is bool)
COUNT = whole(0)
SECONDS = number(0, 1e9)
SHARE = number(0, 1)
ANYTHING = Kind("a JSON value", lambda value: True)  # its depth and ranges are checked with its document
OBJECT = Kind("a JSON object", lambda value: isinstance(value, Mapping))
READING = Kind(
    "a number, NaN, Infinity or -Infinity",
    lambda value: type(value) in (int, float) or (type(value) is str and value in NOT_FINITE),
)
RUN_ID = Kind(
    "1 to 128 letters, digits, '-' and '_'",
    lambda value: (
        type(value) is str
        and 0 < len(value) <= 128
        and value.replace("-", "a").replace("_", "a").isalnum()
        and value.isascii()
    ),
)
DIGEST = Kind(
    "a SHA-256 in hex",
    lambda value: type(value) is str and len(value) == 64 and not value.strip("0123456789abcdef"),
)
FILE_NAME = Kind(
    "the name of a file without folders",
    lambda value: (
        type(value) is str
        and 0 < len(value) <= 200
        and is_clean(value)
        and "/" not in value
        and "\\" not in value
        and not value.startswith(".")
    ),
)
RING_NAME = Kind(
    "the name of a ring",
    lambda value: FILE_NAME.fits(value) and value.startswith("fl-") and value.count("-") == 3,
)
FILE_PATH = Kind(
    "a path below its folder, without hidden parts",
    lambda value: (
        type(value) is str
        and len(value) <= 4096
        and is_clean(value)
        and all(part and not part.startswith(".") for part in value.split("/"))
    ),
)
# A run creates this many: a forged file must not fill the memory with environments.
SIZES = {**dict.fromkeys(("num_envs", "local_num_envs"), whole(0, 1 << 17)), "buffer_size": whole(0, 1 << 30)}
PARAMETERS = Kind(
    "a JSON object",
    lambda value: isinstance(value, Mapping) and len(value) <= 1_000,
    lambda value, place: _check_parameters(value, place),
)
NUMBERS = Kind("a number or an array of finite numbers", lambda value: _are_finite(value))
VARIABLE = Kind(
    "a variable name without '=' and NUL",
    lambda value: type(value) is str and 0 < len(value) <= 256 and "=" not in value and is_clean(value),
)
ENVIRONMENT = map_of(text(100_000, secret=True), 1_000, VARIABLE, secret=True)


def bounded(value: object, place: str, *, wide: bool = False) -> None:
    """Refuse a document that is nested too deep, has too many values, or a number or text out of range.

    `wide` accepts integers beyond 64 bits and non-finite numbers: generators and statistics have them.
    """
    open_ones: list[tuple[object, str, int]] = [(value, place, 0)]
    count, most = 0, MOST_WIDE_VALUES if wide else MOST_VALUES
    while open_ones:
        item, where, depth = open_ones.pop()
        count += 1
        if type(item) is str:
            if not is_clean(item):
                raise FieldError(f"{_short(where)}: a text has a NUL or half a surrogate pair; leave it out")
        elif type(item) is int and not wide and not LEAST_INT <= item <= MOST_INT:
            refuse(_short(where), f"a number from {LEAST_INT} to {MOST_INT}", item)
        elif type(item) is float and not wide and not math.isfinite(item):
            refuse(_short(where), "a finite number", item)
        elif type(item) is list and depth < DEPTH and _are_small(item, wide):
            count += len(item)  # the words of a generator, a thousand in a list
        elif type(item) not in (int, float, bool) and isinstance(item, Mapping | list | tuple):
            if depth >= DEPTH:
                raise FieldError(f"{_short(where)}: nested deeper than {DEPTH} levels; flatten it")
            pairs = item.items() if isinstance(item, Mapping) else ((f"[{n}]", part) for n, part in enumerate(item))
            for key, part in pairs:
                if isinstance(item, Mapping) and not (type(key) is str and is_clean(key)):
                    raise FieldError(f"{_short(where)}: a name without NUL is needed, not {shown(key)}")
                open_ones.append((part, f"{where}.{key}" if where and key[:1] != "[" else f"{where}{key}", depth + 1))
        if count + len(open_ones) > most:
            raise FieldError(f"{place or 'document'}: more than {most:,} values; give fewer")


def _are_small(items: list[Any], wide: bool) -> bool:
    """Return True for a list of integers within range, without inspecting each of them in Python."""
    return set(map(type, items)) == {int} and (wide or (LEAST_INT <= min(items) and max(items) <= MOST_INT))


def _check_parameters(value: Any, place: str) -> None:
    bounded(_finite(value), place)
    for key, kind in SIZES.items():
        if value.get(key) is not None:
            kind.check(value[key], f"{place}.{key}")


def _finite(value: Any) -> Any:
    """Return the parameters without infinities, which some may be."""
    return {key: 0 if isinstance(item, float) and not math.isfinite(item) else item for key, item in value.items()}


def _are_finite(value: Any, depth: int = 0) -> bool:
    if isinstance(value, list):
        return depth < DEPTH and all(_are_finite(item, depth + 1) for item in value)
    return type(value) in (int, float) and math.isfinite(value)


def is_clean(value: str) -> bool:
    """Return True if UTF-8 can encode the text and it contains no NUL."""
    try:
        return "\0" not in value and bool(value.encode() or True)
    except UnicodeEncodeError:
        return False


def _short(place: str) -> str:
    return (place if len(place) <= 100 else f"{place[:60]}…{place[-20:]}") or "document"
