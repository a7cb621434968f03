"""Vector environments: Gymnasium sync, async and native, and EnvPool, all with the same autoreset mode.

Every backend behaves as SAME_STEP: the step that ends an episode returns the next episode's first observation as `obs`
and the episode's last one in `final_obs`, so no transition ever crosses a reset.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from cleanrl_worker.envs import courses, episodes, pools, registration
from cleanrl_worker.envs.episodes import Episodes, StagedEnvs, Step, VectorEnvs, View, env_seeds
from cleanrl_worker.envs.finite import Guard, wrong_step
from cleanrl_worker.envs.registration import OWN
from cleanrl_worker.envs.seeding import NewWorld, SeededEpisodes
from cleanrl_worker.envs.video import FilmWrapper
from mosaic.contract import extras
from mosaic.contract.drawing import choose_gl
from mosaic.contract.stopping import heed_only

if TYPE_CHECKING:
    from cleanrl_worker.run.args import RunArgs

ACTION_KINDS = {
    gym.spaces.Discrete: "discrete",
    gym.spaces.Box: "continuous",
    gym.spaces.MultiDiscrete: "multi_discrete",
}
SMALLEST_SIDE = 36  # minimum pixels for the three convolutions of an image network


def vector(args: RunArgs, video_folder: Path | None = None, view: View | None = None) -> VectorEnvs:
    """Return environments of the `--env-backend`, with flat observations or those of a view."""
    if args.env_backend == "auto" and all(map(only_envpool_has, courses.stage_ids(args) or [args.env_id])):
        args.env_backend = "envpool"  # also for its evaluations
    return _presented(args, video_folder, lambda args, folder: _driven(args, _vector(args, folder, view), view))


def _vector(args: RunArgs, video_folder: Path | None, view: View | None) -> VectorEnvs:
    if args.env_backend == "envpool" or (args.env_backend == "auto" and pools.is_better(args, video_folder, view)):
        return pools.make_seen(args.env_id, args.num_envs, args.seed, video_folder, view)
    makers = [EnvMaker(args.env_id, video_folder if i == 0 else None, view=view) for i in range(args.num_envs)]
    if args.vectorization == "sync":
        return SyncEnvs(makers)
    if args.vectorization == "async":
        return GymnasiumEnvs(AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP))
    if video_folder is not None:
        raise SystemExit("--capture-video needs --vectorization sync or async: a native vector is not filmed")
    return GymnasiumEnvs(make_native(args.env_id, args.num_envs))


def atari(args: RunArgs, video_folder: Path | None = None, view: View | None = None) -> VectorEnvs:
    """Return games with DQN's preprocessing: four grey 84×84 frames, lives as episodes, rewards clipped to ±1.

    These are our own and Atari's: from EnvPool, from ale-py one by one (`--vectorization sync`) or as its own vector
    (`native`).
    """
    return _presented(args, video_folder, lambda args, folder: _atari(args, folder, view))


def _atari(args: RunArgs, video_folder: Path | None, view: View | None) -> VectorEnvs:
    if pools.plays(args.env_id, args.env_backend, args.vectorization, args.num_envs):
        return pools.make_games(args.env_id, args.num_envs, args.seed, video_folder, clip=True, view=view)
    if args.vectorization == "async":
        raise SystemExit("--vectorization async is not for games of frames: use sync, native, or sync on EnvPool")
    if args.vectorization == "sync":
        folders = [video_folder, *[None] * (args.num_envs - 1)]
        return GameEnvs([EnvMaker(args.env_id, folder, view=view, frames=True, lives=True) for folder in folders])
    if video_folder is not None:
        raise SystemExit("--capture-video needs --vectorization sync or --env-backend envpool: ale-py's is not filmed")
    game = args.env_id if args.env_id in OWN else f"ALE/{pools.atari_game(args.env_id)}-v5"
    register_plugins(game)
    if game not in OWN:
        game = pools.find_game(args.env_id, pool=False)
    options = {"reward_clipping": False, "repeat_action_probability": 0.0} | (view.pool(game)[1] if view else {})
    return GymnasiumEnvs(make_native(game, args.num_envs, **options), lives=True)


def _presented(args: RunArgs, folder: Path | None, make: Callable[[RunArgs, Path | None], VectorEnvs]) -> VectorEnvs:
    """Return a run's environments: with the guard and the live view, and a curriculum's stages one after the other."""

    def made(args: RunArgs, folder: Path | None, watch: bool = True) -> VectorEnvs:
        with plain_refusals(args.env_id):
            envs = make(args, folder)
        envs.episodes.guard = Guard(args.nonfinite, args.env_id)
        return episodes.onlooker.training(envs, args) if watch and episodes.onlooker else envs

    if not (env_ids := courses.stage_ids(args)):
        return made(args, folder)
    staged = StagedEnvs(
        lambda env_id, number: made(replace(args, env_id=env_id), folder and folder / f"stage-{number}"), env_ids[0]
    )
    one = replace(args, num_envs=1, vectorization="native" if args.vectorization == "native" else "sync")
    for env_id in dict.fromkeys(env_ids[1:]):  # refuse now, not after hours of earlier stages
        looked_at = made(replace(one, env_id=env_id), None, watch=False)
        looked_at.close()
        staged.require_same_spaces(looked_at, env_id)
    return staged


@dataclass(frozen=True)
class EnvMaker:
    """A picklable factory of one Gymnasium environment, flat or with a view.

    With `frames` it makes a game as described in `atari`; with `lives`, a lost life ends an episode.
    """

    env_id: str
    video_folder: Path | None = None
    render: bool = False
    view: View | None = None
    frames: bool = False
    lives: bool = False

    def __call__(self) -> gym.Env[Any, Any]:
        if (run := multiprocessing.parent_process()) is not None and run.pid:  # a stopping run still needs this process
            heed_only(run.pid)
        choose_gl(os.environ)
        game = self.frames and self.env_id not in OWN
        env_id = "mosaic/Atari-v0" if game else self.env_id
        register_plugins(env_id)
        # an environment may not accept render_mode: pass it only if needed
        drawn = self.render or self.video_folder is not None
        options: dict[str, Any] = {"render_mode": "rgb_array"} if drawn else {}
        options |= {"game": self.env_id, "lives": self.lives} if game else {}
        env = gym.make(env_id, disable_env_checker=True, **options)
        if type(getattr(env.unwrapped, "world", None)).__name__ == "b2World":
            env = NewWorld(env)
        if self.video_folder is not None:
            env = FilmWrapper(env, self.video_folder)
        if self.view is not None:
            env = self.view.wrap(env)
        elif not self.frames:
            env = self._flattened(env)
        return SeededEpisodes(env)

    def _flattened(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        """Return the environment with flat observations; refuse text, graphs, sequences and images."""
        if isinstance(env.observation_space, gym.spaces.Box) and len(env.observation_space.shape) == 1:
            return env
        with contextlib.suppress(NotImplementedError):  # a custom space, such as MiniGrid's mission
            flat = gym.wrappers.FlattenObservation(env)
            if isinstance(flat.observation_space, gym.spaces.Box) and not is_image(env.observation_space):
                return flat
        raise not_flat(self.env_id, env.observation_space)


class SyncEnvs:
    """Gymnasium environments stepped sequentially in this process.

    Gymnasium's own SyncVectorEnv gathers `info` and copies more than needed: 1.6 times this loop's time on CartPole.
    """

    backend = "gymnasium"

    def __init__(self, makers: list[Callable[[], gym.Env[Any, Any]]] | list[EnvMaker]) -> None:
        self.envs = [make() for make in makers]
        self.num_envs = len(self.envs)
        self.single_observation_space: Any = self.envs[0].observation_space
        self.single_action_space: Any = self.envs[0].action_space
        self._discrete = isinstance(self.single_action_space, gym.spaces.Discrete)
        self._shape = (self.num_envs, *(self.single_observation_space.shape or ()))
        self._dtype: Any = self.single_observation_space.dtype
        self._single = self.single_observation_space.shape
        self.episodes = Episodes(self.num_envs)
        self._nowhere = np.zeros(self.num_envs, dtype=bool)  # returned by each step that ends no episode
        self._nowhere.flags.writeable = False

    def reset(self, seed: int, first: int = 0) -> np.ndarray:
        self.episodes.clear()
        obs = np.empty(self._shape, self._dtype)
        for index, (env, own) in enumerate(zip(self.envs, env_seeds(seed, self.num_envs, first), strict=True)):
            obs[index] = self._fitting(index, env.reset(seed=own)[0])
        self.episodes.look(obs)
        return obs

    def step(self, actions: np.ndarray) -> Step:
        obs = final_obs = np.empty(self._shape, self._dtype)
        rewards = np.empty(self.num_envs)
        terminations = truncations = self._nowhere
        # tolist: the environments' own checks are fastest with plain ints
        for index, action in enumerate(actions.tolist() if self._discrete else actions):
            env = self.envs[index]
            seen, paid, terminated, truncated, _ = env.step(action)
            plain = getattr(seen, "shape", None) == self._single and seen.dtype == self._dtype
            obs[index] = seen if plain else self._fitting(index, seen, paid)
            try:
                rewards[index] = paid
            except (TypeError, ValueError):
                raise self._wrong(index, seen, paid) from None
            if paid is None:  # numpy would write NaN
                raise self._wrong(index, seen, paid)
            if terminated or truncated:
                if final_obs is obs:
                    final_obs = obs.copy()
                    terminations, truncations = self._nowhere.copy(), self._nowhere.copy()
                final_obs[index] = obs[index]
                terminations[index], truncations[index] = terminated, truncated
                obs[index] = self._fitting(index, env.reset()[0])
            elif final_obs is not obs:
                final_obs[index] = obs[index]
        if final_obs is obs:
            self.episodes.add(rewards, None, obs)
            return Step(obs, rewards, terminations, truncations, obs, [])
        ended = self.episodes.add(rewards, self._over(terminations | truncations), obs)
        self.episodes.look(final_obs)
        return Step(obs, rewards, terminations, truncations, final_obs, ended)

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _fitting(self, index: int, obs: Any, reward: Any = 0.0) -> Any:
        """Return an observation of the declared shape and dtype; refuse any other in one line."""
        kind: Any = getattr(obs, "dtype", self._dtype)
        if np.shape(obs) != self._single or not np.can_cast(kind, self._dtype, "same_kind"):
            raise self._wrong(index, obs, reward)
        return obs

    def _wrong(self, index: int, obs: Any, reward: Any) -> SystemExit:
        return wrong_step(self.episodes.guard.env_id, index, self.single_observation_space, obs, reward)

    def _over(self, ends: np.ndarray) -> np.ndarray:
        """Return the mask of the ends that end an episode."""
        return ends


class GameEnvs(SyncEnvs):
    """Games stepped sequentially; for the learner only, a lost life ends an episode and rewards are clipped."""

    def step(self, actions: np.ndarray) -> Step:
        reached = super().step(actions)
        return reached._replace(rewards=np.sign(reached.rewards))

    def _over(self, ends: np.ndarray) -> np.ndarray:
        return ends & [getattr(env.unwrapped, "ended_game", True) for env in self.envs]


class GymnasiumEnvs:
    """A Gymnasium vector environment in SAME_STEP mode; with `lives`, a lost life ends an episode for the learner only.

    ale-py's own `episodic_life` starts a new game after each life, so the agent would only ever play its first one:
    here the game continues, and a decrease of `lives` is reported as a termination.
    """

    backend = "gymnasium"

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any], lives: bool = False) -> None:
        self.envs = envs
        self.num_envs = envs.num_envs
        self.single_observation_space: Any = envs.single_observation_space
        self.single_action_space: Any = envs.single_action_space
        self._has_lives = lives
        self._lives = np.zeros(self.num_envs)
        self.episodes = Episodes(self.num_envs)

    def reset(self, seed: int, first: int = 0) -> np.ndarray:
        self.episodes.clear()
        # a native vector seeds its environments itself, with consecutive seeds
        ours = isinstance(self.envs, AsyncVectorEnv)
        seeds: Any = env_seeds(seed, self.num_envs, first) if ours else seed + first
        obs, info = self.envs.reset(seed=seeds)
        if self._has_lives:
            self._lives = np.array(info["lives"])
        self.episodes.look(obs)
        return np.array(obs)

    def step(self, actions: np.ndarray) -> Step:
        obs, rewards, terminations, truncations, info = self.envs.step(actions)
        obs = final_obs = np.array(obs)  # vector environments reuse their buffers
        ends = terminations | truncations
        if ends.any():
            final_obs = obs.copy()
            for index in np.flatnonzero(ends):
                final_obs[index] = info["final_obs"][index]
        ended = self.episodes.add(rewards, ends, obs)
        if final_obs is not obs:
            self.episodes.look(final_obs)
        if self._has_lives:
            terminations = terminations | (info["lives"] < self._lives)
            self._lives = np.array(info["lives"])
            rewards = np.sign(rewards)
        return Step(obs, rewards, terminations, truncations, final_obs, ended)

    def close(self) -> None:
        self.envs.close()


def make_native(env_id: str, num_envs: int, **options: Any) -> gym.vector.VectorEnv[Any, Any, Any]:
    """Return the environment's own vector version; refuse one that cannot reset in the step that ends an episode."""
    register_plugins(env_id)
    if gym.spec(env_id).vector_entry_point is None:
        raise SystemExit(f"{env_id} has no vector version of its own; use --vectorization sync or async")
    same_step: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}
    try:
        envs = gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **same_step, **options)
    except TypeError:  # its constructor has no autoreset_mode
        envs = gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **options)
    if envs.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
        raise SystemExit(
            f"the vector version of {env_id} resets one step late (it has no SAME_STEP mode) and would mix episodes; "
            "use --vectorization sync or async"
        )
    return envs


