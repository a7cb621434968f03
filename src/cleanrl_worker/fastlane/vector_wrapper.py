"""The live view of our own algorithms: vectors of environments, evaluations, and probes if those cannot be drawn.

The launcher installs it (`envs.episodes.onlooker`) after importing an algorithm and before calling `main`. Its wrappers
forward every call unchanged; an unwatched step costs one comparison of times.
"""

import contextlib
import sys
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv

from cleanrl_worker.envs import episodes, play
from cleanrl_worker.envs.episodes import Episode, Episodes, Step, VectorEnvs
from cleanrl_worker.envs.pools import PoolEnvs, can_draw
from cleanrl_worker.envs.vectors import GymnasiumEnvs, SyncEnvs
from cleanrl_worker.envs.views import plays_frames, view_of
from cleanrl_worker.fastlane.gym_wrapper import EnvPicture, current, why_no_picture
from cleanrl_worker.fastlane.pacer import NoPicture, tiled
from cleanrl_worker.learn.normalize import RunningStatistics
from cleanrl_worker.run.args import RunArgs
from cleanrl_worker.run.policy import Policy, normalized

POLICY_SECONDS = 2.0  # maximum age of a probe's policy
EVAL, PROBE = "(Eval)", "(Probe)"

Picture = Callable[[float, int], Any]
"""A map from reward and steps so far to a frame, or None if the renderer draws it."""


def install() -> None:
    """Install the onlooker if this run's live view is on."""
    view = current()
    if view is not None:
        view.wraps = False  # vectors are watched as a whole, except an async one's environments in their processes
        episodes.onlooker = Onlooker(view)


class Onlooker:
    """A hook that receives a run's environments, its learner, and its final evaluation."""

    def __init__(self, view: EnvPicture) -> None:
        self._view = view
        self._parts: Mapping[str, Any] = {}
        self._watched: WatchedEnvs | None = None
        self._evaluated = False

    def training(self, envs: VectorEnvs, args: RunArgs) -> VectorEnvs:
        """Return the environments wrapped for watching; in a curriculum, called for each stage as it begins."""
        if args.curriculum_schedule or args.curriculum:
            self._view.lane.begin(f"({args.env_id})")
        if isinstance(envs, GymnasiumEnvs) and isinstance(envs.envs, AsyncVectorEnv):
            return envs  # each of its processes shows its own environment
        lane = self._view.lane
        settings = lane.settings
        if settings.mode == "single" and settings.slot >= envs.num_envs:
            count = envs.num_envs
            lane.give_up(f"fastlane_slot {settings.slot}: there are {count} environments, 0 to {count - 1}")
            return envs
        shown = list(range(min(settings.limit, envs.num_envs))) if settings.mode == "grid" else [settings.slot]
        picture = self._picture_of(envs, args, shown)
        if picture is None:
            return envs
        before = 0 if self._watched is None else self._watched.ticks
        self._watched = WatchedEnvs(envs, self._view, picture, shown[0], before)
        return self._watched

    def evaluation(self, game: play.Game, env_id: str) -> play.Game:
        """Return an evaluation's first game wrapped for watching; parallel games are not watched."""
        lane = self._view.lane
        if self._evaluated:
            return game
        self._evaluated = True
        lane.begin(EVAL)
        if isinstance(game, play.FlatGame):
            env = game.env
            if reason := why_no_picture(env):
                lane.give_up(reason)
                return game
            return WatchedGame(game, self._view, lambda reward, steps: self._view.camera.picture([env], reward, steps))
        if isinstance(game, play.VectorGame) and isinstance(pool := game.envs, PoolEnvs) and can_draw(env_id):
            return WatchedGame(game, self._view, lambda reward, steps: pool.render([0])[0])
        lane.give_up(_undrawn(env_id))
        return game

    def learner(self, parts: Mapping[str, Any], args: RunArgs) -> None:
        """Register the parts of the training state; a probe uses the policy."""
        self._parts = parts

    def note(self, text: str) -> None:
        """Show a line below the frame."""
        if self._view.lane.writer is not None:
            self._view.lane.writer.tell(note=text)

    def _picture_of(self, envs: VectorEnvs, args: RunArgs, shown: list[int]) -> Picture | None:
        lane, camera = self._view.lane, self._view.camera
        one = lane.settings.mode == "single"
        if isinstance(envs, SyncEnvs):
            chosen = [envs.envs[index] for index in shown]
            if reason := why_no_picture(chosen[0]):
                lane.give_up(reason)
                return None
            return lambda reward, steps: camera.picture(chosen, reward, steps)
        if isinstance(envs, PoolEnvs) and can_draw(args.env_id):
            pool = envs
            return lambda reward, steps: (
                pool.render(shown)[0] if one else tiled(list(pool.render(shown)), lane.settings.max_dim)
            )
        if isinstance(envs, GymnasiumEnvs):
            native: Any = envs.envs.unwrapped
            if "rgb_array" in (native.metadata.get("render_modes") or ()) and hasattr(native, "render_mode"):
                native.render_mode = "rgb_array"  # set here, since not every vector version accepts it as an argument
                return lambda reward, steps: (
                    native.render()[shown[0]]
                    if one
                    else tiled([native.render()[index] for index in shown], lane.settings.max_dim)
                )
        return Probe(self._view, args, lambda: self._parts)


