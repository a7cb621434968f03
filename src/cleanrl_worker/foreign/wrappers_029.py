"""Wrappers with the names, parameters and results that they had in Gymnasium 0.29."""

from __future__ import annotations

from typing import Any, Dict, Tuple, Union

import gymnasium
import numpy as np

from . import sidecars
from .film import RecordVideo

_wrappers: Any = gymnasium.wrappers
_of_vectors: Any = gymnasium.wrappers.vector
_SAME: Any = object()


class TransformObservation(_wrappers.TransformObservation):
    """`TransformObservation(env, f)`: the observation space stays the environment's."""

    def __new__(cls, env: Any, *args: Any, **options: Any) -> Any:
        if _is_vector(env):  # the function receives a batch
            return _of_vectors.TransformObservation(env, args[0] if args else options.get("f", options.get("func")))
        return super().__new__(cls)

    def __init__(self, env: Any, f: Any = None, observation_space: Any = _SAME, func: Any = None) -> None:
        space = env.observation_space if observation_space is _SAME else observation_space
        super().__init__(env, func if f is None else f, space)


class TransformReward(_wrappers.TransformReward):
    """`TransformReward(env, f)`, also for a vector environment."""

    def __new__(cls, env: Any, *args: Any, **options: Any) -> Any:
        if _is_vector(env):
            return _of_vectors.TransformReward(env, args[0] if args else options.get("f", options.get("func")))
        return super().__new__(cls)

    def __init__(self, env: Any, f: Any = None, func: Any = None) -> None:
        super().__init__(env, func if f is None else f)


class NormalizeReward(_wrappers.NormalizeReward):
    """`NormalizeReward(env, gamma, epsilon)`, also for a vector environment."""

    def __new__(cls, env: Any, *args: Any, **options: Any) -> Any:
        return _of_vectors.NormalizeReward(env, *args, **options) if _is_vector(env) else super().__new__(cls)


class NormalizeObservation(_wrappers.NormalizeObservation):
    """`NormalizeObservation(env, epsilon)`; its statistics are stored in a saved policy's sidecar."""

    def __new__(cls, env: Any, *args: Any, **options: Any) -> Any:
        if not _is_vector(env):
            return super().__new__(cls)
        made = _of_vectors.NormalizeObservation(env, *args, **options)
        sidecars.remember(made)
        return made

    def __init__(self, env: Any, epsilon: float = 1e-8) -> None:
        super().__init__(env, epsilon)
        sidecars.remember(self)


class RecordEpisodeStatistics(_wrappers.RecordEpisodeStatistics):
    """`RecordEpisodeStatistics(env, deque_size)`: return, length and time are arrays with one element."""

    def __new__(cls, env: Any, *args: Any, **options: Any) -> Any:
        if _is_vector(env):
            options["buffer_length"] = options.pop("deque_size", args[0] if args else 100)
            return _of_vectors.RecordEpisodeStatistics(env, **options)
        return super().__new__(cls)

    def __init__(self, env: Any, deque_size: int = 100, **options: Any) -> None:
        options.setdefault("buffer_length", deque_size)
        super().__init__(env, **options)
        self.num_envs = 1

    def step(self, action: Any) -> Tuple[Any, Any, bool, bool, Dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            info["episode"] = {key: np.array([value]) for key, value in info["episode"].items()}
        return obs, reward, terminated, truncated, info


class GrayScaleObservation(_wrappers.GrayscaleObservation):
    """The former name of GrayscaleObservation."""


class FrameStack(_wrappers.FrameStackObservation):
    """The former name of FrameStackObservation; `lz4_compress` saved memory and has no effect."""

    def __init__(self, env: Any, num_stack: int, lz4_compress: bool = False) -> None:
        super().__init__(env, num_stack)


class ResizeObservation(_wrappers.ResizeObservation):
    """`ResizeObservation(env, shape)`, where one number means a square."""

    def __init__(self, env: Any, shape: Union[int, Tuple[int, ...]]) -> None:
        super().__init__(env, (shape, shape) if isinstance(shape, int) else tuple(shape))


class ClipAction(_wrappers.ClipAction):
    """A ClipAction that keeps the environment's action space; Gymnasium 1 shows an unbounded one."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.action_space = env.action_space


class AutoResetWrapper(_wrappers.Autoreset):
    """The former name of Autoreset."""


class PixelObservationWrapper(_wrappers.AddRenderObservation):
    """The former name of AddRenderObservation."""

    def __init__(self, env: Any, pixels_only: bool = True, **options: Any) -> None:
        super().__init__(env, render_only=pixels_only)


WRAPPERS: Dict[str, Any] = {
    wrapper.__name__: wrapper
    for wrapper in (
        *(TransformObservation, TransformReward, NormalizeReward, NormalizeObservation, RecordEpisodeStatistics),
        *(GrayScaleObservation, FrameStack, ResizeObservation, ClipAction, AutoResetWrapper, PixelObservationWrapper),
        RecordVideo,
    )
}


def _is_vector(env: Any) -> bool:
    return isinstance(env, gymnasium.vector.VectorEnv)
