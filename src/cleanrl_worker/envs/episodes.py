"""Steps of vector environments and their episodes; returns and lengths are of raw rewards."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from cleanrl_worker.envs import steps
from cleanrl_worker.envs.finite import LARGE, Guard

LARGEST = 1e37  # of a sum of squares: a larger one may exceed float32


class Episode(NamedTuple):
    """A finished episode: its environment's index, the sum of its raw rewards, and its length."""

    env: int
    ret: float
    length: int


class Step(NamedTuple):
    """The result of one action in every environment."""

    obs: np.ndarray
    """the next observations to act on: after an ended episode, the new episode's first"""
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    final_obs: np.ndarray
    """the observations reached by the action: `obs` itself, or the last one of an ended episode"""
    episodes: list[Episode]
    """the episodes that ended in this step, with raw rewards"""


class VectorEnvs(Protocol):
    """An algorithm's interface to its environments, for any backend."""

    backend: str
    num_envs: int
    single_observation_space: Any
    single_action_space: Any

    @property
    def episodes(self) -> "Episodes": ...

    def reset(self, seed: int, first: int = 0) -> np.ndarray:
        """Reset every environment, each with its own seed of `env_seeds`."""
        ...

    def step(self, actions: np.ndarray) -> Step: ...

    def close(self) -> None: ...


class StagedEnvs:
    """The environments of a curriculum, one stage after the other, presented as a single vector.

    All of them change at once, in `enter`, which the caller must follow with a reset.
    """

    def __init__(self, make: Callable[[str, int], VectorEnvs], env_id: str) -> None:
        self._make, self._env_id, self._number = make, env_id, 0
        self.envs = make(env_id, 0)
        self.backend, self.num_envs = self.envs.backend, self.envs.num_envs
        self.single_observation_space = self.envs.single_observation_space
        self.single_action_space = self.envs.single_action_space

    @property
    def episodes(self) -> "Episodes":
        return self.envs.episodes

    def enter(self, env_id: str) -> None:
        """Close the environments and make those of this stage, unless they are the same."""
        if env_id == self._env_id:
            return
        self.envs.close()
        steps.hand_on()
        # A resumed run makes them at another time: random numbers drawn here must not change the run's generators.
        kept = random.getstate(), np.random.get_state()
        self._env_id, self._number = env_id, self._number + 1
        step, self.envs = self.envs.episodes.step, self._make(env_id, self._number)
        self.envs.episodes.step = step
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        self.require_same_spaces(self.envs, env_id)

    def require_same_spaces(self, envs: VectorEnvs, env_id: str) -> None:
        if (other := spaces_of(envs)) != (ours := spaces_of(self)):
            raise SystemExit(f"a curriculum keeps its spaces, but stage {env_id} has {other}, those before it {ours}")

    def reset(self, seed: int, first: int = 0) -> np.ndarray:
        return self.envs.reset(seed, first)

    def step(self, actions: np.ndarray) -> Step:
        return self.envs.step(actions)

    def close(self) -> None:
        self.envs.close()


def spaces_of(envs: Any) -> str:
    """Return the spaces that the networks depend on, as text; float types are ignored, as backends differ in them."""
    actions = str(envs.single_action_space).replace("float64", "float32")
    return f"observations of shape {envs.single_observation_space.shape} and actions {actions}"


class View(Protocol):
    """An observation transform: `wrap` is for Gymnasium; a call and `pool` (id, options) are for EnvPool."""

    def pool(self, env_id: str) -> tuple[str, dict[str, Any]]: ...

    def wrap(self, env: Any) -> Any: ...

    def space(self, space: Any) -> Any: ...

    def __call__(self, obs: Any) -> np.ndarray: ...


onlooker: Any = None
"""the live view (`cleanrl_worker.fastlane.vector_wrapper`), if the launcher has installed it"""
choosers: Any = None
"""the task chooser (`cleanrl_worker.envs.automatic`), if the launcher has installed it"""


class Episodes:
    """Returns and lengths of the running episodes; `add` returns those that a step ended, and guards its inputs."""

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, dtype=np.int64)
        self.log = steps.step_log(num_envs)
        self.guard = Guard()
        self.step = 0
        """the step of the whole run"""

    def add(self, rewards: np.ndarray, ends: np.ndarray | None, obs: np.ndarray | None = None) -> list[Episode]:
        """Count one step of every environment; `ends` is the mask of ended episodes, None for none."""
        self.step += len(rewards)
        # NaN and infinity propagate into a dot product, which costs 0.3 µs; only then each value is checked
        if not rewards.dot(rewards) < LARGE**2:
            self.guard.check_rewards(rewards, self.step)
        if obs is not None:
            self.look(obs)
        self.log.add(rewards, ends)
        self.returns += rewards
        self.lengths += 1
        if ends is None or not ends.any():
            return []
        finished = [Episode(int(i), float(self.returns[i]), int(self.lengths[i])) for i in np.flatnonzero(ends)]
        self.returns[ends] = 0.0
        self.lengths[ends] = 0
        return finished

    def look(self, obs: np.ndarray) -> None:
        """Check observations for NaN and infinity; integers are always finite."""
        if obs.dtype.kind == "f":
            row = obs.reshape(-1)
            if not row.dot(row) < LARGEST:
                self.guard.check_obs(obs, self.step)

    def clear(self) -> None:
        """Discard the running episodes (every environment was reset)."""
        self.returns[:] = self.lengths[:] = 0


def env_seeds(seed: int, count: int, first: int = 0) -> list[int]:
    """Return the seeds of `count` environments starting at number `first` (31 bits: EnvPool's limit)."""
    return [int(word) >> 1 for word in np.random.SeedSequence(seed).generate_state(first + count)[first:]]


def episode_seed(seed: int, episode: int) -> int:
    """Return the seed of one episode of an environment or of an evaluation (31 bits)."""
    return int(np.random.SeedSequence((seed, episode)).generate_state(1)[0]) >> 1


def is_due(every: int, previous: int, step: int) -> bool:
    """Return True if (previous, step] has a multiple of `every`: once per period for any number of environments."""
    return every > 0 and step // every > previous // every
