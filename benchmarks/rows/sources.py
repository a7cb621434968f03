"""The sources behind a row: the commit, and the digests of an algorithm's file and of what it imports."""

import ast
import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
# What decides the update. The command line, logs and checkpoints of a run do not.
PACKAGES = tuple(f"cleanrl_worker.{name}" for name in ("algorithms", "run", "learn", "nets", "envs"))


def commit_of_checkout() -> str:
    """Return the commit, with `-changed` if a source differs from it; "" outside of a git checkout."""
    try:
        head = _git("rev-parse", "HEAD").strip()
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "src")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("-changed" if changed else "")


def digests_of(algo: str) -> dict[str, str]:
    """Return the SHA-256 of each first-party file that an algorithm's file imports, directly or not, by its path."""
    found: dict[str, str] = {}
    waiting = [SRC / "cleanrl_worker" / "algorithms" / f"{algo}.py"]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(ROOT).as_posix()
        if name in found:
            continue
        source = path.read_bytes()
        found[name] = hashlib.sha256(source).hexdigest()
        waiting += [file for module in _imports(source) if (file := _file_of(module)) is not None]
    return dict(sorted(found.items()))


def _imports(source: bytes) -> Iterator[str]:
    """Yield every module that a source may import; a name imported from a package may be a module of it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:  # relative imports are not used here
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file_of(module: str) -> Path | None:
    if not module.startswith(PACKAGES):
        return None
    path = SRC / module.replace(".", "/")
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
