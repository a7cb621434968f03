"""Checkpoints as files: `checkpoints/<step>/`, written to a temporary folder and renamed, with checksums; retention.

`state.json` holds a document and its own checksum, other files hold bytes. Segments in `checkpoints/replay/` are shared
between checkpoints. Only the algorithm interprets the bytes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from mosaic.contract.errors import ConfigError, StorageError
from mosaic.contract.fields import STATE_BYTES, TENSORS_BYTES, parse_object, read_bytes
from mosaic.contract.files import CHECKPOINT
from mosaic.contract.kinds import FieldError
from mosaic.contract.paths import resolve_home, write_atomic
from mosaic.contract.sidecars import read_sidecar

FORMAT = 1
KEPT = 2  # the newest ones; the best and the pinned are kept in addition
REPLAY = "replay"
Read = TypeVar("Read")
FINISHED = ".finished"  # a file of this name beside checkpoints holds the step at which their run ended
PINNED = "pinned"  # an empty file of this name in a checkpoint keeps it forever


class CheckpointError(ConfigError):
    """An unusable checkpoint, with the reason."""


class NewerFormatError(CheckpointError):
    """A checkpoint of a later version: falling back to an older one would lose training silently."""


def write_checkpoint(folder: Path, step: int, document: Mapping[str, Any], files: Mapping[str, bytes]) -> Path:
    """Save as `folder/<step>`, atomically: after a crash either nothing or all of it has that name."""
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
    if final.exists():  # the same step again, after a resumption from before it: the newer copy stays
        remove(final)
    os.replace(beside, final)
    _sync(folder)
    return final


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the document and the files, each checked; raise CheckpointError for a damaged one."""
    document = read_document(path)
    try:
        files = {name: _read_named(path, name, digest) for name, digest in document["files"].items()}
        replay = document.get(REPLAY) or {}
        for segment in replay.get("segments", ()):
            _read_named(path.parent / REPLAY, segment["file"], segment["sha256"])
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: {error.filename} cannot be read: {error.strerror}") from error
    except FieldError as error:
        raise CheckpointError(f"checkpoint {path}: {error}") from None
    return document, files


def _read_named(folder: Path, name: str, expected: str) -> bytes:
    """Return the bytes of a file that a checkpoint names; a link could name any file of this machine."""
    if (folder / name).resolve() != folder.parent.resolve() / folder.name / name:
        raise FieldError(f"{name} is a link, and is not followed")
    data = read_bytes(folder / name, name, TENSORS_BYTES)
    if digest(data) != expected:
        raise FieldError(f"{name} does not match its checksum")
    return data


def write_segment(folder: Path, first: int, end: int, data: bytes) -> dict[str, Any]:
    """Add replay rows `first` up to `end`; return the entry for a document's list.

    The name contains the content's digest: another continuation of the same run must not overwrite this one's past.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{first:012d}-{end:012d}-{digest(data)[:8]}.safetensors"
    entry = {"file": name, "first": first, "end": end, "sha256": _write_file(folder / name, data)}
    _sync(folder)
    return entry


def adopt_segments(source: Path, folder: Path, segments: list[dict[str, Any]]) -> None:
    """Link another run's segments into `folder`, or copy them if it is on another disk."""
    folder.mkdir(parents=True, exist_ok=True)
    for segment in segments:
        if not (folder / segment["file"]).exists():
            _link(source / segment["file"], folder / segment["file"])


def mirror(source: Path, folder: Path) -> None:
    """Give `folder` the checkpoints of `source`, sharing the bytes if both are on one disk."""
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
    """Return the checkpoints of a `checkpoints/` folder, newest first; `<phase>/<step>` counts, other folders do not.

    The highest step is not always the newest: a run that continued from an earlier checkpoint has left later ones
    behind. A damaged one without a save time comes first, so that its reader reports it.
    """
    if not folder.is_dir():
        return []
    found = [
        path for path in (*folder.glob("*/state.json"), *folder.glob("*/*/state.json")) if path.parent.name.isdigit()
    ]
    return sorted((path.parent for path in found), key=_age)


