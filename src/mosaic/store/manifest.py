"""The manifest of a stored run: the objects of each file, and the complete checkpoints.

Objects are named by their content and never change; the manifest is written last, behind a checksum. Objects that it
does not list are ignored.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mosaic.contract.checkpoints import REPLAY, sealed, unsealed
from mosaic.contract.errors import StoreError
from mosaic.contract.fields import MANIFEST_BYTES
from mosaic.contract.files import STORED
from mosaic.contract.kinds import FieldError
from mosaic.store.storage import MissingError, Storage

FORMAT = 1
NAME = "manifest.json"


@dataclass(frozen=True)
class Entry:
    """A file: the concatenation of its chunks, each (size, sha256)."""

    chunks: tuple[tuple[int, str], ...]
    changed_at: float

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.chunks)


@dataclass(frozen=True)
class Kept:
    """A checkpoint; `files` includes all that it needs, also segments of replay memory."""

    step: int
    saved_at: float
    files: tuple[str, ...]
    exact: bool = True
    score: float | None = None
    stage: int = 0
    pinned: bool = False


@dataclass
class Manifest:
    """The files and checkpoints of a run, paths relative to its folder. The highest `generation` (writer) wins."""

    run_id: str
    generation: int = 0
    files: dict[str, Entry] = field(default_factory=dict)
    checkpoints: dict[str, Kept] = field(default_factory=dict)

    def by_age(self) -> list[str]:
        """Return the checkpoints, newest first."""
        return sorted(self.checkpoints, key=lambda name: -self.checkpoints[name].saved_at)

    def objects(self) -> Iterator[str]:
        """Yield the name of every object that a file consists of."""
        for path, entry in self.files.items():
            yield from (object_name(self.run_id, path, digest) for _, digest in entry.chunks)

    def plain_files(self) -> dict[str, Entry]:
        """Return the files that belong to no checkpoint."""
        owned = {path for kept in self.checkpoints.values() for path in kept.files}
        return {path: entry for path, entry in self.files.items() if path not in owned}


def object_name(run_id: str, path: str, digest: str) -> str:
    """Return an object's name: readable, since it contains the file's path, and unique for each content."""
    return f"{run_id}/{path}~{digest[:16]}"


def read_manifest(storage: Storage, run_id: str) -> Manifest | None:
    """Return the manifest of a stored run; None if the store does not have the run."""
    try:
        data = storage.read(f"{run_id}/{NAME}")
    except MissingError:
        return None
    place = f"{storage.url}/{run_id}/{NAME}"
    try:
        document = unsealed(data, "manifest", MANIFEST_BYTES)
        if document is None:
            raise FieldError("it does not match its checksum")
        if type(version := document.get("format")) is int and version > FORMAT:
            raise StoreError(f"{place} has format {version}, this version reads {FORMAT}: update mosaic-rl")
        STORED.check_fields(document, "")
        if document["run_id"] != run_id:
            raise FieldError(f"it is of run {document['run_id']}")
        return _from_json(document)
    except FieldError as error:
        raise StoreError(f"{place} is damaged: {error}") from None


def write_manifest(storage: Storage, manifest: Manifest) -> None:
    """Publish all files and checkpoints that the manifest lists at once."""
    document = {"format": FORMAT, "updated_at": time.time(), **asdict(manifest)}
    storage.write(f"{manifest.run_id}/{NAME}", sealed(json.dumps(document).encode()))


def _from_json(document: Mapping[str, Any]) -> Manifest:
    files = {
        path: Entry(tuple((size, digest) for size, digest in one["chunks"]), float(one["changed_at"]))
        for path, one in document["files"].items()
    }
    checkpoints = {
        name: Kept(**{**one, "files": tuple(one["files"])})
        for name, one in document["checkpoints"].items()
        if all(path in files and _belongs(path, name) for path in one["files"])
    }
    return Manifest(document["run_id"], document["generation"], files, checkpoints)


def _belongs(path: str, name: str) -> bool:
    """Return True for a file inside a checkpoint, or a segment beside it; a manifest must not choose other paths."""
    return name.startswith("checkpoints/") and path.rpartition("/")[0] in (name, f"{name.rpartition('/')[0]}/{REPLAY}")
