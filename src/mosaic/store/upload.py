"""Upload: a run's folder copied to a store, repeatedly, so that a reader finds complete checkpoints only.

Of two writers of one run the newer wins: a process that was cut off, but still runs, stops when it sees the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mosaic.contract import checkpoints
from mosaic.contract.checkpoints import KEPT, PINNED, REPLAY, CheckpointError, digest, read_document
from mosaic.contract.errors import StoreError
from mosaic.contract.paths import RunPaths
from mosaic.store.manifest import NAME, Entry, Kept, Manifest, object_name, read_manifest, write_manifest
from mosaic.store.storage import AwayError, Storage

# One request and one allocation each; a kill loses at most this much.
CHUNK_BYTES = 32 << 20
# Append-only files: only their new end is read and sent.
_GROWING = (".jsonl", ".log")
STATUS = "storage.json"
# Specific to this machine and moment; W&B uploads its own folder.
LEFT_OUT = (
    *(STATUS, "fastlane.json", "logs/worker.lock", "logs/paused_seconds"),
    *("logs/attempt", "logs/exit.json", "logs/order"),
)
_LEFT_OUT_FOLDERS = ("checkpoints", "wandb")


class TakenOver(StoreError):
    """A newer process that writes this run."""


class Upload:
    """One writer of one run. After an error it resumes; `sync` may be called again at once."""

    def __init__(
        self,
        paths: RunPaths,
        storage: Storage,
        folder: Path | None = None,
        moved: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._paths, self._storage, self._moved = paths, storage, moved
        self._folder = folder or paths.checkpoints
        self._manifest = read_manifest(storage, paths.run_id) or Manifest(paths.run_id)
        self._manifest.generation += 1
        self._there = storage.sizes(paths.run_id)
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._ours: set[str] = set()
        self._damaged: dict[tuple[str, int], str] = {}
        self._doomed: set[str] = set()
        write_manifest(storage, self._manifest)  # from now on an older writer notices that it was replaced
        self._dirty = False

    def sync(self, *, last: bool = False) -> list[str]:
        """Bring the store up to date; return a line for each file that a permanent error keeps out."""
        saved = checkpoints.find_all(self._folder)  # first: the rows that these need are in the files read next
        for name, path in self._plain_files():
            self._put_changed(name, path)
        self._write()
        for path in saved:
            self._put_checkpoint(path)
            self._write()
        self._forget(saved)
        self._write()
        self._sweep(last)
        return list(self._damaged.values())

    def left_bytes(self) -> int:
        """Return roughly how many bytes are not yet stored; a cheap estimate."""
        stored, left = self._manifest.files, 0
        with contextlib.suppress(OSError):  # pruned meanwhile
            for name, path in self._plain_files():
                left += max(0, path.stat().st_size - (stored[name].size if name in stored else 0))
            for path in checkpoints.find_all(self._folder):
                if self._name(path) not in self._manifest.checkpoints:
                    left += sum(file.stat().st_size for file in path.iterdir())
        return left

    def _plain_files(self) -> Iterator[tuple[str, Path]]:
        """Yield every file except checkpoints, hidden files and links."""
        root = self._paths.folder
        for folder, names, files in os.walk(root):
            inside = Path(folder).relative_to(root)
            left_out = _LEFT_OUT_FOLDERS if folder == str(root) else ()
            names[:] = sorted(name for name in names if not name.startswith(".") and name not in left_out)
            for name in sorted(files):
                path, relative = Path(folder, name), (inside / name).as_posix()
                if not name.startswith(".") and relative not in LEFT_OUT and not path.is_symlink():
                    yield relative, path

    def _put_changed(self, name: str, path: Path) -> None:
        """Store a file that has changed since it was last seen; skip it if it has just been removed."""
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                seen = (status.st_ino, status.st_size, status.st_mtime_ns)
                if self._seen.get(name) == seen:
                    return
                before = self._manifest.files.get(name)
                held = self._held(name, file, status, before)
                entry = Entry(self._put_tail(name, file, status.st_size, held), status.st_mtime)
        except FileNotFoundError:
            return
        self._manifest.files[name] = entry
        self._seen[name] = seen
        self._dirty |= entry != before

    def _held(self, name: str, file: Any, status: os.stat_result, before: Entry | None) -> list[tuple[int, str]]:
        """Return the stored chunks that the file's present content still begins with."""
        if before is None:
            return []
        seen = self._seen.get(name)
        grows = name.endswith(_GROWING) or "tfevents" in name
        if grows and seen is not None and seen[0] == status.st_ino and seen[1] <= status.st_size:
            return list(before.chunks)
        held = []
        for size, sum256 in before.chunks:
            data = file.read(size)
            if len(data) != size or digest(data) != sum256:
                break
            held.append((size, sum256))
        return held

    def _put_tail(self, name: str, file: Any, size: int, held: list[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
        """Store the new bytes after the unchanged chunks.

        A chunk no larger than those bytes is merged with them: so the number of a growing file's chunks grows with the
        logarithm of its size, and so do the bytes sent twice.
        """
        tail = size - sum(count for count, _ in held)
        while tail and held and held[-1][0] <= tail and held[-1][0] + tail <= CHUNK_BYTES:
            tail += held.pop()[0]
        file.seek(size - tail)
        while tail > 0 and (data := file.read(min(CHUNK_BYTES, tail))):
            tail -= len(data)
            held.append((len(data), self._put(name, data)))
        return tuple(held)

    def _put(self, name: str, data: bytes) -> str:
        sum256 = digest(data)
        target = object_name(self._paths.run_id, name, sum256)
        if self._there.get(target) != len(data):
            self._storage.write(target, data)
            self._there[target] = len(data)
            self._moved(len(data))
        return sum256

    def _name(self, path: Path) -> str:
        return f"checkpoints/{path.relative_to(self._folder).as_posix()}"

    def _put_checkpoint(self, path: Path) -> None:
        """Store a checkpoint that is new or changed; skip one that is pruned meanwhile."""
        name, written = self._name(path), 0
        try:
            written = (path / "state.json").stat().st_mtime_ns
            if (name, written) in self._damaged:
                return
            document = read_document(path)
            pinned = (path / PINNED).exists()
            kept = self._manifest.checkpoints.get(name)
            if kept is not None and (kept.saved_at, kept.pinned) == (document["saved_at"], pinned):
                return
            files = self._put_checkpoint_files(path, name, document)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if path.exists():
                self._damaged[name, written] = f"{name} is not stored: {error}"
            return
        score = document.get("score")
        self._manifest.files |= files
        self._manifest.checkpoints[name] = Kept(
            step=int(document.get("step") or path.name),
            saved_at=float(document["saved_at"]),
            files=tuple(files),
            exact=bool(document.get("exact", True)),
            score=score if isinstance(score, int | float) else None,
            stage=stage if isinstance(stage := (document.get("numbers") or {}).get("curriculum/stage"), int) else 0,
            pinned=pinned,
        )
        self._dirty = True

    def _put_checkpoint_files(self, path: Path, name: str, document: dict[str, Any]) -> dict[str, Entry]:
        """Store a checkpoint's files, verified with its document's checksums, and return their entries."""
        found = {f"{name}/state.json": self._put_whole(f"{name}/state.json", path / "state.json", None)}
        for file, sum256 in document["files"].items():
            found[f"{name}/{file}"] = self._put_whole(f"{name}/{file}", path / file, sum256)
        beside = name.rpartition("/")[0]
        for segment in (document.get(REPLAY) or {}).get("segments", ()):
            relative = f"{beside}/{REPLAY}/{segment['file']}"
            stored = self._manifest.files.get(relative)  # its name contains its content's digest
            found[relative] = stored or self._put_whole(
                relative, path.parent / REPLAY / segment["file"], segment["sha256"]
            )
        return found

    def _put_whole(self, name: str, path: Path, expected: str | None) -> Entry:
        chunks, whole = [], hashlib.sha256()
        with path.open("rb") as file:
            changed_at = os.fstat(file.fileno()).st_mtime
            while data := file.read(CHUNK_BYTES):
                whole.update(data)
                chunks.append((len(data), self._put(name, data)))
        if expected is not None and whole.hexdigest() != expected:
            raise CheckpointError(f"{path.name} does not match its checksum")
        return Entry(tuple(chunks), changed_at)

    def _forget(self, saved: list[Path]) -> None:
        """Drop locally pruned checkpoints from the store; a folder without any checkpoint was removed, not pruned."""
        local = {self._name(path) for path in saved}
        self._ours |= local
        kept = self._manifest.checkpoints
        gone = [
            name for name in kept if name not in local and (name in self._ours or self._outdated(kept[name], local))
        ]
        if not local or not gone:
            return
        for name in gone:
            del kept[name]
        used = {path for one in kept.values() for path in one.files}
        for path in [path for path in self._manifest.files if path.startswith("checkpoints/") and path not in used]:
            del self._manifest.files[path]
        self._dirty = True

    def _outdated(self, one: Kept, local: set[str]) -> bool:
        """Return True if pruning would remove a checkpoint that only the store has (an earlier attempt elsewhere)."""
        stored = [self._manifest.checkpoints[name] for name in local if name in self._manifest.checkpoints]
        later = [other for other in stored if other.saved_at > one.saved_at]
        best = one.score is not None and all(
            other.score is None or (other.stage, other.score) < (one.stage, one.score) for other in stored
        )
        return len(later) >= KEPT and not one.pinned and not best

    def _write(self) -> None:
        """Publish what has been stored since the last manifest."""
        if not self._dirty:
            return
        self._stand_by()
        write_manifest(self._storage, self._manifest)
        self._dirty = False

    def _stand_by(self) -> None:
        """Raise TakenOver if a later writer has begun."""
        found = read_manifest(self._storage, self._paths.run_id)
        if found is not None and found.generation > self._manifest.generation:
            raise TakenOver(f"another process stores run {self._paths.run_id} in {self._storage.url} now")

    def _sweep(self, last: bool) -> None:
        """Remove unlisted objects, one round late: a reader may still use the previous manifest."""
        unused = set(self._there) - set(self._manifest.objects()) - {f"{self._paths.run_id}/{NAME}"}
        gone = unused if last else unused & self._doomed
        if gone:
            self._stand_by()
        for name in gone:
            try:
                self._storage.remove([name])
            except AwayError:
                raise
            except StoreError:
                pass  # no permission to delete: the object stays, unlisted
            del self._there[name]
        self._doomed = unused
