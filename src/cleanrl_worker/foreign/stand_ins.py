"""Replacements for modules that CleanRL's files import and that may be missing: ours are found after all others."""

from __future__ import annotations

import importlib
import importlib.machinery
import types
from typing import Any, Dict, Optional, Tuple

# Each module with our module that holds its names, and the names; a mere package has neither.
_EVALS = {
    **dict.fromkeys(("dqn_eval",), "evaluate_dqn"),
    **dict.fromkeys(("dqn_jax_eval",), "evaluate_dqn_jax"),
    **dict.fromkeys(("c51_eval",), "evaluate_c51"),
    **dict.fromkeys(("c51_jax_eval",), "evaluate_c51_jax"),
    **dict.fromkeys(("ppo_eval",), "evaluate_ppo"),
    **dict.fromkeys(("ddpg_eval", "td3_eval"), "evaluate_actor"),
    **dict.fromkeys(("ddpg_jax_eval", "td3_jax_eval"), "evaluate_actor_jax"),
    "ppo_envpool_jax_eval": "evaluate_ppo_envpool_jax",
}
_BUFFERS = ("replay_buffer", {"ReplayBuffer": "ReplayBuffer", "ReplayBufferSamples": "ReplayBufferSamples"})
_ATARI = (
    "atari",
    {
        name: name
        for name in (
            *("NoopResetEnv", "FireResetEnv", "EpisodicLifeEnv", "MaxAndSkipEnv", "ClipRewardEnv", "WarpFrame"),
            *("StickyActionEnv", "AtariWrapper"),
        )
    },
)
STAND_INS: Dict[str, Tuple[str, Dict[str, str]]] = {
    "distutils": ("", {}),
    "distutils.util": ("words", {"strtobool": "strtobool"}),
    **dict.fromkeys(("moviepy", "moviepy.video", "moviepy.video.io"), ("", {})),
    "moviepy.video.io.ImageSequenceClip": ("film", {"ImageSequenceClip": "ImageSequenceClip"}),
    "cleanrl_utils": ("", {}),
    "cleanrl_utils.buffers": _BUFFERS,
    "cleanrl_utils.atari_wrappers": _ATARI,
    "cleanrl_utils.evals": ("", {}),
    **{"cleanrl_utils.evals." + module: ("evals", {"evaluate": name}) for module, name in _EVALS.items()},
    "stable_baselines3": ("words", {"__version__": "SB3_VERSION"}),
    "stable_baselines3.common": ("", {}),
    "stable_baselines3.common.buffers": _BUFFERS,
    "stable_baselines3.common.atari_wrappers": _ATARI,
}

PACKAGES = frozenset(name for name in STAND_INS if any(other.startswith(name + ".") for other in STAND_INS))


class Finder:
    """The last finder of `sys.meta_path`: loads a replacement for a module that no other finder has."""

    def __init__(self, old: bool) -> None:
        self._old = old

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[importlib.machinery.ModuleSpec]:
        if name not in STAND_INS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=name in PACKAGES)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> Optional[types.ModuleType]:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        source, names = STAND_INS[module.__name__]
        if not source:
            return
        held = _own(source)
        for name, own in names.items():
            found = getattr(held, own)
            setattr(module, name, self._as_of_era(source, found))

    def _as_of_era(self, source: str, found: Any) -> Any:
        """Return an Atari wrapper, converted to gym 0.23 for a script of that era."""
        if not self._old or source != "atari":
            return found
        return _own("envs_023").old_style(found)


def _own(name: str) -> Any:
    return importlib.import_module("." + name, __package__)
