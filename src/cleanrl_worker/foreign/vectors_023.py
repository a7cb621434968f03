"""Vector environments as gym 0.23 had them, of Gymnasium's own and of EnvPool's."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import gymnasium
import numpy as np

from . import vectors_029
from .envs_023 import Env, modern
from .episodes import Counter
from .seeds import seed as seed_env

Step = Tuple[Any, Any, Any, Any]


class VectorEnv(Env):
    """`gym.vector.VectorEnv`: a list of infos, and the observation after an episode's end in them."""

    is_vector_env = True

    def __init__(self, envs: Any) -> None:
        self.modern = envs
        self.num_envs = envs.num_envs
        self.action_space, self.observation_space = envs.action_space, envs.observation_space
        self.single_action_space = envs.single_action_space
        self.single_observation_space = envs.single_observation_space
        self.metadata, self.spec, self.render_mode = envs.metadata, envs.spec, envs.render_mode

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "modern":
            raise AttributeError(name)
        return getattr(self.modern, name)

    def reset(self, *, seed: Any = None, return_info: bool = False, options: Any = None, **others: Any) -> Any:
        obs, infos = self.modern.reset(seed=seed, options=options)
        return (obs, vectors_029.by_environment(infos, self.num_envs)) if return_info else obs

    def step(self, actions: Any) -> Step:
        return as_023(self.modern.step(actions))

    def step_async(self, actions: Any) -> None:
        self.modern.step_async(actions)

    def step_wait(self, **options: Any) -> Step:
        return as_023(self.modern.step_wait(**options))

    def seed(self, seed: Any = None) -> None:
        """Seed the next reset of every environment."""
        seeds = [None if seed is None else seed + index for index in range(self.num_envs)]
        for env, own in zip(self.envs, seed if isinstance(seed, (list, tuple)) else seeds):
            seed_env(env, own)

    def close(self, **options: Any) -> None:
        self.modern.close(**options)


class SyncVectorEnv(VectorEnv):
    """`gym.vector.SyncVectorEnv`."""

    def __init__(self, env_fns: Sequence[Callable[[], Any]], *args: Any, **options: Any) -> None:
        super().__init__(vectors_029.SyncVectorEnv([_modern(thunk) for thunk in env_fns], *args, **options))


class AsyncVectorEnv(VectorEnv):
    """`gym.vector.AsyncVectorEnv`."""

    def __init__(self, env_fns: Sequence[Callable[[], Any]], *args: Any, **options: Any) -> None:
        super().__init__(vectors_029.AsyncVectorEnv([_modern(thunk) for thunk in env_fns], *args, **options))


class PoolEnv(VectorEnv):
    """EnvPool's vector environment as its `env_type="gym"` was: spaces and counts can be set, four values a step."""

    def __init__(self, envs: Any, counter: Optional[Counter]) -> None:
        super().__init__(envs)
        self._counter = counter
        self._totals = np.zeros((2, envs.num_envs))  # return and length

    def xla(self) -> Tuple[Any, Any, Any, Any]:
        handle, recv, send, _ = self.modern.xla()

        def recv_old(handle: Any) -> Any:
            handle, step = recv(handle)
            return handle, of_pool(step)

        def step(handle: Any, action: Any, env_id: Optional[Any] = None) -> Any:
            return recv_old(send(handle, action, env_id))

        return handle, recv_old, send, step

    def reset(self, env_id: Any = None, **options: Any) -> Any:
        return self.modern.reset(env_id)[0]

    def step(self, actions: Any, env_id: Any = None) -> Step:
        answer = of_pool(self.modern.step(actions, env_id))
        if self._counter is not None and env_id is None:
            self._count(self._counter, answer)
        return answer

    def _count(self, counter: Counter, step: Step) -> None:
        """Count whole games and unclipped rewards, which Atari's infos hold beside lives and clipped rewards."""
        _, rewards, dones, info = step
        self._totals += (info.get("reward", rewards), np.ones(len(rewards)))
        counter.step(0, len(rewards))
        ended = np.logical_or(info["terminated"], info["TimeLimit.truncated"]) if "terminated" in info else dones
        for index in np.flatnonzero(ended):
            counter.episode(float(self._totals[0, index]), int(self._totals[1, index]))
            self._totals[:, index] = 0.0

    def recv(self, **options: Any) -> Step:
        return of_pool(self.modern.recv(**options))


def of_pool(step: Any) -> Step:
    """Return four values of EnvPool's five; its infos stay one dictionary of arrays."""
    obs, rewards, terminations, truncations, info = step
    return obs, rewards, terminations | truncations, {**info, "TimeLimit.truncated": truncations}


def as_023(step: Any) -> Step:
    """Return a vector step with one info for each environment."""
    obs, rewards, terminations, truncations, infos = step
    count = len(rewards)
    ended = infos.pop("final_info", [None] * count)
    last = infos.pop("final_observation", [None] * count)
    for mask in ("_final_info", "_final_observation"):
        infos.pop(mask, None)
    found: List[Dict[str, Any]] = vectors_029.by_environment(infos, count)
    for index in np.flatnonzero(np.logical_or(terminations, truncations)):
        found[index] = {**(ended[index] or {}), "terminal_observation": last[index]}
        if truncations[index]:
            found[index]["TimeLimit.truncated"] = not terminations[index]
    return obs, rewards, np.logical_or(terminations, truncations), found


def make(id: str, num_envs: int = 1, asynchronous: bool = True, **options: Any) -> VectorEnv:
    """Make several environments of one id, as `gym.vector.make` did."""
    return VectorEnv(vectors_029.make(id, num_envs, asynchronous, **options))


def patch_pool(envpool: Any, counter: Optional[Counter]) -> None:
    """Have `envpool.make` and `make_gym` return what they did for gym 0.23."""
    original = envpool.make

    def make(task_id: str, env_type: str, **options: Any) -> Any:
        if env_type != "gym":
            return original(task_id, env_type, **options)
        options.pop("gym_reset_return_info", None)
        return PoolEnv(original(task_id, "gymnasium", **options), counter)

    envpool.make = make
    envpool.make_gym = lambda task_id, **options: make(task_id, "gym", **options)


def _modern(thunk: Callable[[], Any]) -> Callable[[], gymnasium.Env]:
    return lambda: modern(thunk())
