"""Whether an algorithm can train on an environment: the catalog answers, else Gymnasium in a child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from mosaic import catalog
from mosaic.wire.errors import ConfigError, nearest, shown

# A module of the user's own that is imported for its environments may load anything; nobody waits longer than this.
LOOKUP_SECONDS = 120.0


def check_environment(
    env_id: str,
    algo: str,
    action_spaces: Sequence[str],
    interpreter: str = sys.executable,
    *,
    ours: bool = True,
    backend: str | None = None,
) -> list[str]:
    """Refuse an environment that cannot be made or driven; return warnings.

    `action_spaces` is what the algorithm drives, empty where that is unknown; `backend` the one that the config asks
    for. A script of the user's own (`ours` false) may register environments itself: there, an id that nobody knows is
    a warning.
    """
    known = catalog.find(env_id)
    if known is None:
        return _look_up(env_id, interpreter, ours)
    # What another interpreter has installed is its own affair; a backend that the catalog does not name, the kit's.
    if interpreter == sys.executable and backend in (None, *known.backends):
        missing = catalog.missing_package(known, backend)
        if missing:
            raise ConfigError(f"environment {env_id!r}: {missing}")
    if known.action_space and action_spaces and known.action_space not in action_spaces:
        raise ConfigError(
            f"algo {algo!r} drives {' and '.join(action_spaces)} actions, but {env_id!r} takes {known.action_space} "
            f"ones; {_algorithms_for(known.action_space)}"
        )
    return []


def _algorithms_for(action_space: str) -> str:
    from cleanrl_worker.schema import describe

    able = [name for name, entry in describe().items() if action_space in entry["action_spaces"]]
    return f"use {' or '.join(able)}" if able else "no algorithm here does"


def _look_up(env_id: str, interpreter: str, ours: bool) -> list[str]:
    answer = ask_registry(env_id, interpreter)
    if answer.get("known"):
        return []
    newer = catalog.successor(env_id)
    near = f"; did you mean {newer!r}?" if newer else nearest(env_id, [*answer.get("ids", ()), *catalog.ids()])
    if "problem" in answer:
        refusal = f"environment {shown(env_id, 120)}: {answer['problem']}{near if newer else ''}"
    else:
        refusal = f"unknown environment {shown(env_id, 120)}: neither the catalog nor Gymnasium's registry has it{near}"
    if ours:
        raise ConfigError(refusal)
    return [f"{refusal} (left to the script)"]


def ask_registry(env_id: str, interpreter: str = sys.executable) -> dict[str, Any]:
    """Ask Gymnasium in a child process: `known`, or a `problem` in words, or the `ids` that it does have."""
    try:
        child = subprocess.run(
            [interpreter, "-c", _LOOKUP, env_id, os.getcwd()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=LOOKUP_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"importing what it needs took longer than {LOOKUP_SECONDS:.0f} s"}
    except (OSError, ValueError) as error:
        return {"problem": f"cannot start {interpreter}: {error}"}
    try:
        answer = json.loads(child.stdout)
    except ValueError:
        return {"problem": f"importing what it needs ended {interpreter} with exit code {child.returncode}"}
    return answer if isinstance(answer, dict) else {}


# Runs in the algorithm's interpreter: Python 3.8 or later, its gymnasium, or the older gym. What imported modules
# print goes nowhere, the answer has the only way out. The current folder is last on the path, as for the algorithm.
_LOOKUP = """
import functools, importlib, json, os, sys
answer = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
env_id, folder = sys.argv[1:]
sys.path[:] = [entry for entry in sys.path if entry] + [folder]

def attempt(action):
    try:
        return action(), None
    except (Exception, SystemExit) as error:
        return None, "%s: %s" % (type(error).__name__, " ".join(str(error).split())[:200])

def load(module, name=None):
    return attempt(lambda: functools.reduce(getattr, name.split(".") if name else [], importlib.import_module(module)))

def look_up():
    gym, problem = load("gymnasium")
    if gym is None:
        gym = load("gym")[0]
    if gym is None:
        return {"problem": "gymnasium cannot be imported by %s (%s)" % (sys.executable, problem)}
    module, _, name = env_id.rpartition(":")
    if module:
        problem = load(module)[1]
        if problem:
            return {"problem": "its module %r cannot be imported (%s)" % (module, problem)}
    registry = gym.envs.registry
    specs = registry if hasattr(registry, "keys") else registry.env_specs
    if name not in specs:
        return {"ids": sorted(specs)}
    entry = specs[name].entry_point
    if isinstance(entry, str):
        problem = load(*entry.split(":"))[1]
    elif getattr(entry, "__module__", "").startswith("gymnasium.") and not isinstance(entry, type):
        problem = attempt(entry)[1]  # Gymnasium's way to say where an old environment has gone
    return {"problem": "it cannot be made (%s)" % problem} if problem else {"known": True}

json.dump(look_up(), answer)
answer.flush()
os._exit(0)
"""
