"""Compatibility of algorithm and environment, checked in the catalog, else with Gymnasium in a child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cleanrl_worker.plan import backends
from mosaic import catalog
from mosaic.contract import extras
from mosaic.contract.errors import ConfigError, nearest, shown

# Timeout for importing a user's module for its environments: it may load anything.
LOOKUP_SECONDS = 120.0


@dataclass(frozen=True)
class _Learner:
    """An algorithm and its scope; spaces and families are empty if unknown."""

    algo: str
    action_spaces: Sequence[str]
    observation_spaces: Sequence[str]
    families: Sequence[str]

    def misfit(self, known: catalog.Environment) -> str | None:
        return catalog.misfit(known, self.action_spaces, self.observation_spaces, self.families)

    def takes(self, known: catalog.Environment) -> bool:
        return self.misfit(known) is None


def check_environment(
    env_id: str,
    algo: str,
    action_spaces: Sequence[str],
    interpreter: str = sys.executable,
    *,
    ours: bool = True,
    backend: str | None = None,
    auto: bool = False,
    observation_spaces: Sequence[str] = (),
    families: Sequence[str] = (),
    vectorization: str = "sync",
    film: bool = False,
    advise: bool = True,
    script_folder: str | None = None,
    num_envs: int = 0,
    levels: str = "auto",
) -> list[str]:
    """Refuse an environment that cannot be made or driven; return warnings.

    The spaces and families are the algorithm's scope, empty if unknown. `backend` will make the environment, None if
    unknown; with `auto`, it is only the algorithm's first choice. Set `advise` if another can be chosen. `num_envs`
    counts players in a multiplayer game, 0 if unset; `levels` are Procgen's. A user's script (`ours` false) may
    register environments itself, so an unknown id is only a warning.
    """
    learner = _Learner(algo, action_spaces, observation_spaces, families)
    known = catalog.find(env_id)
    if known is None:
        if families:
            raise ConfigError(_not_in_catalog(env_id, learner))
        known, warnings = _look_up(env_id, learner, interpreter, ours, script_folder, backend)
        if known is None and ":" in env_id and backend == backends.ENVPOOL:
            raise ConfigError(_made_only_by(env_id, (backends.GYMNASIUM,)))
        if warnings or known is None:
            _check_making(env_id, None, backend, vectorization, film)
            return warnings
    _check_fit(env_id, known, learner)
    _check_name(env_id, known)
    if auto and backend is not None:
        backend = backends.chosen(known, backend, vectorization, num_envs)
    made = known if backend is None else _on_backend(known, backend)
    # Packages of another interpreter are not checked.
    missing = catalog.missing_package(made, backend) if interpreter == sys.executable else None
    if missing:
        other = backend and advise and backends.other_ready(made, backend, vectorization, film, families)
        raise ConfigError(f"environment {env_id!r}: {missing}" + (f"; or set env_backend to {other}" if other else ""))
    _check_making(env_id, known, backend, vectorization, film, families)
    if why := catalog.level_trouble(env_id, levels):
        raise ConfigError(f"environment {env_id!r}: {why}")
    if num_envs % known.players:
        raise ConfigError(
            f"num_envs counts players: {env_id} is for {known.players}, and {num_envs} is no multiple of that"
        )
    return []


def _check_fit(env_id: str, known: catalog.Environment, learner: _Learner) -> None:
    misfit = learner.misfit(known)
    if misfit == "family":
        raise ConfigError(_other_family(env_id, known, learner))
    if misfit == "actions":
        raise ConfigError(
            f"algo {learner.algo!r} drives {' and '.join(learner.action_spaces)} actions, but {env_id!r} takes "
            f"{known.action_space} ones; {_algorithms_for(known)}"
        )
    if misfit == "observations":
        raise ConfigError(
            f"algo {learner.algo!r} learns from {', '.join(learner.observation_spaces)} observations, but {env_id!r} "
            f"gives {known.observation_space} ones; {_algorithms_for(known)}"
        )


def _check_name(env_id: str, known: catalog.Environment) -> None:
    """Refuse `module:Id` if training derives the observations from the id: of a grid world, or of raw frames."""
    name = env_id.rpartition(":")[2]
    if name != env_id and (known.observation_space == "grid" or "NoFrameskip" in name):
        raise ConfigError(f"environment {env_id!r} goes by {name!r} here; use that id")


def only_envpool_has(env_ids: Sequence[str]) -> bool:
    """Return True if Gymnasium makes none of these environments."""
    known = [catalog.find(env_id) for env_id in env_ids]
    return all(one is not None and catalog.on_backend(one, backends.GYMNASIUM) is None for one in known)


def _other_family(env_id: str, known: catalog.Environment, learner: _Learner) -> str:
    return f"{_only_for(learner)}, and {env_id!r} is none; {_algorithms_for(known)}"


def _not_in_catalog(env_id: str, learner: _Learner) -> str:
    """Return the refusal of an unknown id, with an id to use instead that the algorithm supports."""
    newer = catalog.find(catalog.successor(env_id) or "")
    if newer is not None and not newer.is_of(learner.families):
        return _other_family(env_id, newer, learner)
    meant = catalog.meant(env_id, learner.takes)
    if newer is not None and newer.env_id == meant:
        return f"environment {env_id!r} goes by {meant!r} here; use that id"
    near = f"; did you mean {meant!r}?" if meant else ""
    return f"{_only_for(learner)}, and {shown(env_id, 120)} is no known one{near}"


def _only_for(learner: _Learner) -> str:
    return f"algo {learner.algo!r} is for {' and '.join(learner.families)} environments only"


def _algorithms_for(known: catalog.Environment) -> str:
    from cleanrl_worker.schema.parameters import describe

    able = [
        name
        for name, entry in describe().items()
        if not catalog.misfit(known, entry["action_spaces"], entry["observation_spaces"], entry["families"])
    ]
    if not able:
        return "no algorithm here does yet"
    *others, last = able
    return f"use {', '.join(others)} or {last}" if others else f"use {last}"


def _on_backend(known: catalog.Environment, backend: str) -> catalog.Environment:
    """Return this backend's version of the environment, or refuse it."""
    made = catalog.on_backend(known, backend)
    if made is None:
        raise ConfigError(_made_only_by(known.env_id, known.backends))
    return made


