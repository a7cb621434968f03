"""One run of an algorithm: its folder, seeds, device, metrics and policy files."""

import random
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cleanrl_worker.envs import episodes, play, pools, steps
from cleanrl_worker.envs.courses import course_of
from cleanrl_worker.envs.episodes import Episode, StagedEnvs, VectorEnvs, View
from cleanrl_worker.envs.finite import Guard
from cleanrl_worker.run import heap
from cleanrl_worker.run import policy as policies
from cleanrl_worker.run.args import RunArgs, about, as_json
from cleanrl_worker.run.checkpoint import Memory, Part, leaves
from cleanrl_worker.run.policy import Policy
from cleanrl_worker.run.record import Record, file_name, make_folder
from cleanrl_worker.run.resume import REQUEUE, Continuation
from cleanrl_worker.run.split import Split
from mosaic.contract import companions
from mosaic.contract.returns import BEST_EPISODES, MEAN_RETURN, RECENT_EPISODES

# Steps between two checks for a new best policy, by training return; with fewer than 20 episodes none is chosen.
BEST_EVERY = 10_000
# CleanRL's final evaluation; without a step limit, an environment that never truncates would block the run's end.
EVAL_EPISODES, EVAL_MAX_STEPS = 10, 27_000


def start(args: RunArgs) -> "Run":
    """Seed everything, make the run's folder and open its logs."""
    random.seed(args.seed)
    np.random.seed(args.seed % 2**32)
    if "torch" in sys.modules:
        _prepare_torch(args)
    return Run(args)


