"""The match of a saved state dict with algorithms: each algorithm file's `load_policy` is tried on its keys."""

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_worker import algorithms
from cleanrl_worker.run.policy import Policy
from cleanrl_worker.run.policy_files import UNREADABLE
from mosaic.contract.errors import ConfigError, nearest, shown
from mosaic.contract.extras import pip_line

Loader = Callable[[dict[str, Any], Any, Mapping[str, Any]], Policy]

# Spaces of each kind that an algorithm file lists; a network for others differs in the shapes of its tensors alone.
_OBSERVATIONS: dict[str, gym.Space[Any]] = {
    "vector": gym.spaces.Box(-1.0, 1.0, (4,), np.float32),
    "image": gym.spaces.Box(0, 255, (4, 84, 84), np.uint8),
    "grid": gym.spaces.Box(0, 255, (7, 7, 3), np.uint8),
}
_ACTIONS: dict[str, gym.Space[Any]] = {
    "discrete": gym.spaces.Discrete(2),
    "continuous": gym.spaces.Box(-1.0, 1.0, (1,), np.float32),
    "multi_discrete": gym.spaces.MultiDiscrete([2, 2]),
}
# Messages of torch's and our readers about a network's names and a tensor's shape.
_MISSING = re.compile(r"Missing key\(s\) in state_dict: (.*?)\. (?=\s|$)|it has no ([\w./-]+)", re.S)
_UNEXPECTED = re.compile(r"Unexpected key\(s\) in state_dict: (.*?)\. (?=\s|$)|the network has no ([\w./-]+)", re.S)
_SHAPE = re.compile(r"size mismatch for ([\w./-]+)")
_NAMED = 4  # keys that a refusal lists


def policy_algos() -> tuple[str, ...]:
    """Return every algorithm whose policies act here."""
    modules = pkgutil.iter_modules(algorithms.__path__)
    return tuple(module.name for module in modules if not module.name.startswith("_"))


def loader_of(algo: str) -> Loader:
    """Return an algorithm file's own `load_policy`."""
    known = policy_algos()
    if algo not in known:
        raise ConfigError(f"algo {algo!r} has no policies here{nearest(algo, known)} (known: {', '.join(known)})")
    try:
        loader: Loader = importlib.import_module(f"{algorithms.__name__}.{algo}").load_policy
    except SystemExit as error:  # a file in JAX, where JAX is missing
        raise ConfigError(f"policies of {algo!r}: {error}") from None
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise ConfigError(f"policies of {algo!r} need {package}: {pip_line(package)}") from error
    if "jax" in sys.modules:  # policies act on the CPU, as torch's do: JAX would take most of a GPU's memory
        sys.modules["jax"].config.update("jax_platforms", "cpu")
    return loader


def matches(
    path: Path, state: Mapping[str, Any], args: Mapping[str, Any], prefer: Iterable[str] = (), *, every: bool = False
) -> list[str]:
    """Return the algorithms whose networks have the keys of `state`; ConfigError lists the keys that fit none.

    The algorithms named by `prefer`, by the `exp_name` of the args or by the file come first: if they fit, no other
    algorithm is asked, unless `every` one is.
    """
    asked = preferred(path, args, prefer)
    algos = [algo for algo in policy_algos() if ("_jax" in algo) == any("/" in key for key in state)]
    first = [algo for algo in asked if algo in algos]
    unfit: dict[str, _Misfit] = {}
    found = _fitting(first, state, args, unfit)
    if not found or every:
        found += _fitting([algo for algo in algos if algo not in first], state, args, unfit)
    if found:
        return found
    raise ConfigError(f"policy {shown(path.name)} fits no algorithm here: {_nearest_misfit(state, unfit)}")


def preferred(path: Path, args: Mapping[str, Any], prefer: Iterable[str] = ()) -> list[str]:
    """Return the names to try first: the given ones, the `exp_name` of the args, the file's own."""
    return list(dict.fromkeys((*prefer, str(args.get("exp_name") or ""), path.name.partition(".")[0])))


_Misfit = tuple[list[str], list[str]]
"""keys that a network lacks, and keys that it needs"""


def _fitting(
    algos: Iterable[str], state: Mapping[str, Any], args: Mapping[str, Any], unfit: dict[str, _Misfit]
) -> list[str]:
    """Return those of the algorithms that have the keys; `unfit` takes what is wrong with the others."""
    found = []
    for algo in algos:
        if (misfit := _misfit(algo, state, args)) is None:
            found.append(algo)
        else:
            unfit[algo] = misfit
    return found


def _misfit(algo: str, state: Mapping[str, Any], args: Mapping[str, Any]) -> _Misfit | None:
    """Return the keys that the network lacks and those that it needs; None if it has the keys of `state`."""
    load, worst = loader_of(algo), (list(state), [""])  # its packages may be missing: ConfigError
    for spaces in _spaces_of(algo):
        try:
            load(dict(state), spaces, args)
        except UNREADABLE as error:
            text = f"{error} "
            extra, needed = _listed(_UNEXPECTED, text), _listed(_MISSING, text)
            if not extra and not needed:
                if _SHAPE.search(text):
                    return None
                continue
            worst = min(worst, (extra, needed), key=lambda one: len(one[0]) + len(one[1]))
        else:
            return None
    return worst


def _spaces_of(algo: str) -> Iterator[Any]:
    """Yield spaces of each kind that an algorithm takes."""
    module = importlib.import_module(f"{algorithms.__name__}.{algo}")
    for kind in module.OBSERVATION_SPACES:
        for actions in module.ACTION_SPACES:
            if kind not in _OBSERVATIONS:
                continue
            space = _OBSERVATIONS[kind]
            if actions == "multi_discrete":  # a match: the frames of each player
                space = gym.spaces.Box(0, 255, (2, *(space.shape or ())), np.uint8)
            yield SimpleNamespace(single_observation_space=space, single_action_space=_ACTIONS[actions])


def _listed(pattern: re.Pattern[str], text: str) -> list[str]:
    names = []
    for quoted, single in pattern.findall(text):
        names += re.findall(r'"([^"]+)"', quoted) if quoted else [single]
    return names


def _nearest_misfit(state: Mapping[str, Any], unfit: Mapping[str, _Misfit]) -> str:
    """Return the keys that do not fit the algorithm with the fewest of them."""
    algo, (extra, needed) = min(unfit.items(), key=lambda item: len(item[1][0]) + len(item[1][1]))
    if len(extra) >= len(state):
        return f"no algorithm's network has its keys: {_few(list(state))}"
    parts = [f"has no {_few(extra)}"] * bool(extra) + [f"needs {_few(needed)}"] * bool(needed)
    return f"the network of the nearest, {algo}, {' and '.join(parts)}"


def _few(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return ", ".join(shown(key, 60).strip("'") for key in keys[:_NAMED]) + more