def _made_only_by(env_id: str, makers: Sequence[str]) -> str:
    only = " or ".join(makers)
    return f"environment {env_id!r} is made by {only} only: set env_backend to {only}"


def _check_making(
    env_id: str,
    known: catalog.Environment | None,
    backend: str | None,
    vectorization: str,
    film: bool,
    families: Sequence[str] = (),
) -> None:
    refusal = backends.refusal(known, backend, vectorization, film, families) if backend else None
    if refusal:
        raise ConfigError(f"environment {shown(env_id, 120)}: {refusal}")


def _namesake(env_id: str) -> catalog.Environment | None:
    """Return the catalog's environment of the same name for a `module:Id`, None if Gymnasium does not make it.

    Only Gymnasium knows such ids. A module may register another environment under a known id; `ask_registry` checks.
    """
    if ":" not in env_id:
        return None
    known = catalog.find(env_id.rpartition(":")[2])
    if known is None or backends.GYMNASIUM not in known.backends:
        return None
    return replace(known, env_id=env_id, backends=(backends.GYMNASIUM,))


def _look_up(
    env_id: str, learner: _Learner, interpreter: str, ours: bool, script_folder: str | None, backend: str | None
) -> tuple[catalog.Environment | None, list[str]]:
    """Return the catalog's environment behind a `module:Id`, None if it is not one, and warnings."""
    answer = ask_registry(env_id, interpreter, script_folder)
    newer = catalog.successor(env_id)
    gone = not answer.get("known") or backend == backends.GYMNASIUM
    if gone and ours and newer and (known := catalog.find(newer)) is not None:
        _check_fit(env_id, known, learner)  # otherwise the suggested version would be refused next
    if answer.get("known") and newer and gone:
        raise ConfigError(f"Gymnasium lists environment {env_id!r}, but no longer makes it; use {newer!r}")
    if answer.get("known"):
        return _namesake(env_id) if answer.get("namesake") else None, []
    near = f"; did you mean {newer!r}?" if newer else _nearest_id(env_id, learner, answer.get("ids", ()))
    if "problem" in answer:
        refusal = f"environment {shown(env_id, 120)}: {answer['problem']}{near if newer else ''}"
    else:
        refusal = f"unknown environment {shown(env_id, 120)}: neither the catalog nor Gymnasium's registry has it{near}"
    if ours:
        raise ConfigError(refusal)
    return None, [f"{refusal} (left to the script)"]


