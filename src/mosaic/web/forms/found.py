"""The saved checkpoints and policies below the home, with the content of their files (read only)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mosaic.contract.checkpoints import PINNED, find_all, saved_state
from mosaic.contract.errors import ConfigError, shown
from mosaic.contract.fields import SIDECAR_BYTES, parse_object, read_object
from mosaic.contract.kinds import FieldError
from mosaic.contract.paths import RunPaths, check_run_id, write_atomic
from mosaic.contract.sidecars import checked
from mosaic.contract.typed import imported_by, typed_for

POLICY = ".cleanrl_model"
UPLOADS = Path("var", "trainer", "uploads")
# The largest policies here are Atari networks of some 10 MB; a replay memory does not belong in a policy file.
MOST_UPLOAD_BYTES = 200_000_000


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint folder or a policy file; a fact that its files lack is "" or None."""

    path: Path
    run_id: str
    algo: str = ""
    env_id: str = ""
    seed: int | None = None
    step: int | None = None
    mean_return: float | None = None
    saved_at: float = 0.0
    size: int = 0
    args: Mapping[str, Any] | None = None
    exact: bool = True
    pinned: bool = False
    best: bool = False
    fastlane: Mapping[str, Any] | None = None
    source: str = ""
    """the source of the facts: sidecar, config.json or config-<RUN>.json"""


def find_checkpoints(home: Path, run_id: str = "") -> list[Found]:
    """Return every checkpoint below the runs folder, or one run's, the newest first."""
    found = [
        one
        for folder in _run_folders(home, run_id)
        for path in find_all(folder / "checkpoints")
        if (one := read_checkpoint(path, folder.name)) is not None
    ]
    return sorted(found, key=lambda one: -one.saved_at)


def read_checkpoint(path: Path, run_id: str) -> Found | None:
    """Return the facts of a checkpoint's document; None for one that is damaged or just removed."""
    state = saved_state(path)
    if not state:
        return None
    try:
        size = sum(file.stat().st_size for file in path.iterdir())
        for segment in (state.get("replay") or {}).get("segments", ()):
            size += (path.parent / "replay" / segment["file"]).stat().st_size
    except OSError:
        size = 0
    args = _object(state.get("args"))
    return Found(
        path,
        run_id,
        algo=str(state.get("algo") or ""),
        env_id=str(args.get("env_id") or state.get("env_id") or ""),
        seed=_whole(args.get("seed")),
        step=_whole(state.get("step")),
        mean_return=_number(state.get("score")),
        saved_at=_number(state.get("saved_at")) or 0.0,
        size=size,
        args=args,
        exact=bool(state.get("exact", True)),
        pinned=(path / PINNED).exists(),
    )


def find_policies(home: Path, run_id: str = "") -> list[Found]:
    """Return every policy below the runs folder, and the uploaded ones, the newest first."""
    paths = [
        (path, folder.name) for folder in _run_folders(home, run_id) for path in (folder / "runs").glob(f"*/*{POLICY}")
    ]
    if not run_id:
        paths += [(path, "") for path in (home / UPLOADS).glob(f"*{POLICY}")]
    found = [one for path, owner in paths if (one := _seen(path, owner, home)) is not None]
    return sorted(found, key=lambda one: -one.saved_at)


def read_policy(path: Path, home: Path) -> Found:
    """Return the facts of a policy: from its sidecar, else a sibling config.json, else config-<RUN>.json."""
    run_id = _run_of(path, home)
    stat = path.stat()
    base = Found(path, run_id, saved_at=stat.st_mtime, size=stat.st_size, best=path.name.endswith(f".best{POLICY}"))
    for file in _tellers(path, run_id, home):
        base = _filled(base, _document(file), file.name)
    return base


def refuse_code(one: Found, home: Path, algorithms: Collection[str]) -> None:
    """Raise ConfigError for a policy whose files name an environment or algorithm with code that no user typed."""
    place, typed = f"policy_path: {one.source or one.path.name}", typed_for(one.path, home)
    remedy = "turn on “Override environment” and enter it if you trust it"
    if (module := imported_by(one.env_id)) and one.env_id not in typed:
        named = f"{place} names the environment {shown(one.env_id, 200)}"
        raise ConfigError(f"{named}, which would import {module!r}; {remedy}")
    if one.algo and one.algo not in {*algorithms, *typed}:
        raise ConfigError(f"{place} names the algorithm {shown(one.algo, 200)}, which is not built in; {remedy}")


