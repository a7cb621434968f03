"""Whether an algorithm can train on an environment: the catalog answers, else Gymnasium in a child process."""

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

# A module of the user's own that is imported for its environments may load anything; nobody waits longer than this.
LOOKUP_SECONDS = 120.0


@dataclass(frozen=True)
class _Learner:
    """An algorithm, and what it is for; spaces and families are empty where that is unknown."""

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

    The spaces and families are what the algorithm is for, empty where that is unknown; `backend` the one that will make
    the environment, None where that is unknown; with `auto`, it is only the algorithm's first choice. `advise` where
    another can be set. `num_envs` counts players in a game for several, 0 where it is not said; `levels` are Procgen's.
    A script of the user's own (`ours` false) may register environments itself: there, an id that nobody knows is a
    warning.
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
    # What another interpreter has installed is its own affair.
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
    """Refuse `module:Id` where training tells by the id what an agent sees: of a grid world, or of raw frames."""
    name = env_id.rpartition(":")[2]
    if name != env_id and (known.observation_space == "grid" or "NoFrameskip" in name):
        raise ConfigError(f"environment {env_id!r} goes by {name!r} here; use that id")


def only_envpool_has(env_ids: Sequence[str]) -> bool:
    """Whether Gymnasium makes none of them."""
    known = [catalog.find(env_id) for env_id in env_ids]
    return all(one is not None and catalog.on_backend(one, backends.GYMNASIUM) is None for one in known)


def _other_family(env_id: str, known: catalog.Environment, learner: _Learner) -> str:
    return f"{_only_for(learner)}, and {env_id!r} is none; {_algorithms_for(known)}"


def _not_in_catalog(env_id: str, learner: _Learner) -> str:
    """What to use instead: an id that the algorithm takes."""
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
    """The environment as this backend has it."""
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
    """What Gymnasium, which alone knows such ids, makes of `module:Id` where it is the catalog's and not the module's.

    A module may register another environment under a known id: whose it is, `ask_registry` tells.
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
    """The environment of the catalog that `module:Id` is, and warnings."""
    answer = ask_registry(env_id, interpreter, script_folder)
    newer = catalog.successor(env_id)
    gone = not answer.get("known") or backend == backends.GYMNASIUM
    if gone and ours and newer and (known := catalog.find(newer)) is not None:
        _check_fit(env_id, known, learner)  # the newer one would be refused next
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
    """What the module of a `module:Id` registers is only there under its module's name."""
    module, colon, name = env_id.rpartition(":")
    if not module:
        others = [one for one in registered if _is_strange(one)]
        meant = catalog.meant(name, learner.takes, others)
        return f"; did you mean {meant!r}?" if meant else ""
    taken = [one for one in registered if (known := catalog.find(one)) is None or learner.takes(known)]
    return nearest(name, taken).replace("mean '", f"mean '{module}{colon}")


def _is_strange(env_id: str) -> bool:
    """Whether the catalog knows nothing of the kind: no other version, and no twin such as phys2d/CartPole-v1."""
    name = env_id.rpartition("/")[2]
    return not any((catalog.find(env_id), catalog.find(name), catalog.successor(env_id), catalog.successor(name)))


def ask_registry(env_id: str, interpreter: str = sys.executable, script_folder: str | None = None) -> dict[str, Any]:
    """Ask Gymnasium in a child process: `known`, or a `problem` in words, or the `ids` that it does have.

    `package` is the last that could not be imported; `namesake` says of `module:Id` that it is the catalog's.
    """
    namesake = _namesake(env_id)
    owners = catalog.group_of(namesake).packages if namesake else ()
    # As for the algorithm: a script's folder comes first, the current one last and only for modules.
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
    # Gymnasium's pip lines are not for ours; what another interpreter has installed is its own affair.
    needed = extras.needs(str(answer.get("package"))) if interpreter == sys.executable else None
    return {**answer, "problem": f"it {needed}"} if needed and "problem" in answer else answer


# Runs in the algorithm's interpreter: Python 3.8 or later, its gymnasium, or the older gym. What imported modules
# print goes nowhere, the answer has the only way out. The current folder is taken off the path before anything is
# imported that a file in it could shadow.
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
