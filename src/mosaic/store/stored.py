"""Stored runs, downloaded: files that this machine lacks are fetched from a run's store into its folder, and verified.

Every reader of a run's files calls `ensure` first.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from mosaic.contract import checkpoints
from mosaic.contract.checkpoints import PINNED, digest
from mosaic.contract.errors import ConfigError, StoreError, shown, storage_error
from mosaic.contract.fields import NOTE_BYTES, read_object
from mosaic.contract.files import COPIES as TABLE_OF_COPIES
from mosaic.contract.files import STORAGE, read_note
from mosaic.contract.kinds import FieldError
from mosaic.contract.paths import RunPaths, write_atomic
from mosaic.contract.sidecars import sidecar_of
from mosaic.store.manifest import Entry, Manifest, object_name, read_manifest
from mosaic.store.storage import OFF, MissingError, Storage, check_url, default_url
from mosaic.store.upload import LEFT_OUT, STATUS

COPIES = ".stored.json"
"""file in a run's folder that records what was fetched, with size and modification time"""
# A writer may remove objects listed in the manifest that we read; then retry with its new manifest.
_TRIES, _TRY_SECONDS = 3, 1.0
_Answer = TypeVar("_Answer")
Progress = Callable[[int, int], None]
"""receives the bytes fetched so far, and their total"""


class DamagedCopyError(StoreError):
    """Fetched bytes that differ from those that were stored."""


def url_of(paths: RunPaths, otherwise: str = "") -> str:
    """Return a run's storage URL: from its config, its folder, `otherwise` or the home's settings; "" if not stored."""
    document = _read_config(paths)
    for part in ("metadata", "worker", "config", "extras"):
        inner = document.get(part)
        document = inner if isinstance(inner, dict) else document
    told = str(document.get("storage_url") or read_note(paths.folder / STATUS, STORAGE).get("url") or otherwise)
    return "" if told.lower() == OFF else told or default_url(paths.home)


def ensure(path: Path, home: Path, otherwise: str = "", progress: Progress | None = None) -> None:
    """Fetch a file, a checkpoint or a run's newest checkpoint if it is missing here and its run is stored.

    Do nothing for a path outside a run's folder, or a run that is not stored; the caller reports a missing file.
    """
    root = home / "var" / "trainer" / "runs"
    try:
        inside = Path(os.path.abspath(path)).relative_to(os.path.abspath(root))
        paths = RunPaths(inside.parts[0], home)
    except (ValueError, IndexError):
        return
    relative = inside.relative_to(paths.run_id).as_posix()
    whole = relative in (".", "checkpoints")
    here = bool(checkpoints.find_all(paths.checkpoints)) if whole else path.exists()
    # the store may have more by now of a folder that was fetched
    if here and (path.is_file() or not (paths.folder / COPIES).exists()):
        return
    if not (url := url_of(paths, otherwise)):
        return
    try:
        stored = StoredRun(paths, url)
        if whole:
            stored.fetch_newest_checkpoint(progress)
        else:
            stored.fetch_path(relative, progress)
    except (StoreError, ConfigError):
        if not here:
            raise


def fetch_newest(paths: RunPaths, url: str, progress: Progress | None = None) -> int | None:
    """Fetch what a run needs to continue here: its newest checkpoint, logs, metrics, curves, policies.

    Return the step of the newest local checkpoint afterwards; None if none exists. Local files that were not fetched
    are never overwritten. Raise StoreError if the store does not answer.
    """
    stored = StoredRun(paths, url)
    if stored.manifest() is not None:
        paths.create()
        stored.fetch_newest_checkpoint(progress)
        stored.fetch(lambda name: not name.startswith("videos/"), progress)
    found = checkpoints.find_all(paths.checkpoints)
    return int(found[0].name) if found else None