def register_plugins(env_id: str) -> None:
    """Register the environments behind an id; raise SystemExit if a package is missing."""
    with plain_refusals(env_id):
        registration.register(env_id)


def only_envpool_has(env_id: str) -> bool:
    """Return True if EnvPool is installed and has an environment that Gymnasium does not know."""
    register_plugins(env_id)
    return ":" not in env_id and env_id not in gym.registry and pools.knows(env_id)


def not_flat(env_id: str, space: Any) -> SystemExit:
    """Return the refusal of observations that cannot be flat; learning from a flattened image would silently fail."""
    images = "; for images take ppo_jax, ppo_atari, ppo_procgen or others of: mosaic algos" * is_image(space)
    return SystemExit(f"the observations of {env_id} cannot be made flat: {space}{images}")


def is_image(space: Any) -> bool:
    large = isinstance(space, gym.spaces.Box) and len(space.shape) == 3 and sorted(space.shape)[1] >= SMALLEST_SIDE
    return large and space.dtype == np.uint8


@contextlib.contextmanager
def plain_refusals(env_id: str) -> Iterator[None]:
    """Refuse an unknown id or a missing package in one line."""
    try:
        yield
    except (gym.error.Error, ImportError) as error:
        if needs := extras.told_by(error):
            raise SystemExit(f"{env_id} {needs}") from None
        pool = _or_envpool(env_id) if isinstance(error, gym.error.UnregisteredEnv) else ""
        raise SystemExit(f"cannot make the environment {env_id!r}: {' '.join(str(error).split())}{pool}") from error


