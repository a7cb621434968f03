"""An environment to be watched: one of Gymnasium or EnvPool, and its picture."""

import base64
import traceback
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np

from cleanrl_worker.envs import pools
from cleanrl_worker.envs.episodes import View
from cleanrl_worker.envs.vectors import EnvMaker, plain_refusals, register_plugins
from cleanrl_worker.envs.views import view_of
from mosaic.contract.errors import ConfigError, WorkerError
from mosaic.contract.frames import encode_png

ResultT = TypeVar("ResultT")


class EnvironmentFailure(WorkerError):
    """An environment raised something; only a reset can be answered next."""


def open_scene(
    env_id: str, *, flat: bool = False, atari: bool = False, backend: str = "auto", view: View | None = None
) -> "Scene":
    """One environment, ready to be drawn: as it is, or with the observations that a policy was trained on.

    `flat` is for the policies of `envs.vectors.vector` (with the `view` that they had, if any), `atari` for those of
    `envs.vectors.atari`: a game is then played whole, a lost life ends no episode, and rewards are the game's own.
    """

    def make() -> tuple[Any, str | None]:
        with plain_refusals(env_id):
            return _make(env_id, flat, atari, backend, view)

    try:
        env, no_picture = _guarded(f"environment {env_id!r} cannot be made", make)
    except SystemExit as error:  # how `envs` refuses what cannot be had here
        raise ConfigError(str(error)) from None
    return Scene(env, no_picture)


class Scene:
    """Steps and draws an environment; whatever the environment raises becomes an EnvironmentFailure."""

    def __init__(self, env: Any, no_picture: str | None = None) -> None:
        self._env = env
        self.no_picture = no_picture
        self.lost_life = False
        """whether the last step lost a life and the game went on, at which a policy's memory begins anew"""
        self.observation_space: gym.Space[Any] = env.observation_space
        self.action_space: gym.Space[Any] = env.action_space

    def reset(self, seed: int) -> Any:
        return _guarded("the environment's reset failed", lambda: self._env.reset(seed=seed)[0])

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:
        """Observation, reward, terminated, truncated."""
        answer = _guarded("the environment's step failed", lambda: self._env.step(action))
        obs, reward, terminated, truncated, info = answer
        self.lost_life = info.get("lost_life") is True
        return obs, float(reward), bool(terminated), bool(truncated)

    def picture(self) -> dict[str, Any] | None:
        """The present frame as a message holds it; None, with the reason in `no_picture`, from the first failure on."""
        if self.no_picture is not None:
            return None
        try:
            frame = _as_colour(_guarded("the environment's drawing failed", self._env.render))
        except EnvironmentFailure as error:
            self.no_picture = str(error)
            return None
        height, width, _ = frame.shape
        data = base64.b64encode(encode_png(frame)).decode()
        return {"mode": "rgb_array", "width": width, "height": height, "encoding": "png", "data": data}

    def close(self) -> None:
        try:
            _guarded("closing failed", self._env.close)
        except EnvironmentFailure:
            pass  # said on stderr; nothing is left to be done


