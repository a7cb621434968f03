"""EnvPool as a backend: imported family by family, with SAME_STEP resets like the others."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.envs import registration
from cleanrl_worker.envs.episodes import Episode, Episodes, Step, View, env_seeds
from cleanrl_worker.envs.video import EpisodeFilm
from mosaic.catalog.games import POOL_FROM, UNDRAWN, near_game, newer_version
from mosaic.catalog.games import atari_game as atari_game
from mosaic.catalog.games import same_game as same_game
from mosaic.contract import extras
from mosaic.contract.errors import nearest as nearest

if TYPE_CHECKING:
    from cleanrl_worker.run.args import RunArgs

# Procgen is last: it may lack system libraries, which must not affect other families.
FAMILIES = ("classic_control", "mujoco.gym", "atari", "toy_text", "box2d", "minigrid", "mujoco.dmc", "procgen")

# Environments for which EnvPool matches Gymnasium and was measured faster, with the minimum number of environments
# (docs/envpool_parity.md); for grid worlds, which need a view, prefixes of ids: all sizes share the same code.
FASTER_FROM = {"Acrobot-v1": 4, "MountainCar-v0": 8, "HalfCheetah-v5": 8, "Hopper-v5": 4}
_GRIDS = "BlockedUnlockPickup DoorKey Empty Fetch FourRooms GoToDoor KeyCorridor LavaGap Memory SimpleCrossing Unlock-"
_LEVELS = "GoToLocal- GoToObj- GoToRedBall OpenRedDoor PickupDist- UnlockLocal-"
FASTER_SEEN = {f"MiniGrid-{name}": 1 for name in _GRIDS.split()} | {f"BabyAI-{name}": 1 for name in _LEVELS.split()}

ATARI_FPS = 15  # 60 Hz screen, every 4th frame


def is_better(args: RunArgs, video_folder: Path | None, view: View | None) -> bool:
    """Return True if `--env-backend auto` selects EnvPool for this run."""
    counts = FASTER_FROM if view is None else FASTER_SEEN
    needed = next((count for name, count in counts.items() if args.env_id.startswith(name)), sys.maxsize)
    suits = args.num_envs >= needed and video_folder is None and args.vectorization == "sync"
    return suits and find_spec("envpool") is not None


def make_seen(env_id: str, num_envs: int, seed: int, video_folder: Path | None, view: View | None) -> PoolEnvs:
    """Return environments with a view's observations, or with their own."""
    name, options = view.pool(env_id) if view else (env_id, {})
    envs = PoolEnvs(lambda seeds: make_pool(name, seeds, **options), num_envs, seed, view=view)
    if video_folder is not None and not can_draw(name):
        raise SystemExit(f"EnvPool's {name} cannot be filmed: leave the video out{_or_gymnasium(name)}")
    envs.film = None if video_folder is None else EpisodeFilm(video_folder, fps=ATARI_FPS)
    return envs


def knows(env_id: str) -> bool:
    """Return True if EnvPool is installed and has the environment."""
    return find_spec("envpool") is not None and env_id in _import_envpool(env_id, FAMILIES).list_all_envs()


def can_draw(env_id: str) -> bool:
    """Return True if EnvPool can draw an environment that it has made."""
    specs = sys.modules["envpool.registration"].registry.specs
    return env_id not in specs or specs[env_id][0] not in UNDRAWN.values()  # an Atari game has other names as well


def plays(env_id: str, backend: str, vectorization: str = "sync", num_envs: int = 1) -> bool:
    """Return True if EnvPool runs these games; `auto` with sync selects it for several, or if only it is installed."""
    ours = env_id.startswith("mosaic/")
    if ours and backend == "envpool":
        raise SystemExit(f"EnvPool has no {env_id}; use --env-backend gymnasium or auto")
    suits = backend == "auto" and not ours and vectorization == "sync" and find_spec("envpool") is not None
    return backend == "envpool" or (suits and (num_envs >= POOL_FROM or find_spec("ale_py") is None))


