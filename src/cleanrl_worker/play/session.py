"""Interactive sessions: commands in, messages out, with one environment and optionally a policy."""

import random
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.envs.play import for_episode
from cleanrl_worker.envs.views import view_of
from cleanrl_worker.play.game_view import EnvironmentFailure, Scene, open_scene
from cleanrl_worker.run.policy import Policy
from mosaic.contract.errors import ConfigError, EventError, MosaicError, nearest, shown
from mosaic.contract.events import from_line

Message = dict[str, Any]

# Each command with its fields. Others are refused: with a misspelt `action` the policy must not act instead.
COMMANDS: dict[str, tuple[str, ...]] = {"reset": ("seed",), "step": ("action",), "ping": (), "stop": ()}
SEED_LIMIT = 2**32
# Maximum numbers of an observation in a message: flat and grid ones fit. An image would cost 100 kB per step, and the
# frame shows the same.
OBSERVATION_LIMIT = 4096


@dataclass(frozen=True)
class Request:
    """The settings of a session; a missing environment or algorithm comes from the policy, a missing seed is drawn."""

    run_id: str
    env_id: str | None = None
    seed: int | None = None
    """seed of the first episode; random if None"""
    policy_path: Path | None = None
    """None: the user acts"""
    algo: str | None = None
    env_backend: str | None = None
    """backend of the policy's environment (default: as in its training)"""
    greedy: bool = False
    """use the policy's best action, not a sample (drawn from the episode's seed, as in an evaluation)"""


class CommandError(MosaicError):
    """A command that cannot be executed; the session continues."""


def open_session(request: Request) -> "Session":
    """Make the environment and load the policy; raise ConfigError if either is unavailable."""
    seed = random.SystemRandom().getrandbits(31) if request.seed is None else request.seed
    if request.policy_path is None:
        if request.env_id is None:
            raise ConfigError("nothing to play: give --env-id, or --policy-path with a policy that knows its own")
        return Session(replace(request, seed=seed, algo=None), open_scene(request.env_id), None)
    # Imported only now: torch takes seconds, and a user who acts does not need it.
    from cleanrl_worker.evaluation.policy_loader import build_policy, read_policy

    saved = read_policy(request.policy_path, algo=request.algo, env_id=request.env_id)
    if saved.env_id is None:
        raise ConfigError(f"policy {saved.path} does not tell its environment; give --env-id")
    backend = request.env_backend or str(saved.args.get("env_backend", "auto"))
    view = view_of(saved.env_id, saved.args)
    scene = open_scene(saved.env_id, flat=True, atari=saved.is_atari, backend=backend, view=view)
    spaces = types.SimpleNamespace(
        single_observation_space=scene.observation_space, single_action_space=scene.action_space
    )
    return Session(
        replace(request, env_id=saved.env_id, seed=seed, algo=saved.algo), scene, build_policy(saved, spaces)
    )


class Session:
    """An environment, episode after episode; errors of commands and the environment are answered, not raised."""

    def __init__(self, request: Request, scene: Scene, policy: Policy | None) -> None:
        assert request.seed is not None
        self.stopped = False
        self._request = request
        self._scene = scene
        self._policy = self._acting = policy
        self._next_seed = request.seed
        self._rng: np.random.Generator | None = None
        self._obs: Any = None
        self._state = "no episode"
        self._length = 0
        self._reward = 0.0

    def introduction(self) -> Message:
        """Return the first message; it includes the reason if the environment cannot be drawn."""
        assert self._request.seed is not None
        self._scene.reset(self._request.seed)
        self._scene.picture()
        return {
            "type": "init",
            "run_id": self._request.run_id,
            "env_id": self._request.env_id,
            "algo": self._request.algo,
            "policy_path": None if self._policy is None else str(self._request.policy_path),
            "seed": self._request.seed,
            "render_reason": self._scene.no_picture,
        }

    def close(self) -> None:
        self._scene.close()

    def answer(self, line: bytes) -> Iterator[Message]:
        """Execute one command line and yield its answers."""
        try:
            command = _read(line)
            if command["cmd"] == "reset":
                yield self._reset(command.get("seed"))
            elif command["cmd"] == "step":
                yield from self._step(command.get("action"))
            elif command["cmd"] == "ping":
                yield {"type": "pong"}
            else:
                self.stopped = True
        except CommandError as error:
            yield {"type": "error", "message": str(error)}
        except RecursionError:  # lists nested a thousand deep
            yield {"type": "error", "message": "the command is nested too deeply; an action is a number or a list"}
        except EventError as error:
            yield {"type": "error", "message": f'{error}; a command is one JSON object a line: {{"cmd": "step"}}'}
        except EnvironmentFailure as error:
            self._state = "broken"
            yield {"type": "error", "message": str(error)}

    def _reset(self, given: object) -> Message:
        """Start an episode with its own seed, so that it can be replayed; by default, the next number."""
        seed = self._next_seed if given is None else _read_seed(given)
        self._next_seed = (seed + 1) % SEED_LIMIT
        self._rng = None if self._request.greedy else np.random.default_rng(seed)
        self._obs = self._scene.reset(seed)
        self._acting = None if self._policy is None else for_episode(self._policy)
        self._state = "under way"
        self._length, self._reward = 0, 0.0
        shape = self._scene.observation_space.shape
        picture = self._scene.picture()
        reason = {} if picture is not None else {"render_reason": self._scene.no_picture}
        return {
            "type": "ready",
            "run_id": self._request.run_id,
            "env_id": self._request.env_id,
            "seed": seed,
            "observation_shape": None if shape is None else list(shape),
            "action_space": describe_actions(self._scene.action_space),
            "render_payload": picture,
            **reason,
        }

    def _step(self, given: object) -> Iterator[Message]:
        if self._state != "under way":
            raise CommandError(_NOT_UNDER_WAY[self._state])
        action = self._act() if given is None else read_action(given, self._scene.action_space)
        self._obs, reward, terminated, truncated = self._scene.step(action)
        if self._scene.lost_life and self._policy is not None:
            self._acting = for_episode(self._policy)
        self._reward += reward
        self._length += 1
        if terminated or truncated:
            self._state = "over"
        yield {
            "type": "step",
            "step_index": self._length - 1,
            "action": action,
            "observation": _written(self._obs),
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "episode_reward": self._reward,
            "render_payload": self._scene.picture(),
        }
        if terminated or truncated:
            yield {"type": "episode_done", "total_reward": self._reward, "episode_length": self._length}

    def _act(self) -> Any:
        if self._acting is None:
            allowed = allowed_actions(self._scene.action_space)
            raise CommandError(f'no policy is loaded, so a step needs an "action": {allowed}')
        action = self._acting(np.asarray(self._obs)[None], self._rng)[0]
        return int(action) if isinstance(self._scene.action_space, gym.spaces.Discrete) else action


