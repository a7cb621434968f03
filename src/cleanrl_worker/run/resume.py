"""Schedule of a run's checkpoints, and resuming from one."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.envs.episodes import VectorEnvs, is_due, spaces_of
from cleanrl_worker.run import checkpoint as checkpoints
from cleanrl_worker.run import policy as policies
from cleanrl_worker.run import policy_files
from cleanrl_worker.run.args import RunArgs, about, as_json
from cleanrl_worker.run.checkpoint import Checkpoint, Memory, Part
from mosaic.contract import checkpoints as files
from mosaic.contract import metrics, recipes, variables
from mosaic.contract.limits import frequent_checkpoints
from mosaic.contract.sidecars import read_sidecar
from mosaic.contract.weights import is_torch, require_like

EXIT_REFUSED = 2
REQUEUE = 75  # EX_TEMPFAIL: the state is saved, restart the run
UNKNOWN_LENGTH = 1000.0  # assumed episode length before the first episode ends, without a registered limit
SAVING_SHARE = 0.8  # of the grace period; the rest is for writing the checkpoint


@dataclass(repr=False)  # signal.signal's repr of a replaced handler would recurse through the handlers of aborted runs
class Continuation:
    """Checkpointing at scheduled steps and on SIGTERM, and restoring an earlier process's state."""

    args: RunArgs
    algo: str
    run_folder: Path
    rng: np.random.Generator
    tell: Callable[[str, dict[str, Any]], None]
    """accepts (kind of event, payload)"""
    speed: Callable[[int], float]
    """the run's steps per second at a step"""
    episode_length: Callable[[], float]
    """the mean length of the run's last episodes, 0.0 before the first has ended"""
    parts: Mapping[str, Part] = field(default_factory=dict)
    replay: Memory | None = None
    shift: int = 0
    """steps of a script's earlier phases, added to this phase's own count in its logs"""
    _source: Checkpoint | None = None
    """the restored checkpoint, until training resumes"""
    _made_for: str | None = None
    """the spaces recorded in the restored checkpoint or policy"""
    setting: dict[str, Any] = field(default_factory=dict)
    """the actual backend, spaces and device of the run"""
    warm: bool = False
    """the run began with the weights of a policy file"""
    _limit: float = 0.0
    """steps after which the environment truncates an episode, 0.0 if unknown"""
    _saved_at: int | None = None
    _scheduled_at: int = 0
    """the step of the last scheduled checkpoint, or 0"""
    _step: int = 0
    _previous: int = 0
    _asked_to_stop: float | None = None
    _handlers: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = os.environ.get(variables.MOSAIC_CHECKPOINT_DIR)
        self.folder = Path(given) if given and self.args.run_dir is not None else self.run_folder / "checkpoints"

    @property
    def stopping(self) -> bool:
        return self._asked_to_stop is not None

    def restore(self, parts: Mapping[str, Part], replay: Memory | None, fixed: Sequence[str] = ()) -> int:
        """Register the parts of the state and load them if `--resume` is given. Return the step to continue from.

        `fixed` names the arguments that the weights depend on: values other than the saved ones are refused.
        """
        self.parts, self.replay = parts, replay
        self._refuse_over_budget()
        source, first = self.args.resume, int(os.environ.get(variables.MOSAIC_FIRST_STEP, 0))
        if source is None or source.is_file():
            self.shift = first
            return 0 if source is None else self._warm_start(source, fixed)
        try:
            found = checkpoints.newest(source, lambda message: self.tell("warning", {"message": message}))
            self._refuse_others(source, found.document["args"], fixed)
            same = found.document.get("env_id") == self.args.env_id  # another environment's returns do not count
            kept = {k: v for k, v in parts.items() if same or k not in ("run", "curriculum", "envs")}
            checkpoints.restore(found, kept, self.rng, replay)
        except files.CheckpointError as error:
            raise SystemExit(str(error)) from error
        except policy_files.UNREADABLE as error:  # torch and numpy report sizes and names that differ
            raise self._does_not_fit(source, _line(error)) from error
        if self.args.additional_timesteps:
            self.args.total_timesteps = found.step + self.args.additional_timesteps
        self._refuse_finished(found)
        self._source, self._saved_at, self._made_for = found, found.step, found.document.get("spaces")
        self._scheduled_at = self._step = found.step
        self.shift = first - found.step if first else found.document.get("shift", 0)
        return found.step

    def begin(self, envs: VectorEnvs) -> None:
        """Prepare the first episode: refuse environments with other spaces than the state's, then continue the logs."""
        spaces = spaces_of(envs)
        self.setting = {"env_backend": envs.backend, "spaces": spaces, "device": _device(self.parts.get("policy"))}
        self._limit = time_limit(envs, self.args.env_id)
        if not self.keeps_envs and not self._handlers:
            every, count = self.args.checkpoint_every, self.args.num_envs
            if why := frequent_checkpoints(every, self._limit, count, self.args.checkpoint_episodes):
                self.tell("warning", {"message": why})
        if self._made_for not in (None, spaces):
            raise self._does_not_fit(self.args.resume, f"it was trained with {self._made_for}, not with {spaces}")
        if self.replay is not None and not self._handlers:
            files.drop_segments(self.folder)  # left behind by a killed process
        if not self._handlers:  # not earlier: while JAX compiles, nothing can be saved, a signal must end it at once
            self._handlers = {n: signal.signal(n, self._on_signal) for n in (signal.SIGTERM, signal.SIGINT)}
        found, self._source, self._made_for = self._source, None, None
        if found is None:
            return
        if self.replay is not None:
            files.adopt_segments(found.path.parent / files.REPLAY, self.folder / files.REPLAY, self.replay.segments)
        if variables.MOSAIC_FIRST_STEP not in os.environ:  # a later phase's rows follow the previous phase's
            rows, length = self.run_folder / "metrics.jsonl", found.document.get("metrics_bytes")
            curve = files.curve_of(found.path, found.document, self.run_folder)
            metrics.continue_rows(rows, curve, found.step + self.shift, length)
        self._say_resumed(found)

    def scheduled(self, step: int) -> bool:
        """Return True if a scheduled checkpoint is due at this step, on a multiple of `--checkpoint-every`.

        A barrier cuts every running episode, so enough episodes must pass between two that this costs 5 % of the steps.
        """
        if step != self._step:
            self._previous, self._step = self._step, step
        due = is_due(self.args.checkpoint_every, self._previous, step)
        return due and step - self._scheduled_at >= self._spared()

    def due(self, step: int) -> bool:
        """Return True if the state must be saved now: on schedule, or on SIGTERM if no scheduled step is in reach."""
        if self.scheduled(step):
            return True
        if self._asked_to_stop is None:
            return False
        left = self._asked_to_stop + SAVING_SHARE * self.args.grace_seconds - time.monotonic()
        every, next_at = self.args.checkpoint_every, max(step + 1, self._scheduled_at + self._spared())
        return every <= 0 or (-(-next_at // every) * every - step) / max(self.speed(step), 1e-9) > left

    def _spared(self) -> float:
        """Return the minimum number of steps between two barriers, a function of the run's own state."""
        if self.keeps_envs:
            return 0.0
        length = self.episode_length() or self._limit or UNKNOWN_LENGTH
        return self.args.checkpoint_episodes * length * self.args.num_envs

    @property
    def keeps_envs(self) -> bool:
        """Return True if checkpoints include the environments' whole state: they continue without a barrier."""
        return "envs" in self.parts

    def save(self, step: int, score: float | None) -> None:
        """Write the state of this step and prune old checkpoints."""
        scheduled = self.scheduled(step)
        exact = scheduled or self.keeps_envs
        self._scheduled_at = step if scheduled else self._scheduled_at
        told = {"run_folder": str(self.run_folder), "exact": exact, "score": score, "shift": self.shift}
        rows = self.run_folder / "metrics.jsonl"  # its length marks the rows that belong to this checkpoint
        told["metrics_bytes"] = rows.stat().st_size if rows.exists() else 0
        told["weights"] = self.weights()
        document = {**about(self.args), **self.setting, **told}
        started = time.monotonic()
        budget = self.args.checkpoint_budget_mb * 2**20 or None
        try:
            self.tell("heartbeat", {"step": step, "doing": "checkpoint"})
            path = checkpoints.write(self.folder, step, self.parts, self.rng, document, self.replay)
            files.prune(self.folder, budget, step)
        except OSError as error:  # the earlier checkpoints are intact, and a full disk need not end the training
            last = self.stopping or step >= self.args.total_timesteps
            message = files.unsaved(step, error, self.folder, last)
            print(message, file=sys.stderr, flush=True)
            with contextlib.suppress(OSError):
                self.tell("warning", {"message": message})
                files.prune(self.folder, budget)  # removes half-written files
            return
        self._saved_at = step
        seconds = round(time.monotonic() - started, 4)
        # `mosaic verify` compares with these values after the checkpoint was deleted
        kept = {name: document.get(name) for name in ("weights", "metrics_bytes", "device")}
        self.tell("checkpoint", {"step": step, "path": str(path), "exact": exact, "seconds": seconds, **kept})

    def weights(self) -> str | None:
        """Return the hash of the network's weights, None for a run without one."""
        policy = self.parts.get("policy")
        return None if policy is None else checkpoints.weights_hash(policy)

    def save_last(self, step: int, score: float | None) -> None:
        """Save the state that a longer run continues from, and mark this run as finished."""
        if self.parts and (self._saved_at != step or not (self.folder / str(step)).exists()):
            self.save(step, score)
        if self.parts:
            files.write_finished(self.folder, step)

    def close(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._asked_to_stop is not None and os.environ.get(variables.MOSAIC_SHELL_PID) == str(os.getppid()):
            return  # sent to the whole group, or forwarded; on a second signal the shell ends this process
        if self._asked_to_stop is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._asked_to_stop = time.monotonic()
        # not print: it is not reentrant if the signal interrupts another print, and stdout's reader may be gone
        with contextlib.suppress(OSError):
            os.write(1, b"told to stop: saving a checkpoint first; another signal ends at once\n")

    def _warm_start(self, path: Path, fixed: Sequence[str]) -> int:
        """Load the contents of a policy file; everything else starts fresh, at step 0."""
        self.args.total_timesteps = self.args.additional_timesteps or self.args.total_timesteps
        try:
            known = read_sidecar(path)
            data = policy_files.read_file(path)
            if "torch" not in sys.modules and is_torch(data):  # an algorithm in JAX, which never imports torch
                raise ValueError("policies of the algorithms in JAX are safetensors files, and this is none")
            content = policy_files.read(data, policies.as_tensor)
            weights, told = policy_files.acting_network(content)
            self._refuse_others(path, told | (known.get("args") or {}), fixed)
            require_like(self.parts["policy"].state_dict(), weights)
            critics = policy_files.critics_of(content)
            for network in (weights, *critics):
                policy_files.require_floats(network)
            self.parts["policy"].load_state_dict(weights)
            for name in self.parts.keys() & {"target", "target_actor"}:  # untrained, they would undo the loaded weights
                self.parts[name].load_state_dict(weights)
            loaded = ["policy", *self._load_critics(critics)]
            if (statistics := known.get("observation_statistics")) and "observations" in self.parts:
                self.parts["observations"].load_state_dict({"count": known.get("step", 1), **statistics})
                loaded.append("observations")
        except policy_files.UNREADABLE as error:
            raise self._does_not_fit(path, _line(error)) from error
        self._made_for, self.warm = known.get("spaces"), True
        own = ("run", "curriculum", "envs", "target", "target_actor", "target_critic", *loaded)
        lacking = [name for name in self.parts if name not in own] + ["replay memory"] * (self.replay is not None)
        message = f"warm start from {path.name}: {', '.join(loaded)} loaded"
        message += f"; the file has no {', '.join(lacking)}" if lacking else ""
        self.tell("resumed", {"step": 0, "from": str(path), "exact": False, "warm_start": True, "message": message})
        print(message, flush=True)
        return 0

    def _load_critics(self, critics: Sequence[Mapping[str, Any]]) -> list[str]:
        """Load a policy file's critics if this algorithm has critics as well."""
        critic: Any = self.parts.get("critic")
        if critic is None or not critics:
            return []
        if hasattr(critic, "load_state_dicts"):
            critic.load_state_dicts(critics)
        else:
            require_like(critic.state_dict(), critics[0])
            critic.load_state_dict(critics[0])
        self.parts["target_critic"].load_state_dict(critic.state_dict())
        return ["critic"]

    def _say_resumed(self, found: Checkpoint) -> None:
        """Report the differences from the saved recipe, including the backend actually chosen."""
        real = {"algo": self.algo} | {name: self.setting[name] for name in ("env_backend", "device")}
        before = found.document["args"] | {name: found.document.get(name) for name in real}
        changed = recipes.changes(type(self.args), before, as_json(self.args) | real)
        payload, line = recipes.resumption(found.step, found.exact, changed)
        self.tell("resumed", payload | {"from": str(found.path)})
        print(line, flush=True)

    def _refuse_finished(self, found: Checkpoint) -> None:
        """Refuse a resumption without steps left, unless a shell checked it or it completes an interrupted run."""
        cut = found.path.parent == self.folder and files.read_finished(self.folder) != found.step
        if found.step >= self.args.total_timesteps and not cut and variables.MOSAIC_SHELL_PID not in os.environ:
            done = files.nothing_left(found.path, found.step, self.args.total_timesteps)
            print(f"{done}: add --additional-timesteps=100000", file=sys.stderr)
            raise SystemExit(EXIT_REFUSED)

    def _refuse_others(self, source: Path, saved: Mapping[str, Any], fixed: Sequence[str]) -> None:
        for name in fixed:
            if saved.get(name, now := getattr(self.args, name)) != now:
                flag = f"--{name.replace('_', '-')}"
                meant = f"it was trained with {flag} {saved[name]}, which its weights are for, not {now}"
                raise self._does_not_fit(source, f"{meant}; leave {flag} out, or start a new run")

    def _does_not_fit(self, source: Path | None, reason: str) -> SystemExit:
        return SystemExit(f"{source} does not fit {self.algo} on {self.args.env_id}: {reason}")

    def _refuse_over_budget(self) -> None:
        needed = checkpoints.size_of(self.parts) + (self.replay.nbytes if self.replay is not None else 0)
        if self.args.checkpoint_budget_mb and needed > self.args.checkpoint_budget_mb * 2**20:
            raise SystemExit(files.over_budget(needed, self.args.checkpoint_budget_mb))


def time_limit(envs: VectorEnvs, env_id: str) -> float:
    """Return the steps after which an environment truncates an episode, 0.0 if unknown."""
    spec, pool = gym.registry.get(env_id.rpartition(":")[2]), getattr(envs, "pool", None)
    limit = pool.config.get("max_episode_steps") if pool is not None else spec and spec.max_episode_steps
    return float(limit or 0)


def _device(policy: Part | None) -> str:
    """Return the network's actual device: with `--cuda`, a run without a GPU trains on the CPU."""
    if checkpoints.is_torch(policy):
        return str(next(policy.parameters()).device.type)  # type: ignore[union-attr]
    return str(sys.modules["jax"].default_backend()) if "jax" in sys.modules else "cpu"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