def checkpoints_of(source: Path) -> list[Path]:
    """Return the checkpoints of a checkpoint folder, a `checkpoints/` folder or a run folder, newest first."""
    if (source / "state.json").exists():
        return [source]
    return find_all(source / "checkpoints" if (source / "checkpoints").is_dir() else source)


def newest(source: Path, read: Callable[[Path], Read], warn: Callable[[str], None]) -> Read:
    """Return `read` of the newest readable checkpoint of `source`; unreadable ones are reported with `warn`."""
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


def curve_of(path: Path, document: Mapping[str, Any], own: Path) -> Path | None:
    """Return the rows that a checkpoint belongs to: its run may have moved since, or keep its checkpoints elsewhere.

    A document may name only the folder of the run that continues from it (`own`) or another of this home: otherwise it
    could have any file copied.
    """
    beside = (path.parent.parent, path.parent.parent.parent)  # of `<step>` and of `<phase>/<step>`
    named = Path(document.get("run_folder") or ".").resolve()
    if named != own.resolve() and named.parent != (resolve_home() / "var" / "trainer" / "runs").resolve():
        named = beside[0]
    for folder in (*beside, named):
        rows = folder / "metrics.jsonl"
        if rows.is_file() and rows.resolve() == folder.resolve() / rows.name:
            return rows
    return None


def saved_state(source: Path) -> dict[str, Any]:
    """Return the document of the newest checkpoint of `source` with an intact document; {} for none."""
    for path in checkpoints_of(source):
        if state := _document(path):
            return state
    return {}


def saved_args(source: Path) -> dict[str, Any]:
    """Return the arguments of the run of a checkpoint or a policy file; {} if they cannot be read."""
    if not source.is_file():
        return dict(saved_state(source).get("args") or {})
    try:
        args = read_sidecar(source).get("args") or {}  # of CleanRL's files, people write it by hand
    except (OSError, ValueError):  # it is refused with its policy
        return {}
    return {name: value for name, value in args.items() if name != "curriculum_schedule"}  # its curriculum is over


def read_finished(folder: Path) -> int | None:
    """Return the step at which the run of a `checkpoints/` folder ended; None if it has not."""
    try:
        return int(read_bytes(folder / FINISHED, FINISHED, 100))
    except ValueError:
        return None


def nothing_left(path: Path, step: int, total: int) -> str:
    """Return the refusal of a resumption without steps to train; the caller adds the command."""
    return f"nothing is left to train from {path}: step {step:,} of {total:,} is done; give more steps"


def prune(folder: Path, budget_bytes: int | None, step: int | None = None) -> None:
    """Delete all but the newest two, the best and the pinned; beyond the budget, also the best and the older.

    `step` is the one just saved: later ones belong to a future that a resumption has left.
    """
    paths = [path for path in find_all(folder) if path.parent == folder]
    pinned = [path for path in paths if (path / PINNED).exists()]
    # unreadable ones come last: they never displace a readable one
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
        if leftover.name != FINISHED:
            shutil.rmtree(leftover, ignore_errors=True)
    for leftover in (folder / REPLAY).glob(".*"):
        leftover.unlink()
    drop_segments(folder, [*pinned, *keep])


def drop_segments(folder: Path, kept: list[Path] | None = None) -> None:
    """Remove the replay segments that no checkpoint of this folder refers to; a killed process leaves some behind.

    Never call it while a run writes there: it saves a checkpoint's segments before the checkpoint.
    """
    for segment in unused_segments(folder, kept):
        segment.unlink(missing_ok=True)


def unused_segments(folder: Path, kept: list[Path] | None = None) -> list[Path]:
    """Return the replay segments that none of these checkpoints (None: all in the folder) needs."""
    paths = [path for path in find_all(folder) if path.parent == folder] if kept is None else kept
    used = {segment["file"] for path in paths for segment in _segments(path)}
    return [segment for segment in (folder / REPLAY).glob("*.safetensors") if segment.name not in used]


def write_finished(folder: Path, step: int) -> None:
    """Record that the run of this folder has ended; on a full disk it counts as interrupted."""
    with contextlib.suppress(StorageError):
        write_atomic(folder / FINISHED, str(step))


