"""FastLane for single environments: the Gymnasium wrapper, the replacement of `gymnasium.make`, and the grid.

Also loaded by file path inside users' own interpreters: Python 3.8, Gymnasium 0.28 and later. Environments in forked
processes (an AsyncVectorEnv's) share the ring, their counts and their tiles with the algorithm's process.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import time
import weakref
from pathlib import Path
from typing import Any, Callable, Sequence

import gymnasium as gym
import numpy as np

if __name__.startswith("_mosaic."):
    from _mosaic.forked_envs import ALIVE, LEADER, OPEN, ROUND, STEPS, TARGET, TICKS, SharedTiles
    from _mosaic.mujoco_process import Physics, Renderer
    from _mosaic.pacer import PATIENCE, Lane, Settings, as_colours, tiled
else:
    from cleanrl_worker.fastlane.forked_envs import ALIVE, LEADER, OPEN, ROUND, STEPS, TARGET, TICKS, SharedTiles
    from cleanrl_worker.fastlane.mujoco_process import Physics, Renderer
    from cleanrl_worker.fastlane.pacer import PATIENCE, Lane, Settings, as_colours, tiled

LOOK_FOR_SLOT = 100  # steps after which the chosen environment should exist
_WORKER = re.compile(r"Worker<.*>-(\d+)$")  # Gymnasium's name for the processes of an AsyncVectorEnv

# Environments that offer rgb_array but could not be made with it, and the reason.
_refused: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_view: EnvPicture | None = None
_asked = False


def current() -> EnvPicture | None:
    """Return this run's live view, opened at the first call; None if it is off."""
    global _view, _asked
    if not _asked:
        _asked = True
        settings = Settings.read(os.environ)
        patch = sys.modules.get("_mosaic_sitecustomize")
        if settings is not None and patch is not None:
            lane = Lane(settings, patch.writer, Path.cwd())
            _view = EnvPicture(lane, wraps=True)
            if patch.trouble:
                lane.give_up(patch.trouble)
    return _view


