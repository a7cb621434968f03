"""Checkpoints as files: `checkpoints/<step>/` written beside and renamed, every file with its checksum; retention.

`state.json` holds a document and its own checksum, other files hold bytes. Segments in `checkpoints/replay/` are shared
between checkpoints. What the bytes mean is the algorithm side's matter.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from mosaic.wire.errors import ConfigError
from mosaic.wire.sidecars import read_sidecar

FORMAT = 1
KEPT = 2  # the newest ones; the best and the pinned stay besides
REPLAY = "replay"
Read = TypeVar("Read")
PINNED = "pinned"  # an empty file of this name in a checkpoint keeps it for ever


class CheckpointError(ConfigError):
    """A checkpoint that cannot be used, and why."""


class NewerFormatError(CheckpointError):
    """A checkpoint of a later version: falling back to an older one would lose training silently."""


def write_checkpoint(folder: Path, step: int, document: Mapping[str, Any], files: Mapping[str, bytes]) -> Path:
    """Save as `folder/<step>`; a crash at any moment leaves either nothing or all of it under that name."""
    final = folder / str(step)
    beside = folder / f".{step}.{os.getpid()}"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    sums = {name: _write_file(beside / name, data) for name, data in files.items()}
    about = {"format": FORMAT, "step": step, **document, "saved_at": _next_moment(folder), "files": sums}
    # the standard json module: orjson refuses the 128-bit numbers of numpy's generators
    body = json.dumps(about, indent=1).encode()
    _write_file(beside / "state.json", sealed(body))
    _sync(beside)
    if final.exists():  # the same step again, after a resumption from before it: the newer copy stands
        remove(final)
    os.replace(beside, final)
    _sync(folder)
    return final


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The document and the files, each checked; CheckpointError says what is wrong."""
    try:
        document = read_document(path)
        if document["format"] > FORMAT:
            raise NewerFormatError(
                f"checkpoint {path} has format {document['format']}, this version reads up to {FORMAT}: "
                "update mosaic-rl"
            )
        files = {name: (path / name).read_bytes() for name in document["files"]}
        for name, data in files.items():
            if digest(data) != document["files"][name]:
                raise CheckpointError(f"checkpoint {path}: {name} does not match its checksum")
        for segment in document.get(REPLAY, {}).get("segments", ()):
            if digest((path.parent / REPLAY / segment["file"]).read_bytes()) != segment["sha256"]:
                raise CheckpointError(
                    f"checkpoint {path}: replay segment {segment['file']} does not match its checksum"
                )
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: {error.filename} cannot be read: {error.strerror}") from error
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error
    return document, files


def write_segment(folder: Path, first: int, end: int, data: bytes) -> dict[str, Any]:
    """Add replay rows `first` up to `end`; the entry that a document lists.

    The content is part of the name: another continuation of the same run must not overwrite this one's past.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{first:012d}-{end:012d}-{digest(data)[:8]}.safetensors"
    entry = {"file": name, "first": first, "end": end, "sha256": _write_file(folder / name, data)}
    _sync(folder)
    return entry


def adopt_segments(source: Path, folder: Path, segments: list[dict[str, Any]]) -> None:
    """Link another run's segments into `folder`, or copy them where it lies on another disk."""
    folder.mkdir(parents=True, exist_ok=True)
    for segment in segments:
        if not (folder / segment["file"]).exists():
            _link(source / segment["file"], folder / segment["file"])


def mirror(source: Path, folder: Path) -> None:
    """Let `folder` have the checkpoints that `source` has, sharing their bytes where both lie on one disk."""
    kept = [path for path in find_all(source) if path.parent == source]
    for path in kept:
        beside, final = folder / f".{path.name}.{os.getpid()}", folder / path.name
        if _document(final) == _document(path):
            continue
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        for file in path.iterdir():
            _link(file, beside / file.name)
        if final.exists():
            remove(final)
        os.replace(beside, final)
        if segments := _segments(path):
            adopt_segments(source / REPLAY, folder / REPLAY, segments)
    for path in find_all(folder):
        if path.parent == folder and not (source / path.name).exists():
            remove(path)


def find_all(folder: Path) -> list[Path]:
    """Checkpoints in a `checkpoints/` folder, the last saved first; `<phase>/<step>` counts, other folders do not.

    The highest step is not always the last: a run that went on from an earlier checkpoint has left later ones behind.
    One that does not tell when it was saved, because it is damaged, comes first: whoever reads it says so.
    """
    if not folder.is_dir():
        return []
    found = [
        path for path in (*folder.glob("*/state.json"), *folder.glob("*/*/state.json")) if path.parent.name.isdigit()
    ]
    return sorted((path.parent for path in found), key=_age)


def checkpoints_of(source: Path) -> list[Path]:
    """The checkpoints that a checkpoint folder, a `checkpoints/` folder or a run folder stands for, newest first."""
    if (source / "state.json").exists():
        return [source]
    return find_all(source / "checkpoints" if (source / "checkpoints").is_dir() else source)


def newest(source: Path, read: Callable[[Path], Read], warn: Callable[[str], None]) -> Read:
    """What `read` makes of the newest checkpoint of `source` that can be read; those that cannot are told."""
    candidates = checkpoints_of(source)
    if not candidates:
        raise CheckpointError(f"there is no checkpoint in {source}")
    for path in candidates:
        try:
            return read(path)
        except NewerFormatError:
            raise
        except CheckpointError as error:
            if len(candidates) == 1:
                raise
            warn(f"{error}; falling back to the checkpoint before it")
    raise CheckpointError(f"none of the {len(candidates)} checkpoints in {source} can be read")