class Run:
    """The outputs of an algorithm: rows of `metrics.jsonl`, terminal lines and the final policy."""

    def __init__(self, args: RunArgs) -> None:
        self.args = args
        self.algo = args.algo_name
        self.exp_name = file_name(args.exp_name or self.algo)
        self.name, self.folder = make_folder(args.run_dir, args.env_id, self.exp_name, args.seed)
        self.policy_folder = self.folder if args.run_dir is None else self.folder / "runs" / self.name
        self.video_folder = self.folder / "videos" / self.name if args.capture_video else None
        self.rng = np.random.default_rng(args.seed)
        self._course = course_of(args, episodes.choosers)
        self.recent: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._recent_lengths: deque[int] = deque(maxlen=RECENT_EPISODES)
        self._recent_steps = 0
        self._new_returns = [0.0, 0]
        """sum and number of the returns since the last mean-return row"""
        self._return: float | None = None
        """the run's return in the last row"""
        self._best_return = -np.inf
        self._best_look = 0
        self._paused = 0.0
        self.guard = Guard(args.nonfinite, args.env_id)
        self._started = self._told = time.monotonic()
        self._tell_every = 2.0 if sys.stdout.isatty() else 30.0
        self._first_step = 0
        self._split = Split(str(getattr(sys.modules[type(args).__module__], "__file__", None)))
        self._record = Record(self.folder, self.name, as_json(args))
        self.hosted = self._record.hosted
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCONT, self._note_pause)
        self._continuation = Continuation(
            *(args, self.algo, self.folder, self.rng, self.tell, self.steps_per_second),
            episode_length=lambda: self._recent_steps / max(len(self._recent_lengths), 1),
        )

    def restore(self, parts: Mapping[str, Part], replay: Memory | None = None, fixed: Sequence[str] = ()) -> int:
        """Register all parts of the training state; return the step to continue from, 0 for a fresh run.

        `save_policy` writes the part called `policy`; a warm start loads only it and `observations`. `envs` are
        environments whose whole state is saved: they continue where others are reset.
        `fixed` names the arguments that must match the saved weights.
        """
        self._envs: Any = parts.get("envs")
        self._first_step = self._continuation.restore({**parts, "run": self, "curriculum": self._course}, replay, fixed)
        if episodes.onlooker:
            episodes.onlooker.learner(parts, self.args)
        return self._first_step

    @property
    def warm(self) -> bool:
        """Return True if the run started from a loaded policy, which acts from the first step."""
        return self._continuation.warm

    def reset(self, envs: VectorEnvs, step: int) -> np.ndarray:
        """Reset the environments and return the observations; the seeds depend on the step, so resuming is exact."""
        steps.count_from(step + self._continuation.shift)
        if not self._continuation.setting:  # first call: exclude compilation from the throughput
            self._started = time.monotonic()
        self._continuation.begin(envs)
        self._split.start()
        envs.episodes.step, self.guard = step + self._continuation.shift, envs.episodes.guard
        if isinstance(envs, StagedEnvs):
            if told := self._course.begin(step):
                self._say_stage(told)
            envs.enter(self._course.stage.env_id)
        if step and self._envs is not None and self._envs.standing:
            return np.asarray(self._envs.obs())
        return envs.reset(play.episode_seed(self.args.seed, step) if step else self.args.seed)

    def checkpoint_due(self, step: int) -> bool:
        """Return True if the state must be saved now or the curriculum changes its stage."""
        return self._continuation.due(step) or self._course.due(step)

    def checkpoint(self, step: int, envs: VectorEnvs) -> np.ndarray:
        """Save the state and reset every environment, which makes resuming from here exact.

        Environments whose whole state is saved continue without a reset.

        A curriculum changes its stage first. The process exits with code 75 if a stop was requested.
        """
        if told := self._course.move(step):
            self.recent.clear()  # returns of two stages are not comparable: only the newest stage's count
            self._new_returns, self._return = [0.0, 0], None
            self._best_return = -np.inf
            self._say_stage(told)
        if not told or self._continuation.due(step):
            if self.guard.check_weights(self._weights(), step):
                self._continuation.save(step, self._score())
            if self._continuation.stopping:
                self._tell(step, self.steps_per_second(step))
                self._close()
                raise SystemExit(REQUEUE)
        return self.reset(envs, step)

    def _say_stage(self, told: dict[str, Any]) -> None:
        self.log(told["step"], self._course.metrics())
        self.tell("stage", told)

    def state_dict(self) -> dict[str, Any]:
        best = {"best_return": np.float64(self._best_return), "best_look": self._best_look}
        lengths = np.array(self._recent_lengths, dtype=np.int64)
        total, count = self._new_returns
        new = {"new_returns": np.float64(total), "new_episodes": count, "return": self._return, "warm": self.warm}
        recent = {"recent_returns": np.array(self.recent, dtype=np.float64), "recent_lengths": lengths}
        return {**recent, **new, **best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.recent.extend(float(value) for value in state["recent_returns"])
        self._recent_lengths.extend(int(value) for value in state.get("recent_lengths", ()))
        self._recent_steps = sum(self._recent_lengths)
        self._new_returns = [float(state.get("new_returns", 0.0)), int(state.get("new_episodes", 0))]
        self._return = state.get("return")
        self._continuation.warm = bool(state.get("warm", False))
        self._best_return, self._best_look = float(state["best_return"]), int(state["best_look"])

    def tell(self, kind: str, payload: dict[str, Any]) -> None:
        """Emit an event to the shell that hosts the run; without a shell, only print warnings."""
        shifted = {key: payload[key] + self._continuation.shift for key in payload if key == "step"}
        self._record.tell(kind, payload | shifted)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Append one row with CleanRL's tags (`losses/value_loss`)."""
        self.guard.check_losses(values, step)
        self._record.write(step + self._continuation.shift, values)

    def log_episodes(self, step: int, ended: list[Episode], scores: Sequence[float] | None = None) -> None:
        """Append a row per episode; policies are ranked by the returns, or by `scores` if given."""
        figures = [episode.ret for episode in ended] if scores is None else scores
        self.recent.extend(figures)
        self._new_returns[0] += sum(figures)
        self._new_returns[1] += len(figures)
        for episode in ended:
            if len(self._recent_lengths) == RECENT_EPISODES:
                self._recent_steps -= self._recent_lengths[0]
            self._recent_lengths.append(episode.length)
            self._recent_steps += episode.length
            self._course.add(step, episode.ret)
            self.log(step, {"charts/episodic_return": episode.ret, "charts/episodic_length": episode.length})

    def log_speed(self, step: int) -> None:
        """Append `charts/SPS` and the time shares, and print the progress on the terminal."""
        speed = self.steps_per_second(step)
        while self.guard.notes:
            self.tell("warning", {"message": self.guard.notes.pop(0)})
        metrics = self._mean_return() | self._course.metrics() | self._split.shares()
        metrics |= {"charts/nonfinite": self.guard.count} if self.guard.count else {}
        self.log(step, {"charts/SPS": int(speed), **metrics})
        if self._begin_line():
            self._tell(step, speed)

    def _mean_return(self) -> dict[str, float]:
        """Return the mean return of the episodes since the last row, or of the last 100 if those are more."""
        total, count = self._new_returns
        self._new_returns = [0.0, 0]
        if not self.recent:
            return {}
        self._return = total / count if count > len(self.recent) else float(np.mean(self.recent))
        return {MEAN_RETURN: self._return}

    def say(self, text: str) -> None:
        """Print progress outside of training, rate-limited like the training line."""
        if self._begin_line():
            print(text, flush=True)

    def _begin_line(self) -> bool:
        """Return True if the next terminal line is due, and restart the interval."""
        now = time.monotonic()
        if now - self._told < self._tell_every:
            return False
        self._told = now
        return True

    def steps_per_second(self, step: int) -> float:
        """Return the throughput over the whole run, pauses excluded."""
        return (step - self._first_step) / max(time.monotonic() - self._started - self._paused, 1e-9)

    @property
    def device(self) -> Any:
        """Return the torch device that `--cuda` and the machine allow."""
        import torch

        return torch.device("cuda" if self.args.cuda and torch.cuda.is_available() else "cpu")

    def save_policy(self, step: int, state: Any, statistics: Mapping[str, np.ndarray] | None = None) -> Path:
        """Write `<exp>.cleanrl_model` and its sidecar; `state` is the content of CleanRL's file (see `policy.write`).

        Also write it as the best policy unless an earlier one scored higher.
        """
        if self._best_return == -np.inf or (len(self.recent) >= BEST_EPISODES and self._is_best()):
            self._write_policy("best.cleanrl_model", step, state, statistics)
        return self._write_policy("cleanrl_model", step, state, statistics)

    def keep_best(
        self, step: int, state: Callable[[], Any], statistics: Callable[[], Mapping[str, np.ndarray]] | None = None
    ) -> None:
        """Write `<exp>.best.cleanrl_model` if the policy is the best so far; cheap enough to call at every step."""
        if not self.args.save_model or step - self._best_look < BEST_EVERY:
            return
        self._best_look = step
        if len(self.recent) >= BEST_EPISODES and self._is_best():
            self._write_policy("best.cleanrl_model", step, state(), statistics() if statistics else None)

    def evaluate(self, step: int, policy: Policy, *, atari: bool = False, view: View | None = None) -> None:
        """Evaluate the final policy over a few sampled episodes, logged as CleanRL's `eval/episodic_return`."""
        started = time.monotonic()
        self.tell("heartbeat", {"step": step, "doing": "closing evaluation"})
        folder = None if self.video_folder is None else self.video_folder.with_name(f"{self.name}-eval")
        env_id, backend = self.args.env_id, self.args.env_backend
        if atari and pools.plays(env_id, backend, self.args.vectorization, self.args.num_envs):
            backend = "envpool"  # as in training: for a single environment `auto` would choose Gymnasium
        game = play.make_game(env_id, atari=atari, backend=backend, video_folder=folder, view=view)
        game = episodes.onlooker.evaluation(game, env_id) if episodes.onlooker else game
        returns: list[float] = []

        def tell(length: int) -> None:
            self.say(f"evaluating the policy: episode {len(returns) + 1} of {EVAL_EPISODES}, step {length:,}")

        for episode in range(EVAL_EPISODES):
            seed = play.episode_seed(self.args.seed, episode)
            played = play.play_episode(policy, game, episode, seed, max_steps=EVAL_MAX_STEPS, tell=tell)
            assert played is not None  # it has no stop events
            returns.append(played.ret)
            self.log(step, {"eval/episodic_return": played.ret})
        game.close()
        if self.args.upload_model:
            video = None if folder is None else folder / "episode-0.mp4"
            path = self.policy_folder / f"{self.exp_name}.cleanrl_model"
            companions.push_policy(self.folder, path, self.args.hf_entity, returns, video)
        self._started += time.monotonic() - started  # exclude the evaluation from the throughput

    def _is_best(self) -> bool:
        score = self._score()
        if score is None or not score >= self._best_return:  # NaN never counts as the best
            return False
        self._best_return = score  # the newest of equals: if all returns are the same, it has trained the longest
        return True

    def _weights(self) -> dict[str, Any]:
        """Return the arrays and numbers of all networks and optimizers by name."""
        own = ("run", "curriculum", "envs")
        parts = {name: part for name, part in self._continuation.parts.items() if name not in own}
        return {key: value for name, part in parts.items() for key, value in leaves(part.state_dict(), name)}

    def _write_policy(self, ending: str, step: int, state: Any, statistics: Mapping[str, np.ndarray] | None) -> Path:
        path = self.policy_folder / f"{self.exp_name}.{ending}"
        if not self.guard.check_weights(dict(leaves(state, "policy")), step):
            return path  # keep the existing file, the last with finite weights
        told = {"step": step, "training_return": self._score(), **about(self.args), **self._continuation.setting}
        told["weights"] = self._continuation.weights()
        return policies.write(path, state, statistics, told)

    def finish(self, step: int) -> None:
        """Save the final state and close the logs; W&B gets some time to upload the remaining rows."""
        if self.guard.check_weights(self._weights(), step):
            self._continuation.save_last(step, self._score())
        self._tell(step, self.steps_per_second(step))
        self._close()

    def _score(self) -> float | None:
        if self._return is not None:
            return self._return
        return float(np.mean(self.recent)) if self.recent else None

    def _close(self) -> None:
        self._split.stop()
        self._continuation.close()
        self._record.close()

    def _note_pause(self, _signal: int, _frame: object) -> None:
        """Update the paused time on SIGCONT; unknown if the signal is not from the shell (a terminal's fg)."""
        seconds = self._record.paused_seconds()
        self._paused = self._paused if seconds is None else seconds

    def _tell(self, step: int, speed: float) -> None:
        mean = f"{np.mean(self.recent):9.2f}" if self.recent else "        –"
        share = min(100.0, 100 * step / max(self.args.total_timesteps, 1))  # the last batch may exceed it
        print(f"step {step:>10,} ({share:3.0f} %)   return {mean}   {speed:>9,.0f} steps/s", flush=True)


def _prepare_torch(args: RunArgs) -> None:
    import torch

    torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic
    heap.keep_freed()
    if args.num_threads > 0:
        torch.set_num_threads(args.num_threads)
    args.num_threads = torch.get_num_threads()  # part of the recipe: another number sums in another order
