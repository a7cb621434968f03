"""The printed lists of the `mosaic` command: algorithms, their parameters, families, environments."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mosaic import catalog
from mosaic.catalog import Environment, Family
from mosaic.contract.paths import resolve_home
from mosaic.contract.scripts import Script

# A list for a file or another program is not cut to a terminal's width.
PIPE_WIDTH = 500


def show_algos(algos: Mapping[str, Mapping[str, Any]]) -> None:
    """Print each algorithm with the action spaces it drives."""
    # A third-party worker may describe its algorithms in less detail than ours.
    rows = [(name, ", ".join(entry.get("action_spaces", ())), entry.get("doc", "")) for name, entry in algos.items()]
    show(("algorithm", "actions", "what it is"), rows)
    hint("Parameters of one: mosaic algos ppo    Train: mosaic train ppo CartPole-v1")


def show_algo(name: str, entry: Mapping[str, Any]) -> None:
    """Print an algorithm's parameters."""
    hint(f"{name}: {entry.get('doc', '')}")
    rows = [
        (field["name"], kind(field), value(field.get("default")), field.get("help", ""))
        for field in entry.get("fields", ())
    ]
    show(("parameter", "type", "default", "what it does"), rows)
    hint(f"Change one: mosaic train {name} ENV --set {next((row[0] for row in rows if row[0] == 'gamma'), 'seed')}=…")


def show_scripts(scripts: Iterable[Script]) -> None:
    """Print each script with its header's fields; shipped ones by the name that suffices to start them."""
    rows = [
        (
            script.path.name if script.shipped else _shortest(script.path),
            script.env_family,
            "" if script.phases is None else str(script.phases),
            "" if script.total_timesteps is None else f"{script.total_timesteps:,}",
            script.author,
            script.description,
        )
        for script in scripts
    ]
    show(("script", "family", "phases", "steps", "author", "what it does"), rows)
    hint("Run one: mosaic script curriculum_doorkey.sh --follow    Write one: docs/scripts.md")


def show_families(documents: Iterable[Mapping[str, Any]]) -> None:
    """Print each family of environments and its groups, with the command that installs missing packages."""
    rows = []
    for family in documents:
        for indent, entry in [("", family), *(("  ", group) for group in family["groups"])]:
            rows.append((indent + entry["name"], str(entry["environments"]), _install_line(entry), entry["doc"]))
    show(("family", "ids", "installed?", "what it is"), rows)
    hint("Ids of one: mosaic envs gymnasium")


def show_environments(documents: Iterable[Mapping[str, Any]]) -> None:
    """Print environment ids with their spaces, and the command that installs their packages."""
    rows = [
        (
            entry["env_id"],
            entry["action_space"] or "?",
            entry["observation_space"] or "?",
            _install_line(entry),
            entry["doc"],
        )
        for entry in documents
    ]
    show(("environment", "actions", "observation", "installed?", "what it is"), rows)


def show_checks(checks: Iterable[Mapping[str, Any]]) -> None:
    """Print the findings of `mosaic doctor`, and the advice."""
    marks = {"ok": "ok", "note": "note", "trouble": "TROUBLE"}
    rows = [(check["name"], marks[check["state"]], check["text"], check["advice"]) for check in checks]
    show(("check", "state", "what was found", "what to do"), rows)


def family_document(family: Family, within: str | None = None) -> dict[str, Any]:
    """Return a family, or a group of one, as JSON: `install` is the missing step, None if it is ready."""
    ids = catalog.ids(family.name) if within is None else catalog.ids(within, family.name)
    first = catalog.find(ids[0]) if ids else None
    return {
        "name": family.name,
        "label": family.label,
        "doc": family.doc,
        "environments": len(ids),
        "extra": family.extra,
        "system": family.system,
        "install": catalog.missing_to_train(first) if first else None,
        "groups": [family_document(group, family.name) for group in family.groups],
    }


def environment_document(environment: Environment) -> dict[str, Any]:
    """Return an environment as JSON."""
    return {
        "env_id": environment.env_id,
        "family": environment.family,
        "action_space": environment.action_space,
        "observation_space": environment.observation_space,
        "backends": list(environment.backends),
        "doc": environment.doc,
        "install": catalog.missing_to_train(environment),
    }


def kind(field: Mapping[str, Any]) -> str:
    choices = field.get("choices")
    return (
        " | ".join(map(str, choices))
        if choices
        else str(field.get("type", "")) + ("?" if field.get("optional") else "")
    )


def value(default: Any) -> str:
    return "" if default is None else str(default)


def show(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print rows under a header: folded to a terminal's width, one line each elsewhere."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for number, title in enumerate(header):
        table.add_column(title, no_wrap=number == 0, style="cyan" if number == 0 else None, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def hint(text: str) -> None:
    """Print a line around a list, only on a terminal."""
    console = Console()
    if console.is_terminal:
        console.print(text, style="dim", markup=False, highlight=False)


def _install_line(entry: Mapping[str, Any]) -> str:
    return (entry["install"] or "yes").rpartition("run: ")[2]


def _shortest(path: Path) -> str:
    home = resolve_home()
    return str(path.relative_to(home) if path.is_relative_to(home) else path)
