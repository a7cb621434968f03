"""Names that a person typed, as opposed to names that a file contains: only typed ones are imported or run.

Typed names are in the stored submission of a run (`config-<RUN>.json`) or in the arguments of this call.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from mosaic.contract.errors import ConfigError, shown
from mosaic.contract.fields import NOTE_BYTES, read_object
from mosaic.contract.paths import RunPaths, resolve_home

CURRICULA = ("curriculum_schedule", "curriculum")


def imported_by(env_id: str) -> str:
    """Return the module whose import makes this environment, "" if it needs none."""
    return env_id.rpartition(":")[0]


def typed_for(path: Path, home: Path | None = None) -> frozenset[str]:
    """Return the algorithm and environments that the run of a file was submitted with; none for a file of no run."""
    payload = submitted_for(path, home)
    algo, extras = payload.get("algo"), _inner(payload, "extras")
    named = environments({**_inner(extras, "algo_params"), **extras, **payload})
    return frozenset([*([algo] if isinstance(algo, str) else []), *named])


def submitted_for(path: Path, home: Path | None = None) -> dict[str, Any]:
    """Return the config that the run of a file was submitted with; {} for a file of no run of this home."""
    runs, given = (resolve_home() if home is None else home) / "var" / "trainer" / "runs", os.path.abspath(path)
    # by its name here, also if the home lies behind a link
    root = runs.resolve() if Path(given).is_relative_to(runs.resolve()) else os.path.abspath(runs)
    try:
        inside = Path(given).relative_to(root)
        payload = read_object(RunPaths(inside.parts[0], home).config_file, "config", NOTE_BYTES)
    except (ValueError, IndexError):  # FieldError is one: no such file
        return {}
    for part in ("metadata", "worker", "config"):
        payload = _inner(payload, part) or payload
    return payload


def without_code(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return an imported run's payload without the fields that would run code nobody here typed."""
    plain = copy.deepcopy(dict(payload)) | ({"environment": {}} if payload.get("environment") else {})
    worker = _inner(_inner(plain, "metadata"), "worker")
    for name in ("script", "module", "arguments"):
        worker.pop(name, None)
    config = _inner(worker, "config")
    extras = _inner(config, "extras")
    if not str(config.get("algo") or "").isidentifier():
        config.pop("algo", None)
    extras.pop("python", None)
    for holder in (config, extras, _inner(extras, "algo_params")):
        if imported_by(str(holder.get("env_id") or "")):
            del holder["env_id"]
        for name in CURRICULA:
            if any(map(imported_by, stages(holder.get(name)))):
                del holder[name]
    return plain


def _inner(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def environments(args: Mapping[str, Any]) -> Iterator[str]:
    """Yield every environment that arguments name, those of a curriculum included."""
    if isinstance(env_id := args.get("env_id"), str):
        yield env_id
    for name in CURRICULA:
        yield from stages(args.get(name))


def stages(curriculum: object) -> Iterator[str]:
    """Yield the environments of a curriculum, given as JSON or as its text."""
    if isinstance(curriculum, str) and curriculum.strip():
        try:
            curriculum = json.loads(curriculum)
        except (ValueError, RecursionError):  # its reader refuses it
            return
    entries = curriculum.get("tasks") if isinstance(curriculum, Mapping) else curriculum
    for entry in entries if isinstance(entries, list | tuple) else ():
        env_id = entry.get("env_id") if isinstance(entry, Mapping) else entry
        if isinstance(env_id, str):
            yield env_id


def untyped(saved: Mapping[str, Any], given: Mapping[str, Any], typed: Collection[str] = ()) -> str:
    """Return the first environment of a file's arguments that would import an untyped module, or "".

    `given`, the arguments of this call, overrides `saved`: naming an environment outside of a saved curriculum drops
    that curriculum.
    """
    left = (
        []
        if any(given.get(name) for name in CURRICULA)
        else [one for name in CURRICULA for one in stages(saved.get(name))]
    )
    chosen = given.get("env_id")
    if chosen and chosen not in left:
        left = []
    named = {*typed, *environments(given)}
    first = [] if chosen else [str(saved.get("env_id") or "")]
    return next((one for one in [*first, *left] if imported_by(one) and one not in named), "")


def refuse_untyped(
    place: str, saved: Mapping[str, Any], given: Mapping[str, Any], typed: Collection[str] = (), *, alone: bool = False
) -> None:
    """Refuse a file whose arguments would import an untyped module; an algorithm that runs `alone` has flags."""
    if not (env_id := untyped(saved, given, typed)):
        return
    is_stage = env_id != saved.get("env_id") or given.get("env_id")
    name, value = ("curriculum_schedule", "… with this stage") if is_stage else ("env_id", env_id)
    setting = f"--{name.replace('_', '-')}={value}" if alone else f"--set {name}={value}"
    raise ConfigError(
        f"{place} names the environment {shown(env_id, 300)}, which would import {imported_by(env_id)!r}; "
        f"add {setting} if you trust it"
    )


def trusted_algo(place: str, algo: object, known: Collection[str], typed: Collection[str] = ()) -> str | None:
    """Return the algorithm that a file names; raise ConfigError for an untyped script or module."""
    if algo is None or not isinstance(algo, str) or algo == "":
        return None
    name = algo.removeprefix("cleanrl.")
    if name in known or algo in typed:
        return name if name in known else algo
    raise ConfigError(
        f"{place} names the algorithm {shown(algo, 300)}, which is not built in; add --set algo={algo} if you trust it"
    )
