"""How a worker's shell writes an algorithm's flags and the algorithm reads them; switches come in two dialects."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mosaic.wire.errors import nearest


def option(name: str) -> str:
    """A field's name as its flag."""
    return "--" + name.replace("_", "-")


def in_one_dialect(given: Iterable[str], names: Iterable[str], switches: Collection[str]) -> list[str]:
    """`--x=true` and `--x=false` as tyro's `--x` and `--no-x`, the rest as it came; a flag of no name is refused."""
    known = ["--help", *map(option, names), *(option(f"no_{name}") for name in switches)]
    words = []
    for word in given:
        flag = option(word.removeprefix("--").partition("=")[0])
        if word.startswith("--") and flag not in known and not flag.startswith("--tyro-"):
            near = nearest(flag, known)
            raise SystemExit(f"unknown flag {flag}{f'{near} List' if near else '; list'} all with --help")
        words.append(_switch(word, switches))
    return words


def first_paragraph(told: str) -> str:
    """What tyro says between the title and the first rule of its box, as one line."""
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