class WatchedEnvs:
    """A watched vector of environments that returns every value unchanged."""

    def __init__(self, envs: VectorEnvs, view: EnvPicture, picture: Picture, shown: int, ticks: int = 0) -> None:
        self.envs = envs
        self.backend, self.num_envs = envs.backend, envs.num_envs
        self.single_observation_space = envs.single_observation_space
        self.single_action_space = envs.single_action_space
        self._step, self._lane = envs.step, view.lane
        self._view, self._picture, self._shown = view, picture, shown
        self.ticks = ticks
        """steps of each environment, including earlier stages"""

    @property
    def episodes(self) -> Episodes:
        return self.envs.episodes

    def reset(self, seed: int, first: int = 0) -> np.ndarray:
        return self.envs.reset(seed, first)

    def step(self, actions: np.ndarray) -> Step:
        reached = self._step(actions)
        self.ticks += 1
        lane = self._lane
        if reached.episodes:
            for episode in reached.episodes:
                lane.episode(episode.ret)
        if monotonic() >= lane.next and lane.is_watched():
            self._show(float(reached.rewards[self._shown]), self.ticks * self.num_envs)
        return reached

    def count(self, rewards: np.ndarray, ends: np.ndarray, *real: np.ndarray) -> list[tuple[int, list[Episode]]]:
        """Count a rollout that was stepped inside a compiled function; show at most one frame of it."""
        ended: list[tuple[int, list[Episode]]] = self.envs.count(rewards, ends, *real)  # type: ignore[attr-defined]
        self.ticks += len(rewards)
        for _, some in ended:
            for episode in some:
                self._lane.episode(episode.ret)
        if monotonic() >= self._lane.next and self._lane.is_watched():
            self._show(float(rewards[-1, self._shown]), self.ticks * self.num_envs)
        return ended

    def close(self) -> None:
        self._view.camera.close()
        self.envs.close()

    def _show(self, reward: float, steps: int) -> None:
        self._lane.show(lambda: self._picture(reward, steps), reward, steps)


class WatchedGame:
    """A watched game that returns every value unchanged."""

    lost_life = False

    def __init__(self, game: play.Game, view: EnvPicture, picture: Picture) -> None:
        self.game = game
        self.single_observation_space = game.single_observation_space
        self.single_action_space = game.single_action_space
        self._view, self._picture = view, picture
        self._steps, self._return = 0, 0.0

    def start(self, episode: int, seed: int) -> np.ndarray:
        self._return = 0.0
        return self.game.start(episode, seed)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        reached = self.game.step(action)
        self.lost_life = self.game.lost_life
        _, reward, ended = reached
        lane = self._view.lane
        self._steps += 1
        self._return += reward
        if ended:
            lane.episode(self._return)
        if lane.due():
            lane.show(lambda: self._picture(reward, self._steps), reward, self._steps)
        return reached

    def close(self) -> None:
        self._view.camera.close()
        self.game.close()


class Probe:
    """A separate environment, labelled as a probe, in which the newest policy plays one step per frame.

    Its policy is a copy and its random generator separate: training is not affected.
    """

    def __init__(self, view: EnvPicture, args: RunArgs, parts: Callable[[], Mapping[str, Any]]) -> None:
        self._view, self._args, self._parts = view, args, parts
        self._module = sys.modules[type(args).__module__]
        self._rng = np.random.default_rng(0)
        self._game: play.Game | None = None
        self._policy: Policy | None = None
        self._obs = np.empty(0)
        self._renewed = 0.0
        self._episode = 0
        view.lane.begin(PROBE)

    def __call__(self, reward: float, steps: int) -> Any:
        game = self._game or self._open()
        self._obs, _, ended = game.step(self._newest()(self._obs, self._rng))
        if ended:
            self._start(game)
        elif game.lost_life:
            self._policy = self._policy and play.for_episode(self._policy)
        if isinstance(game, play.FlatGame):
            return self._view.camera.picture([game.env], reward, steps)
        assert isinstance(game, play.VectorGame) and isinstance(game.envs, PoolEnvs)
        return game.envs.render([0])[0]

    def _open(self) -> play.Game:
        atari = plays_frames(getattr(self._module, "FAMILIES", ()), self._args.env_id, vars(self._args))
        try:
            view = view_of(self._args.env_id, vars(self._args))
            game = play.make_game(self._args.env_id, atari=atari, backend="auto", view=view)
        except (SystemExit, gym.error.Error) as error:
            known = self._args.env_id in gym.registry
            raise NoPicture(str(error) if known else _undrawn(self._args.env_id)) from error
        if isinstance(game, play.FlatGame) and (reason := why_no_picture(game.env)):
            raise NoPicture(reason)
        self._start(game)
        self._game = game
        return game

    def _start(self, game: play.Game) -> None:
        self._obs = game.start(self._episode, play.episode_seed(self._args.seed, self._episode))
        self._episode += 1
        self._policy = self._policy and play.for_episode(self._policy)

    def _newest(self) -> Policy:
        """Return the policy with the current weights and observation statistics; rebuilt every few seconds."""
        if self._policy is None or monotonic() - self._renewed > POLICY_SECONDS:
            parts = self._parts()
            with _torch_untouched():
                policy = self._module.load_policy(parts["policy"].state_dict(), self._game, vars(self._args))
            seen = parts.get("observations")
            if isinstance(seen, RunningStatistics):
                policy = normalized(policy, {"mean": seen.mean.copy(), "var": seen.var.copy()})
            self._policy, self._renewed = policy, monotonic()
        return self._policy


def _undrawn(env_id: str) -> str:
    """Return why an EnvPool task is not shown, and an alternative: drawing its MuJoCo ends the process."""
    known = env_id in gym.registry
    instead = "env_backend gymnasium" if known else "env_id dm_control/…-v0, the same task in Gymnasium,"
    return f"EnvPool cannot draw {env_id}: with {instead} it can be watched"


@contextlib.contextmanager
def _torch_untouched() -> Any:
    """Restore torch's generator afterwards: building a network samples from it, which must not affect training."""
    torch = sys.modules.get("torch")
    with contextlib.nullcontext() if torch is None else torch.random.fork_rng(devices=[]):
        yield