def _or_envpool(env_id: str) -> str:
    """Return the EnvPool alternative if it has or may have the environment."""
    if importlib.util.find_spec("envpool") is None:
        return f" (ids of EnvPool alone need {extras.pip_line('envpool')})"
    return " (ids of EnvPool alone need --env-backend envpool)" * pools.knows(env_id)


def _driven(args: RunArgs, envs: VectorEnvs, view: View | None) -> VectorEnvs:
    """Refuse observations that are not flat without a view, and actions outside the algorithm's ACTION_SPACES."""
    for what, space in (("observation", envs.single_observation_space), ("action", envs.single_action_space)):
        if 0 in (getattr(space, "shape", None) or ()):
            envs.close()
            raise SystemExit(f"{args.env_id} has an empty {what} space: {space}; one value or more is needed")
    if view is None and len(envs.single_observation_space.shape or ()) != 1:
        envs.close()
        raise not_flat(args.env_id, envs.single_observation_space)
    space = envs.single_action_space
    kind = next((name for base, name in ACTION_KINDS.items() if isinstance(space, base)), type(space).__name__)
    driven = getattr(sys.modules[type(args).__module__], "ACTION_SPACES", (kind,))
    if kind not in driven:
        envs.close()
        drives = f"{args.algo_name} drives {' and '.join(driven)} actions"
        raise SystemExit(f"{drives}, but {args.env_id} takes {kind} ones; find one that does with: mosaic algos")
    if kind == "discrete" and space.start != 0:
        envs.close()
        raise SystemExit(f"the actions of {args.env_id} count from {space.start}; wrap it so that they count from 0")
    return envs