def flat(space: Any) -> tuple[Any, Callable[[Any], np.ndarray]]:
    """Return the flat space of a discrete or dict space (in Gymnasium's order), and a function to flatten batches."""
    if isinstance(space, gym.spaces.Discrete):
        return gym.spaces.flatten_space(space), lambda obs: np.eye(int(space.n))[obs]
    if not isinstance(space, gym.spaces.Dict) or not all(isinstance(part, gym.spaces.Box) for part in space.values()):
        return space, lambda obs: obs  # already flat; or an image or a grid world, which is never flattened
    row, names = gym.spaces.flatten_space(gym.spaces.Dict(dict(space.spaces))), sorted(space.spaces)
    return row, lambda obs: np.concatenate([obs[name].reshape(len(obs[name]), -1) for name in names], axis=1)


def make_games(
    env_id: str, num_envs: int, seed: int, video_folder: Path | None, *, clip: bool, view: View | None = None
) -> PoolEnvs:
    """Return Atari games as described in `envs.vectors.atari`; without `clip`, with raw rewards."""
    game = find_game(env_id)
    options = {"episodic_life": True, "reward_clip": clip} | (view.pool(game)[1] if view else {})
    games = PoolEnvs(lambda seeds: make_pool(game, seeds, **options), num_envs, seed, lives=True)
    games.film = None if video_folder is None else EpisodeFilm(video_folder, fps=ATARI_FPS)
    return games


def find_game(env_id: str, pool: bool = True) -> str:
    """Return an Atari game's id in EnvPool or, with ale-py registered, in Gymnasium; refuse any other id."""
    registered = (name for name in gym.registry if name.startswith("ALE/"))
    ids = list(_import_envpool(f"{atari_game(env_id)}-v5", ("atari",)).list_all_envs() if pool else registered)
    if found := same_game(env_id, ids):
        return found
    spec = gym.registry.get(env_id)  # CartPole-v1 is not a misspelling of Earthworld-v5
    near = near_game(env_id, ids) if spec is None or "ale_py" in str(spec.entry_point) else ""
    raise SystemExit(
        f"{env_id!r} is no id of an Atari game here{near}{' O' if near else '; o'}ther environments: ppo and dqn"
    )


def make_pool(env_id: str, seeds: list[int], **options: Any) -> Any:
    """Make a pool with one environment for each seed."""
    # render_mode only affects EnvPool's Python side: it costs nothing until a frame is drawn.
    options = {"num_envs": len(seeds), "seed": seeds, "render_mode": "rgb_array", **options}
    try:  # EnvPool lists Procgen's ids without Qt, and fails only when one of them is made
        envpool = _import_envpool(env_id, FAMILIES)
        if env_id in envpool.list_all_envs():
            made = [name for name, spec in gym.registry.items() if not callable(spec.entry_point)]  # as errors are
            if newer := newer_version(env_id, made):
                raise SystemExit(f"environment {env_id!r} is out of date; use {newer!r}")
            return envpool.make_gymnasium(env_id, **options)
    except ImportError as error:
        raise SystemExit(f"{env_id} {extras.told_by(error) or error}") from error
    raise SystemExit(f"EnvPool has no environment {env_id!r}{_or_gymnasium(env_id)}")


