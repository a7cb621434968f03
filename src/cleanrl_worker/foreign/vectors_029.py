"""Vector environments of Gymnasium 0.29: an episode's end and the next one's start in the same step."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import gymnasium
import numpy as np

_vector: Any = gymnasium.vector
SAME_STEP = _vector.AutoresetMode.SAME_STEP
Step = Tuple[Any, Any, Any, Any, Dict[str, Any]]


class SyncVectorEnv(_vector.SyncVectorEnv):
    """Environments stepped sequentially; `final_info` is an array of dictionaries."""

    is_vector_env = True

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        observation_space: Any = None,
        action_space: Any = None,
        copy: bool = True,
        **options: Any,
    ) -> None:
        options.setdefault("autoreset_mode", SAME_STEP)
        super().__init__(env_fns, copy=copy, **options)
        self._actions: Any = None

    def step(self, actions: Any) -> Step:
        return as_029(super().step(actions), self.autoreset_mode)

    def step_async(self, actions: Any) -> None:
        self._actions = actions

    def step_wait(self) -> Step:
        return self.step(self._actions)


class AsyncVectorEnv(_vector.AsyncVectorEnv):
    """Environments in separate processes; `final_info` is an array of dictionaries."""

    is_vector_env = True

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        observation_space: Any = None,
        action_space: Any = None,
        shared_memory: bool = True,
        copy: bool = True,
        context: Optional[str] = None,
        daemon: bool = True,
        worker: Any = None,
        **options: Any,
    ) -> None:
        options.setdefault("autoreset_mode", SAME_STEP)
        super().__init__(env_fns, shared_memory, copy, context, daemon, worker, **options)

    def step_wait(self, timeout: Union[int, float, None] = None) -> Step:
        return as_029(super().step_wait(timeout), self.autoreset_mode)


def make(
    id: str, num_envs: int = 1, asynchronous: bool = True, wrappers: Any = None, **options: Any
) -> Union[SyncVectorEnv, AsyncVectorEnv]:
    """Make several environments of one id, as `gymnasium.vector.make` did."""
    options.pop("disable_env_checker", None)
    around: List[Any] = list(wrappers) if isinstance(wrappers, (list, tuple)) else [wrappers] if wrappers else []

    def thunk() -> Any:
        env = gymnasium.make(id, **options)
        for wrap in around:
            env = wrap(env)
        return env

    return (AsyncVectorEnv if asynchronous else SyncVectorEnv)([thunk] * num_envs)


def as_029(step: Step, mode: Any = SAME_STEP) -> Step:
    """Return a step of Gymnasium 1 with the keys and shapes that `infos` had in 0.29."""
    obs, rewards, terminations, truncations, infos = step
    if mode != SAME_STEP or "final_info" not in infos:
        return step
    count = len(rewards)
    ended = np.logical_or(terminations, truncations)
    # Gymnasium overwrites its arrays at the next step.
    last = np.array([None] * count, dtype=object)
    observations = np.array([None] * count, dtype=object)
    found = by_environment(infos.pop("final_info"), count)
    final_obs = infos.pop("final_obs")
    for index in np.flatnonzero(ended):
        last[index], observations[index] = found[index], final_obs[index]
    infos.pop("_final_obs", None)
    infos.update(final_info=last, _final_info=ended.copy())
    infos.update(final_observation=observations, _final_observation=ended.copy())
    return obs, rewards, terminations, truncations, infos


def by_environment(infos: Dict[str, Any], count: int) -> List[Dict[str, Any]]:
    """Split arrays with masks (`key` and `_key`) into a dictionary for each environment."""
    found: List[Dict[str, Any]] = [{} for _ in range(count)]
    for key, value in infos.items():
        mask = infos.get("_" + key)
        if key.startswith("_") and key[1:] in infos:
            continue
        parts = by_environment(value, count) if isinstance(value, dict) else value
        for index in range(count):
            if (mask is None or mask[index]) and not (isinstance(value, dict) and not parts[index]):
                found[index][key] = parts[index]
    return found
