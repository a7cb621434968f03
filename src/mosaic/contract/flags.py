"""Flags as a worker's shell writes them and an algorithm reads them; switches exist in two dialects."""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from mosaic.contract.errors import nearest


def option(name: str) -> str:
    """Return the flag of a field's name."""
    return "--" + name.replace("_", "-")


def written(name: str, value: Any, paired: bool) -> list[str]:
    """Return a value as an algorithm's flags; a switch that is `paired` as --x or --no-x, others as --x=true."""
    flag = option(name)
    if isinstance(value, list | tuple):
        return [f"{flag}={item}" for item in value]
    if isinstance(value, bool) and paired:
        return [flag if value else f"--no-{flag[2:]}"]
    return [f"{flag}={plain(value)}"]


def plain(value: Any) -> str:
    """Return a value as a command line's text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def in_one_dialect(given: Iterable[str], fields: Mapping[str, Any]) -> list[str]:
    """Convert flags to tyro's dialect for these types: `--x=false` to `--no-x`, a list's `--x=1 --x=2` to `--x 1 2`."""
    switches = [name for name, kind in fields.items() if kind is bool]
    lists: dict[str, list[str]] = {option(name): [] for name, kind in fields.items() if typing.get_origin(kind) is list}
    known = ["--help", *map(option, fields), *(option(f"no_{name}") for name in switches)]
    words: list[str] = []
    gathered = words
    for word in given:
        name, equals, value = word.removeprefix("--").partition("=")
        flag = option(name)
        if word.startswith("--") and flag not in known and not flag.startswith("--tyro-"):
            near = nearest(flag, known)
            raise SystemExit(f"unknown flag {flag}{f'{near} List' if near else '; list'} all with --help")
        if not word.startswith("--"):
            gathered.append(word)  # a value of the flag before it
        elif flag in lists:
            gathered = lists[flag]
            gathered += [value] if equals else []
        else:
            gathered = words
            words.append(_switch(word, switches))
    return words + [word for flag, values in lists.items() if values for word in (flag, *values)]


def given(words: Iterable[str]) -> dict[str, str]:
    """Return the text of each flag of a command line, by its field's name."""
    found, name = {}, ""
    for word in words:
        flag, _, value = word.partition("=")
        if flag.startswith("--"):
            name = flag[2:].replace("-", "_")
            found[name] = value
        elif name:
            found[name] = word
    return found


def first_paragraph(told: str) -> str:
    """Return tyro's text between the title and the first rule of its box, as one line."""
    words: list[str] = []
    for line in told.splitlines()[1:]:
        inside = line.strip("│╭╮╰╯ ")
        if inside.strip("─-"):
            words.append(inside)
        elif words:
            break
    return " ".join(words) or told


def _switch(flag: str, switches: Collection[str]) -> str:
    name, equals, value = flag.removeprefix("--").partition("=")
    if not flag.startswith("--") or not equals or name.replace("-", "_") not in switches:
        return flag
    if value.lower() not in ("true", "false"):
        raise SystemExit(f"--{name} takes true or false, not {value!r}")
    return f"--{name}" if value.lower() == "true" else f"--no-{name}"