_NOT_UNDER_WAY = {
    "no episode": 'there is no episode yet; send {"cmd": "reset"} first',
    "over": 'the episode is over; send {"cmd": "reset"} for the next',
    "broken": 'the environment failed; send {"cmd": "reset"} for a new episode',
}


def describe_actions(space: gym.Space[Any]) -> Message:
    """Return an action space as JSON, for drawing its controls."""
    if isinstance(space, gym.spaces.Discrete):
        return {"type": "discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, gym.spaces.Box):
        return {"type": "continuous", "shape": list(space.shape), "low": space.low, "high": space.high}
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {"type": "multi_discrete", "nvec": space.nvec, "start": space.start}
    if isinstance(space, gym.spaces.MultiBinary):
        return {"type": "multi_binary", "shape": list(space.shape)}
    return {"type": "other", "text": str(space)}


def allowed_actions(space: gym.Space[Any]) -> str:
    """Return a description of the actions that `read_action` accepts."""
    if isinstance(space, gym.spaces.Discrete):
        return f"a whole number from {space.start} to {space.start + space.n - 1}"
    if isinstance(space, gym.spaces.Box):
        low, high = _range(space.low), _range(space.high)
        return f"a list of shape {list(space.shape)}, numbers from {low} to {high}"
    if isinstance(space, gym.spaces.MultiDiscrete):
        low, high = _range(space.start), _range(space.start + space.nvec - 1)
        return f"a list of shape {list(space.shape)}, whole numbers from {low} to {high}"
    if isinstance(space, gym.spaces.MultiBinary):
        return f"a list of shape {list(space.shape)}, each 0 or 1"
    return f"none that a line of JSON could hold ({space}); let a policy act"


def read_action(given: object, space: gym.Space[Any]) -> Any:
    """Return an action from JSON in the environment's own type."""
    refusal = CommandError(f"action {shown(given)} is not allowed; give {allowed_actions(space)}")
    shape = space.shape
    if shape is None or not isinstance(space, _READABLE) or not _holds_numbers(given):
        raise refusal
    try:
        numbers = np.array(given, np.float64)
        action = numbers if isinstance(given, list) else numbers.reshape(shape)  # a bare 0.5 for a list of one
        with np.errstate(invalid="ignore", over="ignore"):  # a number too large for its type is refused below
            typed = action.astype(space.dtype)
    except (ValueError, OverflowError):  # a ragged list; one number for a list of several
        raise refusal from None
    is_whole = isinstance(space, gym.spaces.Box) or np.array_equal(typed, action)
    if not np.isfinite(action).all() or not is_whole or typed.shape != shape or not space.contains(typed):
        raise refusal
    return int(typed) if isinstance(space, gym.spaces.Discrete) else typed


_READABLE = (gym.spaces.Discrete, gym.spaces.Box, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)


def _holds_numbers(given: object) -> bool:
    if isinstance(given, list):
        return bool(given) and all(_holds_numbers(item) for item in given)
    return isinstance(given, int | float) and not isinstance(given, bool)


def _range(bounds: np.ndarray) -> str:
    return str(bounds.flat[0] if (bounds == bounds.flat[0]).all() else bounds.tolist())


def _read(line: bytes) -> dict[str, Any]:
    command = from_line(line.strip())
    name = command.get("cmd")
    if not isinstance(name, str) or name not in COMMANDS:
        near = nearest(name, COMMANDS) if isinstance(name, str) else ""
        raise CommandError(f"unknown command {shown(name)}{near or '.'} The commands are {', '.join(COMMANDS)}")
    for key in command:
        if key != "cmd" and key not in COMMANDS[name]:
            near = nearest(key, COMMANDS[name]) or f"; it takes {', '.join(COMMANDS[name]) or 'none'}"
            raise CommandError(f"{name} has no field {shown(key)}{near}")
    return command


def _read_seed(given: object) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given < SEED_LIMIT:
        raise CommandError(f"seed {shown(given)} is not allowed; give a whole number from 0 to {SEED_LIMIT - 1}")
    return given


def _written(obs: Any) -> Any:
    """Return the observation, or None if it is too large for a message."""
    return obs if _count(obs) <= OBSERVATION_LIMIT else None


def _count(obs: Any) -> int:
    if isinstance(obs, dict | tuple):
        return sum(_count(item) for item in (obs.values() if isinstance(obs, dict) else obs))
    return int(np.size(obs))