def unsaved(step: int, error: OSError, folder: Path, last: bool) -> str:
    """Return why a checkpoint could not be written, the remedy, and the consequence."""
    why = f"cannot write {folder}: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free space there, or start with a MOSAIC_HOME elsewhere"
        why = f"the disk of {folder} is full ({error.strerror}): {remedy}"
    then = "what was learned since the last checkpoint is not saved" if last else "training continues"
    return f"no checkpoint at step {step:,}: {why}; {then}"


def over_budget(needed: int, budget_mb: int) -> str:
    """Return the refusal of a run whose single checkpoint is larger than its budget."""
    size = f"one checkpoint takes up to {needed / 2**20:,.0f} MB"
    return f"{size}, more than --checkpoint-budget-mb {budget_mb}; raise it, or lower --buffer-size"


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def remove(path: Path) -> None:
    """Delete a checkpoint, first hidden by one rename: a partly removed one must never be visible."""
    hidden = path.with_name(f".{path.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)
    os.replace(path, hidden)
    shutil.rmtree(hidden)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_document(path: Path) -> dict[str, Any]:
    """Return the document of a checkpoint, its checksum and fields checked; the files that it names are not checked."""
    try:
        document = unsealed(read_bytes(path / "state.json", "state.json", STATE_BYTES))
        if document is None:
            raise FieldError("state.json does not match its checksum")
        if type(version := document.get("format")) is int and version > FORMAT:
            raise NewerFormatError(
                f"checkpoint {path} has format {version}, this version reads up to {FORMAT}: update mosaic-rl"
            )
        CHECKPOINT.check_fields(document, "")
    except FieldError as error:
        raise CheckpointError(f"checkpoint {path}: {error}") from error.__cause__
    return document


def segments_of(replay: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the segments of a replay memory; raise FieldError unless they are contiguous up to the last row."""
    segments = list(replay["segments"])
    end = segments[0]["first"] if segments else replay["added"]
    for segment in segments:
        if segment["first"] != end or segment["end"] <= end:
            raise FieldError(f"{REPLAY}.segments: {segment['file']} does not follow the segment before it")
        end = segment["end"]
    if end != replay["added"]:
        raise FieldError(f"{REPLAY}.segments end at {end}, not at the {replay['added']} transitions that were added")
    return segments


def sealed(body: bytes) -> bytes:
    """Return a document in the format of `state.json`: behind its checksum."""
    return b'{"checksum": "%s", "state": %s}' % (digest(body).encode(), body)


def unsealed(data: bytes, what: str = "state.json", most_bytes: int = STATE_BYTES) -> dict[str, Any] | None:
    """Return the document behind its checksum, None if the two do not match; raise FieldError for anything else."""
    body = data[len(sealed(b"")) - 1 : -1]
    return parse_object(body, what, most_bytes, wide=True) if data == sealed(body) else None


def _document(path: Path) -> dict[str, Any]:
    try:
        return read_document(path)
    except CheckpointError:
        return {}


def _age(path: Path) -> tuple[bool, float, int]:
    document = _document(path)
    return bool(document), -float(document.get("saved_at") or 0.0), -int(path.name)


def _next_moment(folder: Path) -> float:
    """Return the current time, or just after the last checkpoint if the clock was set back or lags behind another's."""
    return max(time.time(), float(saved_state(folder).get("saved_at") or 0.0) + 0.001)


def _segments(path: Path) -> list[dict[str, Any]]:
    return list((_document(path).get(REPLAY) or {}).get("segments", ()))


def _score(path: Path) -> tuple[int, float] | None:
    """Return a key that compares mean returns; in a curriculum, later stages rank higher, however hard they are."""
    document = _document(path)
    score, stage = document.get("score"), (document.get("numbers") or {}).get("curriculum/stage", 0)
    return (stage, score) if isinstance(score, int | float) and isinstance(stage, int) else None


def _size(folder: Path, paths: list[Path]) -> int:
    segments = {folder / REPLAY / segment["file"] for path in paths for segment in _segments(path)}
    files = [*(file for path in paths for file in path.iterdir()), *segments]
    return sum(file.stat().st_size for file in files if file.exists())


def _write_file(path: Path, data: bytes) -> str:
    """Write beside, fsync, rename; return the checksum. A segment's name may exist from a run that was killed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)  # a partial file must not keep a full disk full
        raise
    return digest(data)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
