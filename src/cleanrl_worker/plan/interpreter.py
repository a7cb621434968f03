"""The Python interpreter of an algorithm: its path, its validation, and its module lookup."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from cleanrl_worker.config.inputs import find_path
from cleanrl_worker.schema.source import locate_module
from mosaic.contract.errors import ConfigError

OLDEST = (3, 8)  # the launcher's minimum version
ANSWER_SECONDS = 60.0  # a cold interpreter on a network disk may take long to start


def find_interpreter(given: str | None) -> str:
    """Return the absolute path of `extras.python`, by default the worker's; raise ConfigError if it is not a Python."""
    if not given:
        return sys.executable
    found = shutil.which(os.path.expanduser(given)) or find_path(given)
    # Not resolved: a virtual environment's python is a symlink that must be called by its own path.
    path = os.path.abspath(found)
    if not os.path.isfile(path):
        raise ConfigError(f"extras.python: {given!r} is not there; give the path of a Python interpreter")
    if not os.access(path, os.X_OK):
        raise ConfigError(f"extras.python: {given!r} is no program that can be run; give a Python interpreter")
    if path != sys.executable:
        _check_version(given, path)
    return path


def locate(module: str, interpreter: str) -> Path | None:
    """Return a module's file as found by the interpreter that will run it."""
    if interpreter == sys.executable:
        return locate_module(module, (os.getcwd(),))
    origin = ask(interpreter, _LOCATE, module, os.getcwd())
    return Path(origin) if os.path.isabs(origin) else None


# Each writes its answer as the last line, after any prints of a sitecustomize or an imported package. The current
# folder is removed from the path before any import that a file in it could shadow.
_VERSION = "__import__('sys').stdout.write('\\npython %d %d' % __import__('sys').version_info[:2])"
_LOCATE = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import importlib.util
sys.path.append(sys.argv[2])
spec = importlib.util.find_spec(sys.argv[1])
sys.stdout.write("\\n" + (spec and spec.origin or ""))
"""


def _check_version(given: str, path: str) -> None:
    name, _, version = ask(path, _VERSION).partition(" ")
    if name != "python":
        raise ConfigError(f"extras.python: {given!r} does not answer as a Python interpreter")
    found = tuple(map(int, version.split()))
    if found < OLDEST:
        raise ConfigError(
            f"extras.python: {given!r} is Python {'.'.join(map(str, found))}; {'.'.join(map(str, OLDEST))} or later "
            "is needed"
        )


def ask(interpreter: str, code: str, *arguments: str) -> str:
    """Return the last line that the code prints, "" if it fails."""
    try:
        child = subprocess.run(
            [interpreter, "-c", code, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or f"nothing within {ANSWER_SECONDS:.0f} s"
        raise ConfigError(f"extras.python: {interpreter} does not answer as a Python interpreter ({reason})") from error
    return child.stdout.rpartition("\n")[2] if child.returncode == 0 else ""