def curve_of(path: Path, document: Mapping[str, Any]) -> Path:
    """The rows that a checkpoint is of: its run may have been moved since, or keep its checkpoints elsewhere."""
    for run_folder in (path.parent.parent, path.parent.parent.parent):  # of `<step>` and of `<phase>/<step>`
        if (run_folder / "metrics.jsonl").exists():
            return run_folder / "metrics.jsonl"
    return Path(document.get("run_folder") or ".") / "metrics.jsonl"


def saved_state(source: Path) -> dict[str, Any]:
    """The document of the newest checkpoint of `source` whose document is whole; {} for none."""
    for path in checkpoints_of(source):
        if state := _document(path):
            return state
    return {}


def saved_args(source: Path) -> dict[str, Any]:
    """The arguments of the run that a checkpoint or a policy file is from; {} where that cannot be read."""
    if not source.is_file():
        return dict(saved_state(source).get("args") or {})
    try:
        args = read_sidecar(source).get("args") or {}  # of files of CleanRL's, people write it by hand
    except (OSError, ValueError):  # it is refused with its policy
        return {}
    return {name: value for name, value in args.items() if name != "curriculum_schedule"}  # a policy has it behind it


def prune(folder: Path, budget_bytes: int | None, step: int | None = None) -> None:
    """Delete all but the newest two, the best and the pinned; beyond the budget, the best and the older go too.

    `step` is the one just saved: later ones are of a future that a resumption from before them has left.
    """
    paths = [path for path in find_all(folder) if path.parent == folder]
    pinned = [path for path in paths if (path / PINNED).exists()]
    # those that cannot be read come last: they never push out one that can
    others = sorted((path for path in paths if path not in pinned), key=lambda path: not _document(path))
    current = [path for path in others if step is None or int(path.name) <= step]
    scored = [(score, path) for path in current if (score := _score(path)) is not None]
    best = [max(scored, key=lambda item: item[0])[1]] if scored else []
    keep = list(dict.fromkeys([*current[:KEPT], *best]))
    while budget_bytes is not None and len(keep) > 1 and _size(folder, [*pinned, *keep]) > budget_bytes:
        keep.pop()
    for path in others:
        if path not in keep:
            remove(path)
    for leftover in folder.glob(".*"):  # of a process that was killed while it wrote or removed one
        shutil.rmtree(leftover, ignore_errors=True)
    for leftover in (folder / REPLAY).glob(".*"):
        leftover.unlink()
    used = {segment["file"] for path in [*pinned, *keep] for segment in _segments(path)}
    for segment in (folder / REPLAY).glob("*.safetensors"):
        if segment.name not in used:
            segment.unlink()


def why_unwritten(error: OSError, folder: Path) -> str:
    """Why a checkpoint could not be written into this folder, and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk of {folder} is full ({error.strerror}): free space there, or start with a MOSAIC_HOME elsewhere"
        )
    return f"cannot write {folder}: {error.strerror}"


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def remove(path: Path) -> None:
    """Out of sight in one move: a checkpoint that is half removed must never be seen."""
    hidden = path.with_name(f".{path.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)
    os.replace(path, hidden)
    shutil.rmtree(hidden)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_document(path: Path) -> dict[str, Any]:
    """The document of a checkpoint; its checksum is checked, the files that it names are not."""
    if (document := unsealed((path / "state.json").read_bytes())) is None:
        raise CheckpointError(f"checkpoint {path}: state.json does not match its checksum")
    return document


def sealed(body: bytes) -> bytes:
    """A document as `state.json` holds it: behind its checksum."""
    return b'{"checksum": "%s", "state": %s}' % (digest(body).encode(), body)


def unsealed(data: bytes) -> dict[str, Any] | None:
    """The document behind its checksum; None where the two do not match."""
    outer = json.loads(data)
    return dict(outer["state"]) if data == sealed(data[len(sealed(b"")) - 1 : -1]) else None


def _document(path: Path) -> dict[str, Any]:
    try:
        return read_document(path)
    except (OSError, ValueError, KeyError, TypeError, CheckpointError):
        return {}


def _age(path: Path) -> tuple[bool, float, int]:
    document = _document(path)
    return bool(document), -float(document.get("saved_at") or 0.0), -int(path.name)


def _next_moment(folder: Path) -> float:
    """Now, or just after the last checkpoint where the clock was set back, or another machine's goes behind."""
    return max(time.time(), float(saved_state(folder).get("saved_at") or 0.0) + 0.001)


def _segments(path: Path) -> list[dict[str, Any]]:
    return list(_document(path).get(REPLAY, {}).get("segments", ()))


def _score(path: Path) -> tuple[int, float] | None:
    """The mean return; of a curriculum, later stages are worth more, however hard they are."""
    document = _document(path)
    score, stage = document.get("score"), document.get("numbers", {}).get("curriculum/stage", 0)
    return (stage, score) if isinstance(score, int | float) else None


def _size(folder: Path, paths: list[Path]) -> int:
    segments = {folder / REPLAY / segment["file"] for path in paths for segment in _segments(path)}
    files = [*(file for path in paths for file in path.iterdir()), *segments]
    return sum(file.stat().st_size for file in files if file.exists())


def _write_file(path: Path, data: bytes) -> str:
    """Write beside, fsync, rename; returns the checksum. A segment's name may exist from a run that was killed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)  # half a file must not keep a full disk full
        raise
    return digest(data)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
