"""Scripts of phases as files: their allowed locations, and their comment headers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mosaic.contract.errors import ConfigError, nearest, shown

# `# @description: …` among the comments at a script's top.
_ENTRY = re.compile(r"#\s*@(\w+)\s*:?\s*(.*?)\s*$")


@dataclass(frozen=True)
class Script:
    """A script and its header; a missing field is "" or None."""

    path: Path
    shipped: bool = False
    """shipped with a worker"""
    description: str = ""
    env_family: str = ""
    phases: int | None = None
    total_timesteps: int | None = None
    author: str = ""
    algo: str = ""
    """of the base config, unless a submission has one; so is `env_id`"""
    env_id: str = ""


def read_script(path: Path, *, shipped: bool = False) -> Script:
    """Return a script with the fields of its comment header; unknown lines are ignored."""
    found: dict[str, str] = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                break
            if entry := _ENTRY.match(line):
                found.setdefault(entry[1], entry[2])
    return Script(
        path,
        shipped,
        description=found.get("description", ""),
        env_family=found.get("env_family", ""),
        phases=_count(found.get("phases")),
        total_timesteps=_count(found.get("total_timesteps")),
        author=found.get("author", ""),
        algo=found.get("algo", ""),
        env_id=found.get("env_id", ""),
    )


def find_script(text: str, home: Path, command: Sequence[str]) -> Script:
    """Return a script inside `home` or shipped with the worker of this command; raise ConfigError for any other."""
    shipped = shipped_folders(command)
    for folder in (home.resolve(), *shipped):
        try:
            path = (folder / text).resolve()
            if path.is_file() and path.is_relative_to(folder):
                return read_script(path, shipped=folder in shipped)
        except (OSError, ValueError, RuntimeError):  # too long, a zero byte, a loop of links
            continue
    names = [path.name for folder in (home, home / "scripts", *shipped) for path in folder.glob("*.sh")]
    raise ConfigError(
        f"script {shown(text)} is not there; it lies in {home} or in the worker's scripts folder"
        f"{nearest(Path(text).name[:200], names)}"
    )


def list_scripts(home: Path, command: Sequence[str]) -> list[Script]:
    """Return the scripts in `home` and its folder `scripts`, then those shipped with the worker."""
    own = [read_script(path) for folder in (home, home / "scripts") for path in _files(folder)]
    return own + [read_script(path, shipped=True) for folder in shipped_folders(command) for path in _files(folder)]


def shipped_folders(command: Sequence[str]) -> list[Path]:
    """Return the `scripts` folder of the package in a worker's command."""
    from importlib.util import find_spec

    found = []
    for part in command:
        root = part.split(".")[0]
        if not root.isidentifier():
            continue
        spec = find_spec(root)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            if (Path(place) / "scripts").is_dir():
                found.append((Path(place) / "scripts").resolve())
    return found


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.sh") if path.is_file())


def _count(text: str | None) -> int | None:
    plain = (text or "").replace(",", "").replace("_", "")
    return int(plain) if plain.isdecimal() else None
