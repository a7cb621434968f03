"""provenance.json, an entry for each attempt of a run: its validation, its text for people, its comparison."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic.contract.fields import ATTEMPTS, CONFIG, CONFIG_BYTES, DIFF_BYTES, PROVENANCE_BYTES, read_object
from mosaic.contract.kinds import COUNT, DIGEST, FLAG, FieldError, Table, list_of, map_of, number, text, whole
from mosaic.contract.paths import RunPaths, write_atomic
from mosaic.contract.secrets import mask_text

FORMAT = 1
# The packages that are shown; the file has all.
NAMED = ("torch", "jax", "flax", "numpy", "gymnasium", "envpool", "ale-py", "mujoco", "minigrid")
NAMED_AT_MOST = 10  # packages that differ
_COMMAND_CHARS = 4_000  # of the summary, which is part of an event

_GIT = Table(
    {
        **{part: text() for part in ("root", "branch", "remote")},
        "commit": text(64),
        "dirty": FLAG,
        "diff": DIGEST,
        "cut": FLAG,
        "untracked": list_of(text(), 100),
    }
)
_MADE_BY = Table({**{part: text() for part in ("path", "copy", "module", "version")}, "sha256": DIGEST, "git": _GIT})
PROVENANCE = Table(
    {
        "format": whole(1, 1_000_000),
        "diffs": map_of(text(DIFF_BYTES + 100), 3 * ATTEMPTS, DIGEST),
        "attempts": list_of(
            Table(
                {
                    "started_at": number(0, 1e12),
                    **{part: text(300) for part in ("mode", "phase")},
                    "command": list_of(text(CONFIG_BYTES)),
                    "cwd": text(),
                    "config": CONFIG,
                    "config_digest": DIGEST,
                    **dict.fromkeys(("mosaic", "script", "environment"), _MADE_BY),
                    "python": Table(dict.fromkeys(("version", "implementation", "executable"), text())),
                    "packages": map_of(text(300)),
                    "machine": Table(
                        {
                            **{part: text() for part in ("platform", "machine", "host", "cpu", "driver")},
                            "cores": COUNT,
                            "gpus": list_of(text(300), 1_000),
                        }
                    ),
                },
                required=("started_at",),
            ),
            ATTEMPTS,
        ),
    },
    required=("format", "attempts"),
)


def read_provenance(paths: RunPaths) -> dict[str, Any] | None:
    """Return the document of a run, None if it has none; raise FieldError for a damaged file."""
    if not os.path.lexists(paths.provenance):
        return None
    found = read_object(paths.provenance, "provenance.json", PROVENANCE_BYTES)
    PROVENANCE.check(found)
    if found["format"] > FORMAT:
        raise FieldError(f"provenance.json: format {found['format']} is newer than {FORMAT}; update mosaic-rl")
    if not found["attempts"]:
        raise FieldError("provenance.json: attempts: one or more are needed")
    return found


def add_attempt(paths: RunPaths, entry: Mapping[str, Any], diffs: Mapping[str, str]) -> str:
    """Append an attempt's entry; return a warning if an earlier file cannot be read and is set aside."""
    warning = ""
    try:
        known = read_provenance(paths)
    except FieldError as error:
        aside = paths.provenance.with_name(f"{paths.provenance.name}.{int(time.time())}.damaged")
        os.replace(paths.provenance, aside)
        known, warning = None, f"{error}; it is kept as {aside.name}"
    attempts = [*(known or {}).get("attempts", ()), dict(entry)]
    if len(attempts) > ATTEMPTS:  # the first and the newest
        attempts = [attempts[0], *attempts[1 - ATTEMPTS :]]
    texts = {**((known or {}).get("diffs") or {}), **diffs}
    while True:
        used = {digest for one in attempts for digest in _diffs_of(one)}
        document = {"format": FORMAT, "attempts": attempts, "diffs": {k: v for k, v in texts.items() if k in used}}
        data = json.dumps(document, indent=1)
        if len(data.encode()) <= PROVENANCE_BYTES or len(attempts) < 3:
            break
        attempts = [attempts[0], *attempts[2:]]
    write_atomic(paths.provenance, data)
    return warning


def copy_script(path: Path, paths: RunPaths, secrets: Sequence[str] = ()) -> dict[str, str]:
    """Copy a user's script into the run folder, known secrets masked; return its path, its digest and its copy."""
    with path.open("rb") as file:
        data = file.read(DIFF_BYTES + 1)
    digest = hashlib.sha256(data).hexdigest()
    about = {"path": str(path), "sha256": digest}
    if len(data) > DIFF_BYTES:
        return {"path": str(path)}  # not a script of the user
    copy = paths.scripts / f"{path.stem[:100]}-{digest[:8]}{path.suffix}"
    write_atomic(copy, mask_text(data.decode("utf-8", "replace"), secrets))
    return about | {"copy": copy.relative_to(paths.folder).as_posix()}


