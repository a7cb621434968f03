"""mosaic completion: shells ask the program itself for the candidates at the cursor."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mosaic.contract.errors import MosaicError

BASH = """\
# Put this into ~/.bashrc:  source <(mosaic completion bash)
_mosaic() {
    local IFS=$'\\n'
    COMPREPLY=($(mosaic completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace; fi
}
complete -o default -F _mosaic mosaic
"""
ZSH = """\
#compdef mosaic
# Put this into ~/.zshrc, after compinit:  source <(mosaic completion zsh)
_mosaic() {
    local -a found
    found=("${(@f)$(mosaic completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -z ${found[1]} ]]; then _files; return; fi
    if [[ ${#found} -eq 1 && ${found[1]} == *= ]]; then compadd -S '' -a found; else compadd -a found; fi
}
compdef _mosaic mosaic
"""
FISH = """\
# Put this into ~/.config/fish/completions/mosaic.fish:  mosaic completion fish > that file
function __mosaic_words
    set -l before (commandline -opc)
    mosaic completion words -- $before[2..-1] (commandline -ct) 2>/dev/null
end
complete -c mosaic -a '(__mosaic_words)'
"""
SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
WORDS = "words"


def add_to(commands: Any) -> None:
    """Declare the command."""
    one = commands.add_parser("completion", help="print a shell's completion: source <(mosaic completion bash)")
    one.add_argument("shell", choices=[*SHELLS, WORDS], metavar="SHELL", help=f"{', '.join(SHELLS)}")
    one.add_argument("words", nargs="*", metavar="WORD", help="(for the shells) the words so far, the unfinished last")
    one.set_defaults(command=complete)


def complete(args: argparse.Namespace) -> int:
    """Print a shell's script, or the candidates for the last of some words, one per line."""
    if args.shell != WORDS:
        print(SHELLS[args.shell], end="")
        return 0
    try:
        for word in candidates(args.parser, args.words or [""]):
            print(word)
    except MosaicError:
        pass  # no daemon, no worker: nothing to offer, and a message would disturb the shell's line
    return 0


def candidates(top: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Return the candidates for the last word, given those before it."""
    *before, last = words
    parser, rest = _descend(top, before)
    options = {option: action for action in parser._actions for option in action.option_strings}
    asked = options.get(rest[-1]) if rest else None
    if asked is not None and asked.nargs != 0:
        return _beginning(last, _values(asked, rest))
    if last.startswith("-"):
        return _beginning(last, [option for option in options if option.startswith("--")])
    position = _position(parser, options, rest)
    return _beginning(last, _values(position, rest)) if position is not None else []


def _descend(top: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """Return the parser of the named command, and the words after its name."""
    for index, word in enumerate(words):
        for action in top._actions:
            if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                return action.choices[word], list(words[index + 1 :])
    return top, list(words)


def _position(
    parser: argparse.ArgumentParser, options: dict[str, argparse.Action], words: Sequence[str]
) -> argparse.Action | None:
    """Return the next positional argument."""
    given = 0
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in options:
            skip = options[word].nargs != 0
        elif not word.startswith("-"):
            given += 1
    places = [action for action in parser._actions if not action.option_strings]
    if given < len(places):
        return places[given]
    return places[-1] if places and places[-1].nargs in ("+", "*") else None


def _values(action: argparse.Action, words: Sequence[str]) -> Iterable[str]:
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    found: list[str] = []
    for name in metavar.split("|"):
        if name in SOURCES:
            found += SOURCES[name](words)
    return found


def _beginning(last: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(last)]


def _algos(words: Sequence[str]) -> list[str]:
    from mosaic.contract.workers import discover_workers

    return [name for worker in discover_workers()[0].values() for name in worker.schema()]


def _envs(words: Sequence[str]) -> list[str]:
    from mosaic import catalog

    return list(catalog.ids())


def _families(words: Sequence[str]) -> list[str]:
    from mosaic import catalog

    return [*catalog.FAMILIES, *(group.name for family in catalog.FAMILIES.values() for group in family.groups)]


def _runs(words: Sequence[str]) -> list[str]:
    from mosaic.commands.connection import connect
    from mosaic.commands.naming import LATEST

    with connect() as client:
        return [LATEST, *(run.run_id for run in client.list_runs(page_size=100).runs)]


def _states(words: Sequence[str]) -> list[str]:
    from mosaic.commands.inspect.runs import GROUPS, STATES

    return [*STATES, *GROUPS]


def _settings(words: Sequence[str]) -> list[str]:
    """Return the parameters of the named algorithm."""
    from mosaic.contract.workers import discover_workers

    for worker in discover_workers()[0].values():
        schema = worker.schema()
        for word in words:
            if word in schema:
                return [f"{field['name']}=" for field in schema[word]["fields"]]
    return []


SOURCES: dict[str, Callable[[Sequence[str]], list[str]]] = {
    "ALGO": _algos,
    "ENV": _envs,
    "FAMILY": _families,
    "RUN": _runs,
    "STATE": _states,
    "KEY=VALUE": _settings,
}
"""the candidates for an argument, by its metavar"""