class PoolEnvs:
    """An EnvPool in sync mode; with `lives`, a lost life ends an episode for the learner only."""

    backend = "envpool"

    def __init__(
        self,
        make: Callable[[list[int]], Any],
        num_envs: int,
        seed: int,
        lives: bool = False,
        view: View | None = None,
    ) -> None:
        self._make = make
        self._fresh: list[int] | None = env_seeds(seed, num_envs)
        self.pool = make(self._fresh)
        self.lives = lives
        self.film: EpisodeFilm | None = None
        self.num_envs: int = self.pool.config["num_envs"]
        with warnings.catch_warnings():  # float64 bounds cast to float32 spaces: nothing a user can change
            warnings.simplefilter("ignore", UserWarning)
            space = self.pool.observation_space
            self.single_action_space: Any = self.pool.action_space
        self.single_observation_space, self.seen = (view.space(space), view) if view else flat(space)
        self.episodes = Episodes(self.num_envs)
        self.count: Callable[..., list[tuple[int, list[Episode]]]] | None = None
        """set by a caller that steps the pool inside a compiled function; called with rewards and ends"""

    def reset(self, seed: int, first: int = 0) -> np.ndarray:
        """Reset the pool; a used one is recreated (0–0.5 s), as it accepts seeds only at construction."""
        if self.film is not None:  # right after an end, the film has the first frame of an episode that is never played
            self.film.cut() if self.episodes.lengths[0] else self.film.close()
        if (seeds := env_seeds(seed, self.num_envs, first)) != self._fresh:
            self.pool = self._make(seeds)
        self._fresh = None
        self.episodes.clear()
        obs = self.seen(self.pool.reset()[0])
        self.episodes.look(obs)
        self._shoot()
        return obs

    def step(self, actions: np.ndarray) -> Step:
        given, rewards, terminations, truncations, info = self.pool.step(actions)
        obs = final_obs = self.seen(given)
        ends = terminations | truncations
        game_over = (info["terminated"] > 0) | truncations if self.lives else ends
        if self.film is not None:
            self._shoot()
        if ends.any():
            final_obs = obs.copy()
            # A step of only the ended ones is EnvPool's own autoreset: the action is ignored. reset(ids) would start a
            # new game after a lost life, so the agent would only ever play its first one.
            ids = np.flatnonzero(ends).astype(np.int32)
            obs[ids] = self.seen(self.pool.step(actions[ids], ids)[0])
        episodes = self.episodes.add(info["reward"] if self.lives else rewards, game_over, obs)
        if final_obs is not obs:
            self.episodes.look(final_obs)
        if self.film is not None and game_over[0]:
            self.film.cut()
            self._shoot()
        return Step(obs, rewards, terminations, truncations, final_obs, episodes)

    def close(self) -> None:
        if self.film is not None:
            self.film.close()
        self.pool = None

    def render(self, indices: list[int]) -> np.ndarray:
        """Return frames of some environments; only if `can_draw` returns True."""
        return np.asarray(self.pool.render(env_ids=indices))

    def _shoot(self) -> None:
        if self.film is not None and self.film.rolling:
            self.film.add(self.render([0])[0])


def _import_envpool(env_id: str, families: tuple[str, ...]) -> Any:
    """Import EnvPool with families until one has the environment, or with all if none does.

    A plain `import envpool` loads all 17 families and JAX: 3 s and 220 MB. An empty stub for the module that imports
    them, and None for its JAX bridge, reduce this to 0.02 s and 7 MB.
    """
    if find_spec("envpool") is None:
        raise SystemExit(f"EnvPool is not installed: {extras.pip_line('envpool')}{_or_gymnasium(env_id, families)}")
    if "envpool" not in sys.modules:
        sys.modules["envpool.entry"] = types.ModuleType("envpool.entry")
        sys.modules["envpool.python.lax"] = None  # type: ignore[assignment]
        try:
            importlib.import_module("envpool")
        finally:
            del sys.modules["envpool.entry"]
    envpool = sys.modules["envpool"]
    for family in families:
        if env_id in envpool.list_all_envs():
            break
        importlib.import_module(f"envpool.{family}.registration")
    return envpool


def _or_gymnasium(env_id: str, families: tuple[str, ...] = ()) -> str:
    """Return the Gymnasium alternative if it has the environment; Atari's games have other ids there."""
    with contextlib.suppress(ImportError, gym.error.Error):  # a package is missing
        registration.register(env_id)
    known = ":" in env_id or env_id in gym.registry or "atari" in families[:1]
    return ", or use --env-backend gymnasium" * known
