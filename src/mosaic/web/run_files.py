"""The content of a run's folder for pages: checkpoints and their pins, policies, videos, all files; its notes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mosaic.contract import checkpoints
from mosaic.contract.errors import ConfigError, MosaicError, storage_error
from mosaic.contract.files import ANALYTICS, STORAGE, read_note
from mosaic.contract.paths import RunPaths, write_atomic
from mosaic.store.stored import StoredRun, url_of
from mosaic.store.upload import STATUS

MOST_FILES = 500
MOST_NOTES = 200_000


@dataclass(frozen=True)
class Saved:
    """A checkpoint; `path` is relative to the run's folder."""

    path: str
    step: int
    saved_at: float
    size: int
    exact: bool
    score: float | None
    pinned: bool
    here: bool = True
    """else only the run's store has it"""


@dataclass(frozen=True)
class File:
    """A file; `path` is relative to the run's folder."""

    path: str
    size: int
    changed_at: float
    here: bool = True


@dataclass(frozen=True)
class Elsewhere:
    """The files in a run's store that this machine lacks; `trouble` is the reason if they are unknown."""

    url: str
    saved: tuple[Saved, ...] = ()
    files: tuple[File, ...] = ()
    trouble: str = ""
    stored_at: float = 0.0

    @property
    def size(self) -> int:
        return sum(one.size for one in self.saved) + sum(one.size for one in self.files)


def list_elsewhere(paths: RunPaths) -> Elsewhere | None:
    """Return the files that can be fetched; None for a run without a store. Contacts the store, so it may be slow."""
    if not (url := url_of(paths)):
        return None
    status = read_note(paths.folder / STATUS, STORAGE)
    told, stored_at = str(status.get("error") or ""), float(status.get("stored_at") or 0.0)
    try:
        manifest = StoredRun(paths, url).manifest()
    except MosaicError as error:
        return Elsewhere(url, trouble=str(error), stored_at=stored_at)
    if manifest is None:
        return Elsewhere(url, trouble=told, stored_at=stored_at)
    saved = [
        Saved(
            *(name, one.step, one.saved_at, sum(manifest.files[path].size for path in one.files)),
            *(one.exact, one.score, one.pinned, False),
        )
        for name, one in manifest.checkpoints.items()
        if not (paths.folder / name / "state.json").exists()
    ]
    files = [
        File(name, entry.size, entry.changed_at, False)
        for name, entry in manifest.plain_files().items()
        if not (paths.folder / name).exists()
    ]
    return Elsewhere(url, tuple(saved), tuple(files), told, stored_at)


def fetch_all(paths: RunPaths, checkpoint: str = "") -> None:
    """Fetch one checkpoint, or everything except the checkpoints."""
    stored = StoredRun(paths, url_of(paths))
    if checkpoint:
        stored.fetch_path(checkpoint)
    else:
        stored.fetch()


def list_checkpoints(paths: RunPaths) -> list[Saved]:
    """Return the checkpoints, newest first; one that is being removed is skipped."""
    found = []
    for folder in checkpoints.find_all(paths.checkpoints):
        with contextlib.suppress(OSError):
            state = checkpoints.saved_state(folder)
            found.append(
                Saved(
                    folder.relative_to(paths.folder).as_posix(),
                    int(folder.name),
                    float(state.get("saved_at") or folder.stat().st_mtime),
                    sum(file.stat().st_size for file in folder.iterdir()),
                    bool(state.get("exact", True)),
                    state.get("score"),
                    (folder / checkpoints.PINNED).exists(),
                )
            )
    return found


def pin(paths: RunPaths, relative: str, pinned: bool) -> None:
    """Pin a checkpoint, or unpin it, so that it may be deleted."""
    folder = paths.inside(relative)
    if not (folder / "state.json").is_file():
        raise ConfigError(f"checkpoint {relative} is gone; newer ones have taken its place")
    try:
        if pinned:
            (folder / checkpoints.PINNED).touch()
        else:
            (folder / checkpoints.PINNED).unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(folder, error) from None


def list_files(paths: RunPaths, pattern: str = "*", below: Path | None = None) -> list[File]:
    """Return the run's files, sorted by path, without hidden ones, which are still being written."""
    root = below or paths.folder
    found = []
    for path in _walk(root):
        if path.match(pattern):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append(File(path.relative_to(paths.folder).as_posix(), status.st_size, status.st_mtime))
    return sorted(found, key=lambda file: file.path)


def list_policies(paths: RunPaths) -> list[File]:
    """Return the policies, the last saved first."""
    return sorted(list_files(paths, "*.cleanrl_model", paths.policies), key=lambda file: -file.changed_at)


def list_videos(paths: RunPaths) -> list[File]:
    """Return the videos, the last saved first."""
    return sorted(list_files(paths, "*.mp4", paths.videos), key=lambda file: -file.changed_at)


def read_notes(paths: RunPaths) -> tuple[str, float]:
    """Return the notes of a run and their time of change; before the first edit, the config's notes and 0."""
    try:
        text = paths.people_notes.read_text(encoding="utf-8", errors="replace")
        return text, paths.people_notes.stat().st_mtime
    except OSError:
        return str(read_note(paths.analytics, ANALYTICS).get("notes") or ""), 0.0


def write_notes(paths: RunPaths, text: str) -> float:
    """Save the notes; return their time of change."""
    if len(text) > MOST_NOTES:
        raise ConfigError(f"notes of {len(text):,} characters are refused: at most {MOST_NOTES:,}; shorten them")
    if not paths.folder.is_dir():
        raise ConfigError(f"run {paths.run_id} has no folder here; it was deleted, or lies on another machine")
    write_atomic(paths.people_notes, text)
    return paths.people_notes.stat().st_mtime


def _walk(root: Path) -> Iterator[Path]:
    """Yield files below a folder, up to a limit; links to folders are not followed."""
    count = 0
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield Path(folder, name)
                count += 1
                if count >= 20 * MOST_FILES:
                    return