class StoredRun:
    """One run in its store."""

    def __init__(self, paths: RunPaths, url: str) -> None:
        self._paths, self._storage = paths, Storage(check_url(url))
        self.url = self._storage.url

    def manifest(self) -> Manifest | None:
        """Return the stored manifest; None if the store does not have the run."""
        return read_manifest(self._storage, self._paths.run_id)

    def fetch_newest_checkpoint(self, progress: Progress | None = None) -> str | None:
        """Fetch the newest stored checkpoint and return its name; None if the local one is as new.

        A damaged checkpoint is reported, and the previous one is fetched instead.
        """

        def fetch(manifest: Manifest) -> str | None:
            local = float(checkpoints.saved_state(self._paths.checkpoints).get("saved_at") or 0.0)
            newer = [name for name in manifest.by_age() if manifest.checkpoints[name].saved_at > local]
            for name in newer:
                try:
                    self._fetch_checkpoint(manifest, name, _counted(progress))
                    return name
                except DamagedCopyError as error:
                    if name == newer[-1] and not local:
                        raise
                    print(f"mosaic: {error}; falling back to the checkpoint before it", file=sys.stderr)
            return None

        return self._from_manifest(fetch)

    def fetch_path(self, relative: str, progress: Progress | None = None) -> None:
        """Fetch a checkpoint, a file with its sidecar, or every file below a folder; skip what the store lacks."""

        def fetch(manifest: Manifest) -> None:
            if relative in manifest.checkpoints:
                local = checkpoints.saved_state(self._paths.folder / relative).get("saved_at")
                if local != manifest.checkpoints[relative].saved_at:
                    self._fetch_checkpoint(manifest, relative, _counted(progress))
                return
            sidecar = sidecar_of(Path(relative)).as_posix()
            plain = manifest.plain_files()
            names = [name for name in plain if name in (relative, sidecar) or name.startswith(f"{relative}/")]
            self._fetch_files({name: plain[name] for name in names}, _counted(progress))

        self._from_manifest(fetch)

    def fetch(
        self,
        wanted: Callable[[str], bool] = lambda name: True,
        progress: Progress | None = None,
        *,
        all_saved: bool = False,
    ) -> None:
        """Fetch the files outside of checkpoints whose path is wanted; with `all_saved`, also every checkpoint."""

        def fetch(manifest: Manifest) -> None:
            told = _counted(progress)
            for name in manifest.checkpoints if all_saved else ():
                if not (self._paths.folder / name).exists():
                    self._fetch_checkpoint(manifest, name, told)
            self._fetch_files({name: one for name, one in manifest.plain_files().items() if wanted(name)}, told)

        self._from_manifest(fetch)

    def _from_manifest(self, work: Callable[[Manifest], _Answer]) -> _Answer | None:
        for left in reversed(range(_TRIES)):
            manifest = self.manifest()
            if manifest is None:
                return None
            try:
                return work(manifest)
            except MissingError:
                if not left:
                    raise
                time.sleep(_TRY_SECONDS)
        raise AssertionError("the last try answers or raises")

    def _fetch_checkpoint(self, manifest: Manifest, name: str, told: Told) -> None:
        """Fetch a checkpoint and move it into place with one rename, as the run itself saves it."""
        kept, final = manifest.checkpoints[name], self._inside(name)
        if not final.name.isdecimal():
            raise StoreError(f"{self.url}: the checkpoint {shown(name)} is refused: a step is its name")
        missing = {path: manifest.files[path] for path in kept.files if not self._has_segment(path, name)}
        told(0, sum(entry.size for entry in missing.values()))
        beside = final.with_name(f".{final.name}.{os.getpid()}.fetched")
        shutil.rmtree(beside, ignore_errors=True)
        try:
            beside.mkdir(parents=True)
            for path, entry in missing.items():
                target = self._inside(path)
                own = path.startswith(f"{name}/")
                self._fetch_file(path, entry, beside / target.relative_to(final) if own else target, told)
            if kept.pinned:
                (beside / PINNED).touch()
            if final.exists():
                checkpoints.remove(final)
            os.replace(beside, final)
        except OSError as error:
            raise storage_error(final, error) from None
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        self._note({})

    def _has_segment(self, path: str, name: str) -> bool:
        """Return True if a replay segment exists here; its name contains its digest, so it never changes."""
        return not path.startswith(f"{name}/") and self._inside(path).exists()

    def _fetch_files(self, entries: dict[str, Entry], told: Told) -> None:
        copies = read_note(self._paths.folder / COPIES, TABLE_OF_COPIES).get("files") or {}
        due = {name: entry for name, entry in entries.items() if self._is_due(name, entry, copies.get(name))}
        told(0, sum(entry.size for entry in due.values()))
        fetched = {}
        for name, entry in due.items():
            target = self._inside(name)
            self._fetch_file(name, entry, target, told)
            fetched[name] = _as_it_is(target)
        if fetched:
            self._note(fetched)

    def _is_due(self, name: str, entry: Entry, copy: Any) -> bool:
        """Return True if a file is missing here, or is an older copy that nobody has changed; files made here stay."""
        now = _as_it_is(self._inside(name))
        return now is None or (now == copy and now != [entry.size, entry.changed_at])

    def _fetch_file(self, name: str, entry: Entry, target: Path, told: Told) -> None:
        """Write a temporary file, verify every chunk, rename; keep the original's modification time."""
        beside = target.with_name(f".{target.name}.{os.urandom(4).hex()}.fetched")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with beside.open("wb") as file:
                for size, expected in entry.chunks:
                    data = self._storage.read(object_name(self._paths.run_id, name, expected))
                    if len(data) != size or digest(data) != expected:
                        raise DamagedCopyError(
                            f"{self.url}: {name} of run {self._paths.run_id} does not match its checksum"
                        )
                    file.write(data)
                    told(size, 0)
                file.flush()
                os.fsync(file.fileno())
            os.utime(beside, (entry.changed_at, entry.changed_at))
            os.replace(beside, target)
        except OSError as error:
            raise storage_error(target, error) from None
        finally:
            beside.unlink(missing_ok=True)

    def _inside(self, name: str) -> Path:
        """Return the local path of a stored file; a foreign store must not choose paths outside the folder."""
        if name in LEFT_OUT:
            raise StoreError(f"{self.url}: the path {shown(name)} of a stored file is refused")
        try:
            return self._paths.inside(name)
        except ConfigError as error:
            raise StoreError(f"{self.url}: {error}") from None

    def _note(self, fetched: dict[str, Any]) -> None:
        """Record the fetched files, so that a newer copy may replace them."""
        path = self._paths.folder / COPIES
        files = {**(read_note(path, TABLE_OF_COPIES).get("files") or {}), **fetched}
        write_atomic(path, json.dumps({"url": self.url, "files": files}))


Told = Callable[[int, int], None]
"""receives the bytes just fetched, and the bytes added to the total"""


def _counted(progress: Progress | None) -> Told:
    done = total = 0

    def told(came: int, more: int) -> None:
        nonlocal done, total
        done, total = done + came, total + more
        if progress is not None:
            progress(done, total)

    return told


def _as_it_is(path: Path) -> list[float] | None:
    with contextlib.suppress(OSError):
        status = path.stat()
        return [status.st_size, status.st_mtime]
    return None


def _read_config(paths: RunPaths) -> dict[str, Any]:
    try:
        return read_object(paths.config_file, "config", NOTE_BYTES)
    except FieldError:
        return {}
