"""The git state of a source file (commit and uncommitted changes), read without running a repository's programs."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mosaic.contract.fields import DIFF_BYTES

SECONDS = 5.0  # of one call of git
_NAMES, _NAME_CHARS = 50, 200  # of untracked files
# Installed, not checked out: an enclosing repository belongs to something else.
_INSTALLED = {"site-packages", "dist-packages"}
_SAFE = (
    *("--no-pager", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"),
    *("-c", "core.pager=cat", "-c", "diff.external=", "-c", "core.quotePath=false"),
)
_DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all", "HEAD")
_NO_SECRETS = ("--", ":/", ":(exclude,glob,top)**/.env", ":(exclude,glob,top)**/.env.*")


class Repositories:
    """Repositories by their root: several files of one are looked up once."""

    def __init__(self, mask: Callable[[str], str]) -> None:
        """Start without repositories; `mask` removes secrets from a text."""
        self.diffs: dict[str, str] = {}
        """changes by their SHA-256"""
        self._mask = mask
        self._known: dict[str, dict[str, Any]] = {}

    def of(self, file: Path) -> dict[str, Any] | None:
        """Return the state of a file's repository, None for a file outside of any."""
        folder = file.resolve().parent
        if _INSTALLED & set(folder.parts):
            return None
        root = _line(folder, "rev-parse", "--show-toplevel")
        commit = _line(folder, "rev-parse", "--verify", "--quiet", "HEAD")
        if not root or not commit or _line(folder, "check-ignore", file.name):
            return None
        if root not in self._known:
            self._known[root] = self._look(Path(root), commit)
        return self._known[root]

    def _look(self, root: Path, commit: str) -> dict[str, Any]:
        import hashlib

        filters = _filters(root)
        changes = _git(root, *filters, *_DIFF, *_NO_SECRETS, most=DIFF_BYTES)
        listed = _git(root, "ls-files", "--others", "--exclude-standard", "-z", most=64_000) or b""
        names = [name for name in listed.decode("utf-8", "replace").split("\0")[:-1] if ".env" not in name]
        about: dict[str, Any] = {
            "root": str(root),
            "commit": commit,
            "branch": _line(root, "symbolic-ref", "--short", "--quiet", "HEAD"),
            "remote": self._mask(_line(root, "config", "--get", "remote.origin.url")),
            "dirty": None if changes is None else bool(changes),
            "untracked": [name[:_NAME_CHARS] for name in names[:_NAMES]],
        }
        if changes:
            text = self._mask(changes[:DIFF_BYTES].decode("utf-8", "replace").replace("\0", "�"))
            cut = len(changes) > DIFF_BYTES
            text = text[:DIFF_BYTES] + (f"\n[cut after {DIFF_BYTES:,} bytes]\n" if cut else "")
            digest = hashlib.sha256(text.encode()).hexdigest()
            self.diffs[digest] = text
            about |= {"diff": digest, "cut": cut}
        return {name: value for name, value in about.items() if value not in (None, "", [])}


def _filters(root: Path) -> list[str]:
    """Return options that disable the filter programs of a repository's settings."""
    found = _git(root, "config", "--name-only", "--get-regexp", r"^filter\..*\.(clean|process|smudge|required)$")
    options = []
    for key in (found or b"").decode("utf-8", "replace").split():
        options += ["-c", f"{key}={'false' if key.endswith('.required') else ''}"]
    return options


def _line(folder: Path, *words: str) -> str:
    return (_git(folder, *words) or b"").decode("utf-8", "replace").strip()


def _git(folder: Path, *words: str, most: int = 8_000) -> bytes | None:
    """Return git's output, at most one byte more than `most`; None if git fails, is missing or times out."""
    try:
        process = subprocess.Popen(
            ["git", *_SAFE, *words],
            cwd=folder,
            env=_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
    timer = threading.Timer(SECONDS, process.kill)
    timer.daemon = True
    timer.start()
    try:
        assert process.stdout is not None
        data = process.stdout.read(most + 1)
        if len(data) > most:
            process.kill()
            return data
        return data if process.wait() == 0 else None
    finally:
        timer.cancel()
        process.stdout.close()  # type: ignore[union-attr]
        process.wait()


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that redirect git or let it prompt, fetch, write or page."""
    kept = {name: value for name, value in inherited.items() if not name.startswith("GIT_")}
    no = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
    return {**kept, **no, "GIT_PAGER": "cat", "LC_ALL": "C"}