class PoolEnv:
    """A pool of one, with Gymnasium's calls: for ids that only EnvPool has, and for what was trained on it.

    With `lives` it is reset after a lost life as in training, and the game goes on.
    """

    def __init__(self, env_id: str, lives: bool = False, view: View | None = None, flat: bool = False) -> None:
        self._env_id, self._options = view.pool(env_id) if view else (env_id, {})
        self._seen: Callable[[Any], Any] = view or (lambda obs: obs)
        self._lives = lives
        with warnings.catch_warnings():  # float64 bounds cast to float32 spaces: nothing a user can change
            warnings.simplefilter("ignore", UserWarning)
            self._pool = pools.make_pool(self._env_id, [0], **self._options)
            self.observation_space = self._pool.observation_space
            if view is not None:
                self.observation_space = view.space(self.observation_space)
            elif flat:
                self.observation_space, self._seen = pools.flat(self.observation_space)
            self.action_space = self._pool.action_space
        self.render_mode = "rgb_array" if pools.can_draw(self._env_id) else None

    def reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        """A pool takes its seed when it is made."""
        options: dict[str, Any] = self._options | ({"episodic_life": True} if self._lives else {})
        self._pool = pools.make_pool(self._env_id, [seed], **options)
        return _first(self._seen(self._pool.reset()[0])), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, rewards, terminations, truncations, info = self._pool.step(np.asarray([action]))
        told = {}
        if self._lives and terminations[0] and not info["terminated"][0]:
            terminations = truncations
            if not truncations[0]:  # EnvPool's own reset after a lost life: a step that ignores its action
                obs = self._pool.step(np.asarray([action]), np.zeros(1, np.int32))[0]
                told = {"lost_life": True}
        return _first(self._seen(obs)), rewards[0], terminations[0], truncations[0], told

    def render(self) -> Any:
        return np.asarray(self._pool.render(env_ids=[0]))[0]

    def close(self) -> None:
        self._pool = None


def _make(env_id: str, flat: bool, atari: bool, backend: str, view: View | None) -> tuple[Any, str | None]:
    """The environment, and why it cannot be drawn."""
    known = view or view_of(env_id, {})  # games that Gymnasium knows only through us
    if atari and pools.plays(env_id, backend):
        return PoolEnv(pools.find_game(env_id), lives=True, view=view), None
    pool = PoolEnv(env_id, view=view, flat=flat) if not atari and backend == "envpool" else None
    if pool is not None and pool.render_mode is not None:
        return pool, None
    register_plugins(env_id)
    try:
        # Made first without pictures: some refuse a render_mode that they do not have, some do not take the word.
        plain = _make_gymnasium(env_id, flat, atari, view, render=False)
    except (gym.error.Error, ImportError) as error:
        if pool is None and not isinstance(error, gym.error.UnregisteredEnv):
            raise
        pool = pool or PoolEnv(env_id, view=known, flat=flat)
        return pool, None if pool.render_mode else "EnvPool cannot draw it"
    if pool is not None and plain.observation_space.shape != pool.observation_space.shape:
        plain.close()  # a policy needs the row that it was trained on, and Blackjack is another one there
        return pool, "EnvPool cannot draw it"
    if "rgb_array" not in (plain.metadata.get("render_modes") or ()):
        return plain, "it has no rgb_array mode"
    try:
        drawn = _guarded(
            "it cannot be made with rgb_array", lambda: _make_gymnasium(env_id, flat, atari, view, render=True)
        )
    except EnvironmentFailure as error:
        return plain, str(error)
    plain.close()
    return drawn, None


def _make_gymnasium(env_id: str, flat: bool, atari: bool, view: View | None, render: bool) -> gym.Env[Any, Any]:
    if flat or atari:
        return EnvMaker(env_id, render=render, view=view, frames=atari)()
    options: dict[str, Any] = {"render_mode": "rgb_array"} if render else {}
    return gym.make(env_id, disable_env_checker=True, **options)


def _as_colour(frame: Any) -> np.ndarray:
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim not in (2, 3) or frame.size == 0:
        raise EnvironmentFailure(f"drawing gave no picture of bytes but {type(frame).__name__}")
    if frame.ndim == 2:
        frame = frame[:, :, None]
    if frame.shape[2] == 1:
        return np.repeat(frame, 3, axis=2)
    if frame.shape[2] < 3:
        raise EnvironmentFailure(f"drawing gave a picture with {frame.shape[2]} channels, not 3")
    return frame[:, :, :3]


def _first(batch: Any) -> Any:
    return {key: _first(value) for key, value in batch.items()} if isinstance(batch, dict) else batch[0]


def _guarded(what: str, call: Callable[[], ResultT]) -> ResultT:
    try:
        return call()
    except Exception as error:  # people's own environments may raise anything; a session can still answer
        traceback.print_exc()
        reason = " ".join(str(error).split())[:300]
        raise EnvironmentFailure(f"{what}: {type(error).__name__}: {reason}") from error