def _nearest_id(env_id: str, learner: _Learner, registered: Sequence[str]) -> str:
    """Return a suggestion for an unknown id; a module's own environments are only available as `module:Id`."""
    module, colon, name = env_id.rpartition(":")
    if not module:
        others = [one for one in registered if _is_strange(one)]
        meant = catalog.meant(name, learner.takes, others)
        return f"; did you mean {meant!r}?" if meant else ""
    taken = [one for one in registered if (known := catalog.find(one)) is None or learner.takes(known)]
    return nearest(name, taken).replace("mean '", f"mean '{module}{colon}")


def _is_strange(env_id: str) -> bool:
    """Return True if the catalog has no related id: no other version, no twin such as phys2d/CartPole-v1."""
    name = env_id.rpartition("/")[2]
    return not any((catalog.find(env_id), catalog.find(name), catalog.successor(env_id), catalog.successor(name)))


def ask_registry(env_id: str, interpreter: str = sys.executable, script_folder: str | None = None) -> dict[str, Any]:
    """Look up an id with Gymnasium in a child process; return `known`, a `problem` as text, or the registered `ids`.

    `package` is the last that could not be imported; `namesake` means that a `module:Id` is the catalog's environment.
    """
    namesake = _namesake(env_id)
    owners = catalog.group_of(namesake).packages if namesake else ()
    # As for the algorithm: a script's folder is first on the path, the current one last and only for modules.
    folders = (script_folder, "") if script_folder else ("", os.getcwd())
    try:
        child = subprocess.run(
            [interpreter, "-c", _LOOKUP, env_id, *folders, *owners],
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
    if not isinstance(answer, dict):
        return {}
    # Gymnasium's pip hints do not fit our extras; packages of another interpreter are not checked.
    needed = extras.needs(str(answer.get("package"))) if interpreter == sys.executable else None
    return {**answer, "problem": f"it {needed}"} if needed and "problem" in answer else answer


# Runs in the algorithm's interpreter: Python 3.8 or later, its gymnasium, or the older gym. Prints of imported modules
# are discarded; only the answer reaches stdout. The current folder is removed from the path before any import that a
# file in it could shadow.
_LOOKUP = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import functools, importlib, json, os
answer = os.fdopen(os.dup(1), "w")
packages = []
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
env_id, first, last, *owners = sys.argv[1:]
sys.path[:] = [entry for entry in [first, *sys.path, last] if entry]

def attempt(action):
    try:
        return action(), None
    except (Exception, SystemExit) as error:
        cause = error.__cause__ or error
        packages.append(isinstance(cause, ImportError) and cause.name or "")
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
    for owner in owners:
        load(owner)
    before = registered(gym).get(name)
    if module:
        problem = load(module)[1]
        if problem:
            return {"problem": "its module %r cannot be imported (%s)" % (module, problem)}
    specs = registered(gym)
    if name not in specs:
        return {"ids": sorted(specs)}
    entry = specs[name].entry_point
    if isinstance(entry, str):
        problem = load(*entry.split(":"))[1]
    elif getattr(entry, "__module__", "").startswith("gymnasium.") and not isinstance(entry, type):
        problem = attempt(entry)[1]  # Gymnasium's way to say where an old environment has gone
    if problem:
        return {"problem": "it cannot be made (%s)" % problem}
    return {"known": True, "namesake": bool(owners) and what_it_is(specs[name]) == what_it_is(before)}

def registered(gym):
    registry = gym.envs.registry
    return registry if hasattr(registry, "keys") else registry.env_specs

def what_it_is(spec):
    return repr([getattr(spec, part, None) for part in ("entry_point", "kwargs", "additional_wrappers")])

json.dump({**look_up(), "package": "".join(packages[-1:])}, answer)
answer.flush()
os._exit(0)
"""