def newest(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of the last attempt."""
    return dict(document["attempts"][-1])


def summary(entry: Mapping[str, Any], attempts: int) -> dict[str, Any]:
    """Return the manifest's part: without packages, config and changes, which are long."""
    short = {key: value for key, value in entry.items() if key not in ("packages", "config", "command")}
    command = shlex.join(entry["command"])
    return {"relative_path": "provenance.json", "attempts": attempts, "command": command[:_COMMAND_CHARS], **short}


def facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the last attempt as pairs of a name and a text, a line each."""
    entry = newest(document)
    count, packages, python = len(document["attempts"]), entry.get("packages") or {}, entry.get("python") or {}
    named = [f"{name} {packages[name]}" for name in NAMED if name in packages]
    rest = f"{len(packages) - len(named):,} more" if len(packages) > len(named) else ""
    lines = {
        "command": _cut(shlex.join(entry.get("command") or ()), 300),
        "config": f"SHA-256 {str(entry['config_digest'])[:12]}" if entry.get("config_digest") else "",
        **{name: _made_by(entry.get(name)) for name in ("mosaic", "script", "environment")},
        "python": " ".join(str(python[name]) for name in ("implementation", "version", "executable") if name in python),
        "packages": ", ".join(filter(None, [*named, rest])),
        "machine": _machine(entry.get("machine") or {}),
        "attempts": f"{count}, this is the last" if count > 1 else "",
    }
    return [(name, line) for name, line in lines.items() if line]


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the versions and machine parts that differ between two attempts, a line each."""
    lines = []
    for name in ("mosaic", "environment"):
        then, here = before.get(name) or {}, now.get(name) or {}
        if _version(then) != _version(here):
            lines.append(f"{name}: {_version(then)} → {_version(here)}")
    old, new = before.get("python") or {}, now.get("python") or {}
    if (was := old.get("version")) != (is_now := new.get("version")):
        lines.append(f"python: {was} → {is_now}")
    packages = [dict(entry.get("packages") or {}) for entry in (before, now)]
    changed = [name for name in sorted(packages[0].keys() | packages[1].keys()) if _differs(name, *packages)]
    changed.sort(key=lambda name: name not in NAMED)
    shown = [f"{name} {packages[0].get(name, 'none')} → {packages[1].get(name, 'none')}" for name in changed]
    if shown:
        more = f" and {len(shown) - NAMED_AT_MOST} more" if len(shown) > NAMED_AT_MOST else ""
        lines.append(f"packages: {', '.join(shown[:NAMED_AT_MOST])}{more}")
    machines = [entry.get("machine") or {} for entry in (before, now)]
    for name in ("machine", "cpu", "gpus", "driver"):
        if machines[0].get(name) != machines[1].get(name):
            lines.append(f"{name}: {_plain(machines[0].get(name))} → {_plain(machines[1].get(name))}")
    return lines


def _differs(name: str, before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    return name != "mosaic-rl" and before.get(name) != now.get(name)


def _diffs_of(entry: Mapping[str, Any]) -> list[str]:
    parts = [(entry.get(name) or {}).get("git") or {} for name in ("mosaic", "script", "environment")]
    return [git["diff"] for git in parts if git.get("diff")]


def _made_by(part: Mapping[str, Any] | None) -> str:
    if not part:
        return ""
    git = part.get("git") or {}
    state = {True: "changed", False: "clean", None: "changes unknown"}[git.get("dirty")]
    state += f", diff {git['diff'][:12]}{', cut' if git.get('cut') else ''}" if git.get("diff") else ""
    commit = f"commit {git['commit'][:12]} ({state})" if git.get("commit") else ""
    names = (part.get("module") or part.get("path") or "", part.get("version") or "", commit)
    return " · ".join(filter(None, [*names, part.get("copy") or ""]))


def _version(part: Mapping[str, Any]) -> str:
    git = part.get("git") or {}
    changes = f" with changes {git['diff'][:12]}" if git.get("diff") else ""
    commit = f"commit {git['commit'][:12]}{changes}" if git.get("commit") else ""
    return " ".join(filter(None, (part.get("version"), commit))) or "unknown"


def _machine(machine: Mapping[str, Any]) -> str:
    cpu, cores, gpus = machine.get("cpu"), machine.get("cores"), machine.get("gpus") or ()
    driver = f"driver {machine['driver']}" if machine.get("driver") else ""
    parts = (machine.get("host"), machine.get("platform"), cpu and f"{cpu} × {cores}", ", ".join(gpus), driver)
    return " · ".join(filter(None, parts))


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value or "none")


def _cut(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[: most - 1]}…"
