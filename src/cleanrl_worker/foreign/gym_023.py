"""The package `gym` 0.23 on Gymnasium 1, for a script that imports it where it is not installed."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any, Callable, Dict, Optional

import gymnasium

from . import envs_023, vectors_023
from .after_import import when_imported
from .envs_023 import ModernEnv, OldEnv, old_style
from .episodes import Counter
from .gymnasium_029 import maker
from .wrappers_029 import WRAPPERS

VERSION = "0.23.1"
# Submodules that are the same in both; `gym.spaces.Box` must be Gymnasium's, since the environments use that.
_SHARED = ("spaces", "error", "logger", "utils", "utils.seeding")
_WRAPPERS = ("FilterObservation", "FlattenObservation", "RescaleAction", "TimeAwareObservation", "AtariPreprocessing")
_MODULES = {"RunningMeanStd": "normalize", "NormalizeObservation": "normalize", "NormalizeReward": "normalize"}


def install(counter: Optional[Counter]) -> None:
    """Install the package in sys.modules; `counter` is for scripts that report no episodes."""
    gym = _module("gym", __version__=VERSION, __path__=[])
    make = maker(gymnasium.make, counter)
    gym.make = lambda id, **options: OldEnv(_make(make, id, options))
    gym.register = register
    gym.spec = gymnasium.spec
    for name in ("Env", "Wrapper", "ObservationWrapper", "RewardWrapper", "ActionWrapper"):
        setattr(gym, name, getattr(envs_023, name))
    gym.core = _module("gym.core", **{name: getattr(gym, name) for name in ("Env", "Wrapper")})
    for name in _SHARED:
        shared = importlib.import_module("gymnasium." + name)
        sys.modules["gym." + name] = shared
        if "." not in name:
            setattr(gym, name, shared)
    registration = _module("gym.envs.registration", register=register, make=gym.make, registry=gymnasium.registry)
    gym.envs = _module("gym.envs", registration=registration, registry=gymnasium.registry, __path__=[])
    gym.wrappers = _wrappers()
    gym.vector = _module(
        "gym.vector",
        **{each.__name__: each for each in (vectors_023.VectorEnv, vectors_023.SyncVectorEnv)},
        AsyncVectorEnv=vectors_023.AsyncVectorEnv,
        make=vectors_023.make,
    )
    when_imported("envpool", lambda envpool: vectors_023.patch_pool(envpool, counter))


def register(id: str, entry_point: Any = None, **options: Any) -> None:
    """Register a script's own environment under both packages."""

    def create(render_mode: Optional[str] = None, **arguments: Any) -> Any:
        made = _load(entry_point)(**arguments)
        return made if isinstance(made, gymnasium.Env) else ModernEnv(made)

    for gone in ("reward_threshold", "nondeterministic", "order_enforce", "autoreset"):
        if options.get(gone) is None:
            options.pop(gone, None)
    # Gymnasium checks new environments for properties that gym 0.23 did not require.
    gymnasium.register(id, create, disable_env_checker=True, **options)


def _load(entry_point: Any) -> Callable[..., Any]:
    if callable(entry_point):
        return entry_point
    module, _, name = entry_point.partition(":")
    return getattr(importlib.import_module(module), name)


def _make(make: Callable[..., Any], env_id: str, options: Dict[str, Any]) -> Any:
    """Make an environment that can render, if it supports it: in 0.23 only `render` chose the mode."""
    options = {"disable_env_checker": True, **options}
    env = make(env_id, **options)
    if env.render_mode is not None or "rgb_array" not in (env.metadata.get("render_modes") or ()):
        return env
    env.close()
    return make(env_id, render_mode="rgb_array", **options)


def _wrappers() -> Any:
    modern = {**{name: getattr(gymnasium.wrappers, name) for name in _WRAPPERS}, **WRAPPERS}
    # One number per environment, as in that version.
    modern["RecordEpisodeStatistics"] = RecordEpisodeStatistics
    made = {name: _either(wrapper) for name, wrapper in modern.items()}
    package = _module("gym.wrappers", __path__=[], **made)
    parts = {**made, "RunningMeanStd": gymnasium.wrappers.utils.RunningMeanStd}
    for name, module in _MODULES.items():
        held = sys.modules.get("gym.wrappers." + module) or _module("gym.wrappers." + module)
        setattr(held, name, parts[name])
        setattr(package, module, held)
    return package


class RecordEpisodeStatistics(gymnasium.wrappers.RecordEpisodeStatistics):
    """`RecordEpisodeStatistics(env, deque_size)`."""

    def __init__(self, env: Any, deque_size: int = 100) -> None:
        super().__init__(env, buffer_length=deque_size)


def _either(wrapper: Any) -> Any:
    """Return a wrapper of gym 0.23; RecordVideo is a no-op on a vector environment."""
    made = old_style(wrapper)
    create = made.__new__

    def new(cls: Any, env: Any, *args: Any, **options: Any) -> Any:
        if isinstance(env, vectors_023.VectorEnv):
            inner = WRAPPERS.get(wrapper.__name__, wrapper)(env.modern, *args, **options)
            return _rewrapped(env, inner)
        return create(cls)

    made.__new__ = new
    return made


def _rewrapped(env: Any, inner: Any) -> Any:
    """Return the vector environment around `inner`, with the attributes that the script set on the previous one."""
    made = vectors_023.VectorEnv(inner)
    made.__dict__.update({name: value for name, value in vars(env).items() if name.startswith("single_")})
    return made


def _module(name: str, **names: Any) -> Any:
    made = types.ModuleType(name)
    made.__dict__.update(names)
    sys.modules[name] = made
    return made