def inside_home(text: str, home: Path) -> Path:
    """Return the named file or folder, relative to the home or absolute; ConfigError if it lies outside."""
    root = home.resolve()
    try:
        path = (root / text.strip()).resolve()
        there = bool(text.strip()) and path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"path {shown(text)} is refused: {error}") from None
    if not path.is_relative_to(root):
        raise ConfigError(f"path {shown(text, 200)} lies outside {root}; give one inside it, or upload the file")
    if not there:
        raise ConfigError(f"path {shown(text, 200)} is not there; it counts from {root}")
    return path


def policy_inside(text: str, home: Path) -> Path:
    """Return the policy file that a user names."""
    path = inside_home(text, home)
    if not path.is_file():
        raise ConfigError(f"{shown(text, 200)} is no file; give a policy file, such as one that ends in {POLICY}")
    return path


def safe_name(name: str) -> str:
    """Return a safe name for an uploaded file: letters, digits, `.`, `-` and `_`, with the policies' ending."""
    base = name.replace("\\", "/").rpartition("/")[2].removesuffix(".json").removesuffix(POLICY)
    kept = re.sub(r"[^A-Za-z0-9._-]+", "_", base).strip("._")[:80]
    return f"{kept or 'policy'}{POLICY}"


def keep_upload(name: str, data: bytes, home: Path) -> Path:
    """Store an uploaded policy, or its sidecar (`….json`); a policy never overwrites another file."""
    if len(data) > MOST_UPLOAD_BYTES:
        raise ConfigError(f"{shown(name)} has {len(data):,} bytes; a policy has at most {MOST_UPLOAD_BYTES:,}")
    folder = home / UPLOADS
    if name.lower().endswith(".json"):
        target = folder / f"{safe_name(name)}.json"
        write_atomic(target, _checked_sidecar(name, data))
        return target
    target, number = folder / safe_name(name), 1
    while target.exists() and target.read_bytes() != data:
        number += 1
        target = folder / safe_name(f"{safe_name(name).removesuffix(POLICY)}-{number}")
    write_atomic(target, data)
    return target


def _checked_sidecar(name: str, data: bytes) -> bytes:
    what = f"{shown(name)} is not a sidecar"
    checked(parse_object(data, what, SIDECAR_BYTES, wide=True), what)
    return data


def _run_folders(home: Path, run_id: str) -> Iterable[Path]:
    if run_id:
        return [RunPaths(run_id, home).folder]
    runs = home / "var" / "trainer" / "runs"
    return sorted(path for path in runs.iterdir() if path.is_dir()) if runs.is_dir() else []


def _seen(path: Path, run_id: str, home: Path) -> Found | None:
    """Return a policy of the list; None for a file just removed, or a link that leads outside."""
    try:
        if not path.resolve().is_relative_to(home.resolve()):
            return None
        return replace(read_policy(path, home), run_id=run_id)
    except OSError:
        return None


def _tellers(path: Path, run_id: str, home: Path) -> Iterator[Path]:
    yield path.with_name(f"{path.name}.json")
    yield path.with_name("config.json")
    if run_id:
        yield RunPaths(run_id, home).config_file


def _run_of(path: Path, home: Path) -> str:
    """Return the run whose folder holds the file; "" for none."""
    try:
        return check_run_id(path.resolve().relative_to((home / "var" / "trainer" / "runs").resolve()).parts[0])
    except (ValueError, IndexError):
        return ""


def _filled(base: Found, document: Mapping[str, Any], source: str) -> Found:
    """Fill the missing facts from one more document: a sidecar, a flat config, or a complete payload."""
    if not document:
        return base
    for part in ("metadata", "worker", "config"):
        document = _object(document.get(part)) or document
    args, extras = _object(document.get("args")), _object(document.get("extras"))
    lane = {
        name: extras[key] for name, keys in _LANE.items() for key in reversed(keys) if extras.get(key) not in (None, "")
    }
    return replace(
        base,
        algo=base.algo or _text(document.get("algo")),
        env_id=base.env_id or _text(document.get("env_id") or args.get("env_id")),
        seed=base.seed if base.seed is not None else _whole(document.get("seed", args.get("seed"))),
        step=base.step if base.step is not None else _whole(document.get("step")),
        mean_return=base.mean_return if base.mean_return is not None else _number(document.get("training_return")),
        args=base.args or args or None,
        fastlane=base.fastlane or lane or None,
        source=base.source or source,
    )


_LANE = {
    "fastlane_mode": ("fastlane_video_mode", "video_mode"),
    "fastlane_slot": ("fastlane_slot",),
    "fastlane_grid_limit": ("fastlane_grid_limit", "grid_limit"),
}


def _document(path: Path) -> Mapping[str, Any]:
    try:
        return read_object(path, path.name, SIDECAR_BYTES, wide=True)
    except FieldError:
        return {}


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
