"""Environments of gym 0.23 (four values a step), and the conversion between them and Gymnasium's, both ways."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Dict, List, Optional, Tuple

import gymnasium

from .seeds import seed as seed_modern

Step = Tuple[Any, Any, bool, Dict[str, Any]]


class Env:
    """`gym.Env`: `reset` returns an observation, `step` returns observation, reward, done and info."""

    metadata: Any = MappingProxyType({"render_modes": []})
    reward_range = (-float("inf"), float("inf"))
    spec: Any = None
    render_mode: Optional[str] = None
    action_space: Any
    observation_space: Any

    def step(self, action: Any) -> Any:
        raise NotImplementedError

    def reset(self, **options: Any) -> Any:
        raise NotImplementedError

    def render(self, mode: str = "human") -> Any:
        raise NotImplementedError

    def close(self) -> None:
        return None

    def seed(self, seed: Optional[int] = None) -> Any:
        return [seed]

    @property
    def unwrapped(self) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Wrapper(Env):
    """`gym.Wrapper`: forwards every attribute that it does not define."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattribute__(self, name: str) -> Any:
        # Class attributes of Env would hide those of the inner environment.
        if name in ("spec", "metadata", "reward_range", "render_mode") and name not in object.__getattribute__(
            self, "__dict__"
        ):
            return getattr(object.__getattribute__(self, "env"), name)
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError("attempted to get missing private attribute %r" % name)
        return getattr(self.env, name)

    def step(self, action: Any) -> Any:
        return self.env.step(action)

    def reset(self, **options: Any) -> Any:
        return self.env.reset(**options)

    def render(self, mode: str = "human", **options: Any) -> Any:
        return self.env.render(mode, **options)

    def close(self) -> None:
        self.env.close()

    def seed(self, seed: Optional[int] = None) -> Any:
        return self.env.seed(seed)

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped


class ObservationWrapper(Wrapper):
    """`gym.ObservationWrapper`."""

    def reset(self, **options: Any) -> Any:
        answer = self.env.reset(**options)
        if options.get("return_info"):
            return self.observation(answer[0]), answer[1]
        return self.observation(answer)

    def step(self, action: Any) -> Any:
        obs, reward, done, info = self.env.step(action)
        return self.observation(obs), reward, done, info

    def observation(self, observation: Any) -> Any:
        raise NotImplementedError


class RewardWrapper(Wrapper):
    """`gym.RewardWrapper`."""

    def step(self, action: Any) -> Any:
        obs, reward, done, info = self.env.step(action)
        return obs, self.reward(reward), done, info

    def reward(self, reward: Any) -> Any:
        raise NotImplementedError


class ActionWrapper(Wrapper):
    """`gym.ActionWrapper`."""

    def step(self, action: Any) -> Any:
        return self.env.step(self.action(action))

    def action(self, action: Any) -> Any:
        raise NotImplementedError


class OldEnv(Env):
    """An environment of Gymnasium 1 with the methods of gym 0.23."""

    def __init__(self, env: Any) -> None:
        self.modern = env
        self.action_space, self.observation_space = env.action_space, env.observation_space
        self.metadata = {**(env.metadata or {}), "render.modes": (env.metadata or {}).get("render_modes", [])}
        self.spec, self.render_mode = env.spec, env.render_mode

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "modern":
            raise AttributeError("attempted to get missing private attribute %r" % name)
        return self.modern.get_wrapper_attr(name)

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = self.modern.step(action)
        if truncated:
            info["TimeLimit.truncated"] = not terminated
        return obs, reward, bool(terminated or truncated), info

    def reset(self, **options: Any) -> Any:
        wants_info = options.pop("return_info", False)
        answer = self.modern.reset(**options)
        return answer if wants_info else answer[0]

    def render(self, mode: str = "human", **options: Any) -> Any:
        return self.modern.render()

    def close(self) -> None:
        self.modern.close()

    def seed(self, seed: Optional[int] = None) -> List[Optional[int]]:
        base = self.modern.unwrapped
        return base.old.seed(seed) if isinstance(base, ModernEnv) else seed_modern(self.modern, seed)

    @property
    def unwrapped(self) -> Any:
        base = self.modern.unwrapped
        return base.old.unwrapped if isinstance(base, ModernEnv) else base


class ModernEnv(gymnasium.Env):
    """A script's own environment of gym 0.23, with the methods of Gymnasium 1."""

    def __init__(self, old: Any) -> None:
        self.old = old
        self.action_space, self.observation_space = old.action_space, old.observation_space
        modes = (old.metadata or {}).get("render_modes") or (old.metadata or {}).get("render.modes") or []
        self.metadata, self.spec = {**(old.metadata or {}), "render_modes": list(modes)}, old.spec
        self.render_mode = "rgb_array" if "rgb_array" in modes else None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "old":
            raise AttributeError(name)
        return getattr(self.old, name)

    def step(self, action: Any) -> Tuple[Any, Any, bool, bool, Dict[str, Any]]:
        obs, reward, done, info = self.old.step(action)
        truncated = bool(done and info.get("TimeLimit.truncated", False))
        return obs, reward, bool(done) and not truncated, truncated, info

    def reset(self, *, seed: Optional[int] = None, options: Any = None) -> Tuple[Any, Dict[str, Any]]:
        if seed is not None:
            self.old.seed(seed)
        return self.old.reset(), {}

    def render(self) -> Any:
        return self.old.render("rgb_array")

    def close(self) -> None:
        self.old.close()


def modern(env: Any) -> Any:
    """Return the environment with Gymnasium 1's methods."""
    if isinstance(env, OldEnv):
        return env.modern
    return env if isinstance(env, gymnasium.Env) or not isinstance(env, Env) else ModernEnv(env)


def old_style(wrapper: Any) -> Any:
    """Return a class like a wrapper of Gymnasium 1 that wraps and behaves like an environment of gym 0.23."""

    class OldWrapper(OldEnv):
        def __init__(self, env: Any, *args: Any, **options: Any) -> None:
            self.env = env
            super().__init__(wrapper(modern(env), *args, **options))

    OldWrapper.__name__ = OldWrapper.__qualname__ = wrapper.__name__
    OldWrapper.__doc__ = wrapper.__doc__
    return OldWrapper
