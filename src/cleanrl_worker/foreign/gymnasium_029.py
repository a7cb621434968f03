"""Gymnasium 0.29 on Gymnasium 1: the names and signatures that changed, patched in the process of one script."""

from __future__ import annotations

import sys
import types
from typing import Any, Callable, Dict, Optional

import gymnasium

from . import notes, old_ids, sidecars, vectors_029
from .episodes import CountedEpisodes, Counter
from .seeds import seed
from .wrappers_029 import WRAPPERS

# Removed or renamed modules, with the names that scripts import from them.
_MODULES = {
    "normalize": ("NormalizeObservation", "NormalizeReward", "RunningMeanStd"),
    "frame_stack": ("FrameStack",),
    "gray_scale_observation": ("GrayScaleObservation",),
    "resize_observation": ("ResizeObservation",),
    "clip_action": ("ClipAction",),
    "record_episode_statistics": ("RecordEpisodeStatistics",),
    "record_video": ("RecordVideo",),
    "autoreset": ("AutoResetWrapper",),
    "pixel_observation": ("PixelObservationWrapper",),
}

# Parameters that `gymnasium.make` accepted in 0.29 and no longer accepts.
_DROPPED = ("autoreset", "apply_api_compatibility", "new_step_api")


def install(counter: Optional[Counter]) -> None:
    """Patch Gymnasium for a script of that era; `counter` is for scripts that report no episodes."""
    gym: Any = gymnasium
    for vector in (vectors_029.SyncVectorEnv, vectors_029.AsyncVectorEnv):
        setattr(gym.vector, vector.__name__, vector)
    gym.vector.sync_vector_env.SyncVectorEnv = vectors_029.SyncVectorEnv
    gym.vector.async_vector_env.AsyncVectorEnv = vectors_029.AsyncVectorEnv
    gym.vector.make = vectors_029.make
    for name, wrapper in WRAPPERS.items():
        setattr(gym.wrappers, name, wrapper)
    _add_modules()
    gym.make = gym.envs.registration.make = maker(gym.make, counter)
    gym.Env.seed = gym.Wrapper.seed = seed
    gym.Wrapper.__getattr__ = _attribute


def maker(make: Callable[..., Any], counter: Optional[Counter]) -> Callable[..., Any]:
    """Return a `gymnasium.make` that maps older ids, warns about the replacement, and counts episodes."""

    def make_played(id: Any, *args: Any, **options: Any) -> Any:
        if isinstance(id, str):
            id = played(id)
            sidecars.played(id)
        for name in _DROPPED:
            options.pop(name, None)
        env = make(id, *args, **options)
        return env if counter is None else CountedEpisodes(env, counter)

    return make_played


def played(env_id: str) -> str:
    """Return the id that replaces `env_id`, with a warning if it is another one."""
    registry: Any = gymnasium.registry
    if env_id not in registry and old_ids.may_be_atari(env_id):
        _register_atari()
    made = old_ids.played(env_id, registry)
    if made != env_id:
        notes.warn("%s is played as %s: Gymnasium %s no longer has it" % (env_id, made, gymnasium.__version__))
    return made


def _register_atari() -> None:
    try:
        import ale_py
    except ImportError:
        return
    gymnasium.register_envs(ale_py)


def _add_modules() -> None:
    names: Dict[str, Any] = {**WRAPPERS, "RunningMeanStd": gymnasium.wrappers.utils.RunningMeanStd}
    for module, exported in _MODULES.items():
        made = types.ModuleType("gymnasium.wrappers." + module)
        made.__dict__.update({name: names[name] for name in exported})
        sys.modules[made.__name__] = made


def _attribute(wrapper: Any, name: str) -> Any:
    """Forward an attribute to the inner environment, as `gymnasium.Wrapper` did."""
    if name.startswith("_") or name == "env":
        raise AttributeError("accessing private attribute %r is prohibited" % name)
    return getattr(wrapper.env, name)
