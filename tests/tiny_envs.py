"""Environments so small that every return, ending and value is known exactly."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from safetensors.numpy import save_file


class Corridor(gym.Env[np.ndarray, Any]):
    """`length` steps, each with reward 1, ending as told; the observation is (steps done, episode number).

    With `scaled` it is (share of the steps done, 1), and the last one looks like the first: a value that bootstraps
    from it uses nothing the network was not trained on.
    """

    def __init__(
        self,
        length: int = 5,
        truncates: bool = False,
        continuous: bool = False,
        scaled: bool = False,
        limit: float = 2.0,
    ) -> None:
        self.length, self.truncates, self.scaled = length, truncates, scaled
        self.observation_space = gym.spaces.Box(-1000.0, 1000.0, (2,), np.float32)
        self.action_space = gym.spaces.Box(-limit, limit, (1,), np.float32) if continuous else gym.spaces.Discrete(2)
        self.episode = -1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.episode += 1
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        end = self.steps == self.length
        return self._obs(), 1.0, end and not self.truncates, end and self.truncates, {}

    def _obs(self) -> np.ndarray:
        scaled = [self.steps % self.length / self.length, 1.0]
        return np.array(scaled if self.scaled else [self.steps, self.episode], np.float32)


class TwoRooms(gym.Env[np.ndarray, Any]):
    """An episode starts in a room that costs 20 to leave, then stays where each step gives 1; truncated after 4 steps.

    The final observation is worth far more than the next episode's first: bootstrapping from the wrong one shows.
    """

    def __init__(self, continuous: bool = False) -> None:
        self.observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32) if continuous else gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._obs(), -20.0 if self.steps == 1 else 1.0, False, self.steps == 4, {}

    def _obs(self) -> np.ndarray:
        second = self.steps > 0
        return np.array([second, not second], np.float32)


class Dark(Corridor):
    """A corridor in which every frame is the same, so that its value is one number, that of all steps alike."""

    def __init__(self, truncates: bool, length: int = 5) -> None:
        super().__init__(length, truncates)
        self.observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)

    def _obs(self) -> np.ndarray:
        return np.full((4, 84, 84), 255, np.uint8)


class Dawns(gym.Env[np.ndarray, Any]):
    """Episodes of one black screen, then white ones: one is truncated after 4 steps, the next ends after 6, in turns.

    So the last screens of the first look like the fifth of the second, which a memory does not tell apart either.
    With `players` each of them has screens of its own, which tell whose they are.
    """

    def __init__(self, players: int = 0) -> None:
        shape = (players, 4 + players, 84, 84) if players else (4, 84, 84)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.action_space: gym.Space[Any] = (
            gym.spaces.MultiDiscrete([2] * players) if players else gym.spaces.Discrete(2)
        )
        self.rewards = np.ones(players)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.episode = 0 if seed is not None else self.episode + 1
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        odd = bool(self.episode % 2)
        return self._obs(), 1.0, odd and self.steps == 6, not odd and self.steps == 4, {}

    def _obs(self) -> np.ndarray:
        return np.full(self.observation_space.shape, 255 * (self.steps > 0), np.uint8)


class VectorCorridor(gym.vector.VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """A native vector version that reuses its buffers, as real ones do."""

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP, **options: Any) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": autoreset_mode}
        self.lanes = [Corridor(**options) for _ in range(num_envs)]
        self.single_observation_space = self.lanes[0].observation_space
        self.single_action_space = self.lanes[0].action_space
        self._buffer = np.zeros((num_envs, 2), np.float32)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        for index, lane in enumerate(self.lanes):
            self._buffer[index] = lane.reset()[0]
        return self._buffer, {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        results = [lane.step(action) for lane, action in zip(self.lanes, actions, strict=True)]
        terminations, truncations = (np.array([result[at] for result in results]) for at in (2, 3))
        final = np.array([result[0] for result in results])
        for index, lane in enumerate(self.lanes):
            ended = terminations[index] or truncations[index]
            self._buffer[index] = lane.reset()[0] if ended else final[index]
        info = {"final_obs": final} if (terminations | truncations).any() else {}
        return self._buffer, np.ones(self.num_envs), terminations, truncations, info


def register() -> None:
    """Corridors that terminate or truncate: counting ones, and scaled ones with discrete or continuous actions."""
    if "Tiny/TwoRooms-v0" not in gym.registry:
        gym.register("Tiny/TwoRooms-v0", entry_point=TwoRooms)
        gym.register("Tiny/TwoRoomsContinuous-v0", entry_point=TwoRooms, kwargs={"continuous": True})
        wide = {"scaled": True, "continuous": True, "limit": 3.0}
        gym.register("Tiny/WideContinuous-v0", entry_point=Corridor, kwargs=wide)
    for ending in ("Terminating", "Truncating"):
        for kind in ("", "Scaled", "ScaledContinuous"):
            env_id = f"Tiny/{ending}{kind}-v0"
            if env_id in gym.registry:
                continue
            options = {
                "truncates": ending == "Truncating",
                "scaled": "Scaled" in kind,
                "continuous": "Continuous" in kind,
            }
            gym.register(env_id, entry_point=Corridor, vector_entry_point=VectorCorridor, kwargs=options)


class LateCorridor(VectorCorridor):
    """Knows no autoreset mode but NEXT_STEP."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)


def small_lesson(actions: int = 3, offline_steps: int = 20) -> dict[str, Any]:
    """QDagger's own parameters for a training of a second, its teacher included."""
    lesson = {"teacher_steps": 40, "offline_steps": offline_steps, "teacher_eval_episodes": 1}
    return {**lesson, "teacher_policy_path": str(_teacher(actions))}


@functools.cache
def _teacher(actions: int) -> Path:
    """The policy file of a DQN for images that has learned nothing; numpy writes it without loading torch."""
    folder = Path(tempfile.mkdtemp(prefix="mosaic-teacher-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shapes = {0: (32, 4, 8, 8), 2: (64, 32, 4, 4), 4: (64, 64, 3, 3), 7: (512, 3136), 9: (actions, 512)}
    rng, state = np.random.default_rng(0), {}
    for number, shape in shapes.items():
        state[f"network.{number}.weight"] = rng.normal(0.0, 0.05, shape).astype(np.float32)
        state[f"network.{number}.bias"] = np.zeros(shape[0], np.float32)
    save_file(state, folder / "dqn_atari.cleanrl_model")
    return folder / "dqn_atari.cleanrl_model"