def maybe_wrap_env(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return the environment, wrapped for watching if the run's live view is on."""
    view = current()
    return env if view is None or not view.wraps_here else FastLaneTelemetryWrapper(env, view)


def make(original: Callable[..., gym.Env[Any, Any]], *args: Any, **kwargs: Any) -> gym.Env[Any, Any]:
    """Replace `gymnasium.make` in a run with a live view: return the same environment, made with rgb_array."""
    view, env_id = current(), args[0] if args else kwargs.get("id")
    if view is None or env_id is None or kwargs.get("render_mode") is not None:
        return maybe_wrap_env(original(*args, **kwargs))
    offers = _offers_pictures(env_id)
    if offers is None:
        env = original(*args, **kwargs)
        if env.render_mode is not None or "rgb_array" not in (env.metadata.get("render_modes") or ()):
            return maybe_wrap_env(env)
        env.close()
    trouble = ""
    if offers is not False:
        try:
            return maybe_wrap_env(original(*args, **{**kwargs, "render_mode": "rgb_array"}))
        except Exception as error:  # it rejects the argument, or finds no GL: training must continue
            trouble = f"cannot be made with rgb_array: {type(error).__name__}: {error}"
    env = original(*args, **kwargs)
    if trouble:
        _refused[env.unwrapped] = trouble
    return maybe_wrap_env(env)


def _offers_pictures(env_id: Any) -> bool | None:
    """Return True if an environment has an rgb_array mode, None if only making it can show that."""
    try:
        spec = env_id if not isinstance(env_id, str) else gym.spec(env_id)
        if spec.kwargs.get("render_mode") is not None:
            return False  # set in its registration
        point = spec.entry_point
        creator = gym.envs.registration.load_env_creator(point) if isinstance(point, str) else point
    except Exception:  # `module:Id` before its module is imported, or an id that `make` will refuse
        return None
    modes = (getattr(creator, "metadata", None) or {}).get("render_modes")
    return None if modes is None else "rgb_array" in modes


class EnvPicture:
    """The shared state of a run's environments: lane, camera, counts and tiles.

    Created before an AsyncVectorEnv forks its processes; with `wraps`, single environments are watched here, rather
    than whole vectors elsewhere.
    """

    def __init__(self, lane: Lane, wraps: bool) -> None:
        self.lane = lane
        self.wraps = wraps
        self.camera = Camera(lane)
        lane.explain("no environment has been stepped yet (in spawned processes none can be watched)", quietly=True)
        self.stage = SharedTiles(lane.settings.limit if lane.settings.mode == "grid" else 0, lane.settings.max_dim)

    @property
    def wraps_here(self) -> bool:
        return self.wraps or os.getpid() != self.lane.pid


class FastLaneTelemetryWrapper(gym.Wrapper):
    """A wrapper that shows an environment on the run's live view and returns every value unchanged.

    Without a live view it is a no-op.
    """

    def __init__(self, env: gym.Env[Any, Any], view: EnvPicture | None = None, index: int | None = None) -> None:
        super().__init__(env)
        self._view = current() if view is None else view
        self._shown = False
        if self._view is None:
            self._words = memoryview(bytearray(8 * 8)).cast("Q")
            self._base = 0
            return
        settings, stage = self._view.lane.settings, self._view.stage
        self._index = stage.enter(_own_index() if index is None else index)
        self._leave = weakref.finalize(self, stage.leave, self._index)
        self._words, self._base = stage.words, stage.base(self._index)
        self._grid = settings.mode == "grid"
        self._shown = self._index < settings.limit if self._grid else self._index == settings.slot
        self._return = 0.0
        self._round = 0
        self._failures = 0
        self._told = (0.0, 0, 0.0)  # reward, steps and time of its newest tile
        # An AsyncVectorEnv of Gymnasium 1 spends a whole tick on a reset; earlier ones and our own do not.
        self._reset_ticks = self._view.wraps and int(gym.__version__.split(".")[0]) >= 1
        if self._shown and (reason := why_no_picture(env)):
            self._view.lane.explain(reason)
            self._shown = self._grid  # black tile: the others may be drawn
            self._failures = PATIENCE

    def step(self, action: Any) -> Any:
        answer = self.env.step(action)
        self._words[self._base + STEPS] = steps = self._words[self._base + STEPS] + 1
        if self._shown:
            self._watch(float(answer[1]), bool(answer[2] or answer[3]))
        elif steps == LOOK_FOR_SLOT and self._view is not None and self._index == 0 and not self._grid:
            self._look_for_slot(self._view)
        return answer

    def reset(self, **options: Any) -> Any:
        answer = self.env.reset(**options)
        if self._shown:
            self._return = 0.0
            if self._grid and self._reset_ticks:
                self._tick(0.0)
        return answer

    def close(self) -> None:
        if self._view is not None:
            self._leave()
        self.env.close()

    @property
    def spec(self) -> Any:  # type: ignore[override]
        """Return the environment's own spec, so that remaking it does not add this wrapper."""
        return self.env.spec

    def _look_for_slot(self, view: EnvPicture) -> None:
        slot = view.lane.settings.slot
        if slot and not view.stage.words[view.stage.base(slot) + ALIVE]:
            view.lane.explain(f"fastlane_slot {slot}: no such environment has been made; they count from 0")

    def _watch(self, reward: float, ended: bool) -> None:
        assert self._view is not None
        lane = self._view.lane
        self._return += reward
        if ended:
            lane.episode(self._return)
            self._return = 0.0
        if self._grid:
            self._tick(reward)
        elif lane.due():
            view = self._view
            lane.show(lambda: view.camera.picture([self.env], reward, view.stage.steps()), reward, view.stage.steps())

    def _tick(self, reward: float) -> None:
        """Participate in the grid: the leader opens a round for the next tick, all draw, the leader shows it."""
        assert self._view is not None
        view, words = self._view, self._words
        words[self._base + TICKS] += 1
        ticks, number = words[self._base + TICKS], words[ROUND]
        if number != self._round and ticks >= words[TARGET]:
            self._round = number
            self._contribute(number, reward)
        if words[LEADER] != self._index:
            return
        if words[OPEN]:
            if view.stage.is_complete(number):
                words[OPEN] = 0
                reward, steps, drawn_at = self._told
                view.lane.show(lambda: view.camera.composed(view.stage, reward, steps), reward, steps, drawn_at)
        elif view.lane.due():
            words[TARGET] = ticks + 1
            words[OPEN] = 1
            view.stage.opened_at = time.monotonic()
            words[ROUND] = number + 1

    def _contribute(self, number: int, reward: float) -> None:
        assert self._view is not None
        stage, lane = self._view.stage, self._view.lane
        started = lane.clock()
        self._told = (reward, stage.steps(), time.monotonic())
        try:
            stage.put(self._index, self._view.camera.tile(self.env) if self._failures < PATIENCE else None, number)
            self._failures = self._failures if self._failures >= PATIENCE else 0
        except Exception as error:  # users' own environments may raise anything; the grid shows black
            self._failures += 1
            if self._failures >= PATIENCE:
                lane.explain(f"drawing failed: {type(error).__name__}: {error}")
            stage.put(self._index, None, number)
        lane.spend(lane.clock() - started)


class Camera:
    """Drawing of environments: by their own `render`, or by the renderer process for MuJoCo."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._renderer: Renderer | None = None
        self._physics: weakref.WeakKeyDictionary[Any, Physics | None] = weakref.WeakKeyDictionary()
        self._drawn = 0

    def picture(self, envs: Sequence[Any], reward: float, steps: int) -> Any:
        """Return a frame of one or several environments, None if the renderer draws it."""
        physics = [each for each in map(self._physics_of, envs) if each is not None]
        if physics:
            return self._hand_over(physics[0], lambda: [each.state() for each in physics], reward, steps)
        if len(envs) == 1 and self._lane.settings.mode != "grid":
            return envs[0].render()
        return tiled([env.render() for env in envs], self._lane.settings.max_dim)

    def tile(self, env: Any) -> Any:
        """Return an environment's tile for a grid: its frame, or its physics state."""
        physics = self._physics_of(env)
        return as_colours(env.render()) if physics is None else (physics, physics.state())

    def composed(self, stage: SharedTiles, reward: float, steps: int) -> Any:
        """Return the grid of the stage's tiles, None if the renderer draws it or all tiles are missing."""
        states = stage.states()
        if states:
            physics = next(each for each in self._physics.values() if each is not None)
            return self._hand_over(physics, lambda: states, reward, steps)
        frames = stage.frames()
        if all(frame is None for frame in frames):
            return None  # the ring's header has the reason
        return tiled(frames, self._lane.settings.max_dim)

    def close(self) -> None:
        """Stop the renderer; the next frame starts a new one."""
        if self._renderer is not None:
            self._renderer.close()
        self._renderer = None

    def _physics_of(self, env: Any) -> Physics | None:
        inner = env.unwrapped
        if inner not in self._physics:
            self._physics[inner] = Physics.of(env)
        return self._physics[inner]

    def _hand_over(
        self, physics: Physics, states_of_now: Callable[[], Sequence[np.ndarray]], reward: float, steps: int
    ) -> None:
        """Request a frame of the current states unless the renderer is busy, so that no outdated state is drawn."""
        lane = self._lane
        assert lane.writer is not None
        if self._renderer is None:
            self._renderer = Renderer(lane.writer.name, physics, lane.settings.limit, lane.settings.max_dim)
            self._drawn = 0
            lane.explain("the renderer of MuJoCo's pictures is starting", quietly=True)
        trouble = self._renderer.trouble()
        if trouble is not None:
            lane.give_up(trouble)
            return
        if not self._renderer.idle:
            return
        if self._renderer.drawn > self._drawn:
            self._drawn = self._renderer.drawn
            lane.flowing(time.monotonic())
        states = states_of_now()
        if physics.changed and not self._renderer.fits(physics, states[0]):
            self.close()  # the next frame starts one that fits
            return
        numbers = (reward, lane.rolling_return, lane.step_rate_hz)
        steps += lane.settings.first_step
        self._renderer.ask(states, numbers, steps, physics.saved_model() if physics.changed else None)


def why_no_picture(env: Any) -> str | None:
    """Return why an environment cannot be shown, None if it can."""
    name = env.spec.id if getattr(env, "spec", None) is not None else type(env.unwrapped).__name__
    if env.render_mode == "rgb_array":
        return None
    if env.unwrapped in _refused:
        return f"{name} {_refused[env.unwrapped]}"
    if env.render_mode is not None:
        return f"{name} is drawn with render_mode {env.render_mode!r}, not rgb_array"
    if "rgb_array" in (env.metadata.get("render_modes") or ()):
        return f"{name} was made without a render_mode"
    return f"{name} has no rgb_array render mode"


def _own_index() -> int | None:
    """Return the environment's number in a process of an AsyncVectorEnv, else None."""
    found = _WORKER.match(multiprocessing.current_process().name)
    return int(found.group(1)) if found else None
