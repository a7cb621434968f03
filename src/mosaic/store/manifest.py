"""The manifest of a stored run: which objects make which files, and which checkpoints are whole.

Objects are named by their content and never change; the manifest is written last, behind a checksum. What it does not
list is not there, whatever lies beside it.
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
    """A file: its bytes are those of its chunks (size, sha256), one after the other."""

    chunks: tuple[tuple[int, str], ...]
    changed_at: float

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.chunks)


@dataclass(frozen=True)
class Kept:
    """A checkpoint; all that it needs, segments of replay memory included, is in `files`."""

    step: int
    saved_at: float
    files: tuple[str, ...]
    exact: bool = True
    score: float | None = None
    stage: int = 0
    pinned: bool = False


@dataclass
class Manifest:
    """Paths are relative to the run's folder. `generation` counts the writers: the newest one is right."""

    run_id: str
    generation: int = 0
    files: dict[str, Entry] = field(default_factory=dict)
    checkpoints: dict[str, Kept] = field(default_factory=dict)

    def by_age(self) -> list[str]:
        """The checkpoints, the last saved first."""
        return sorted(self.checkpoints, key=lambda name: -self.checkpoints[name].saved_at)

    def objects(self) -> Iterator[str]:
        """Every object that makes a file."""
        for path, entry in self.files.items():
            yield from (object_name(self.run_id, path, digest) for _, digest in entry.chunks)

    def plain_files(self) -> dict[str, Entry]:
        """The files that belong to no checkpoint."""
        owned = {path for kept in self.checkpoints.values() for path in kept.files}
        return {path: entry for path, entry in self.files.items() if path not in owned}


def object_name(run_id: str, path: str, digest: str) -> str:
    """An object's name: people find the file by it, and two contents never share one."""
    return f"{run_id}/{path}~{digest[:16]}"


def read_manifest(storage: Storage, run_id: str) -> Manifest | None:
    """What the store has of a run; None where it has nothing."""
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
    """Make everything that it lists visible at once."""
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
    """Return True for a file inside a checkpoint, or a segment beside it; a manifest chooses no other places."""
    return name.startswith("checkpoints/") and path.rpartition("/")[0] in (name, f"{name.rpartition('/')[0]}/{REPLAY}")
