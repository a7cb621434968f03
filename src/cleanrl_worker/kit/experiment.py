"""One run of an algorithm: its folder, seeds, device, metrics and policy files."""

import importlib.util
import json
import os
import platform
import random
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from cleanrl_worker.kit import card, play
from cleanrl_worker.kit.args import RunArgs, algo_name, as_json
from cleanrl_worker.kit.episodes import Episode
from cleanrl_worker.kit.policy import Policy
from mosaic.wire import metrics, variables
from mosaic.wire.paths import write_atomic

POLICY_FORMAT = 1
# A policy is the best by the mean of the last 100 training returns, looked at this often; fewer than 20 say nothing.
BEST_EVERY, BEST_EPISODES = 10_000, 20
# CleanRL's closing evaluation; an environment without a time limit must not keep the run from ending.
EVAL_EPISODES, EVAL_MAX_STEPS = 10, 27_000
TRACKER_PATIENCE = 20.0  # seconds that W&B may take to finish after training; then it is ended


def start(args: RunArgs) -> "Run":
    """Seed everything, make the run's folder and open its logs."""
    _check(args)
    random.seed(args.seed)
    np.random.seed(args.seed % 2**32)
    if "torch" in sys.modules:
        _prepare_torch(args)
    return Run(args)


class Run:
    """What an algorithm tells the world: rows of `metrics.jsonl`, a line on the terminal, the policy at the end.

    A shell that hosts the run tails `metrics.jsonl` for TensorBoard and W&B; alone, a thread and a process of our own
    do so.
    """

    def __init__(self, args: RunArgs) -> None:
        self.args = args
        self.algo = algo_name(args)
        self.exp_name = args.exp_name or self.algo
        self.name = f"{_file_name(args.env_id)}__{_file_name(self.exp_name)}__{args.seed}__{int(time.time())}"
        self.hosted = os.environ.get(variables.MOSAIC_SHELL_PID) == str(os.getppid())
        self.folder = (args.run_dir or Path("runs") / self.name).absolute()
        self.policy_folder = self.folder if args.run_dir is None else self.folder / "runs" / self.name
        self.video_folder = self.folder / "videos" / self.name if args.capture_video else None
        self.rng = np.random.default_rng(args.seed)
        self._recent: deque[float] = deque(maxlen=100)
        self._best_return = -np.inf
        self._best_look = 0
        self._paused = 0.0
        self._started = self._told = time.monotonic()
        self._tell_every = 2.0 if sys.stdout.isatty() else 30.0
        self._open()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Append one row; tags are CleanRL's (`losses/value_loss`)."""
        os.write(self._metrics, metrics.encode_row(step, time.time(), values))

    def log_episodes(self, step: int, episodes: list[Episode]) -> None:
        for episode in episodes:
            self._recent.append(episode.ret)
            self.log(step, {"charts/episodic_return": episode.ret, "charts/episodic_length": episode.length})

    def log_speed(self, step: int) -> None:
        """Append `charts/SPS`, and say on the terminal how far training is."""
        speed = self.steps_per_second(step)
        self.log(step, {"charts/SPS": int(speed)})
        now = time.monotonic()
        if now - self._told >= self._tell_every:
            self._told = now
            self._tell(step, speed)

    def steps_per_second(self, step: int) -> float:
        """Over the whole run, pauses left out."""
        return step / max(time.monotonic() - self._started - self._paused, 1e-9)

    @property
    def device(self) -> Any:
        """The torch device that `--cuda` and the machine allow."""
        import torch

        return torch.device("cuda" if self.args.cuda and torch.cuda.is_available() else "cpu")

    def save_policy(
        self, step: int, state: Mapping[str, Any], statistics: Mapping[str, np.ndarray] | None = None
    ) -> Path:
        """Write `<exp>.cleanrl_model` (torch tensors by torch.save, numpy arrays as safetensors) and its sidecar.

        The last policy is the best one as well, unless an earlier one was better.
        """
        if self._best_return == -np.inf or self._is_best():
            self._write_policy("best.cleanrl_model", step, state, statistics)
        return self._write_policy("cleanrl_model", step, state, statistics)

    def keep_best(
        self,
        step: int,
        state: Callable[[], Mapping[str, Any]],
        statistics: Callable[[], Mapping[str, np.ndarray]] | None = None,
    ) -> None:
        """Write `<exp>.best.cleanrl_model` if the policy is the best so far; cheap enough to be called all the time."""
        if not self.args.save_model or step - self._best_look < BEST_EVERY:
            return
        self._best_look = step
        if len(self._recent) >= BEST_EPISODES and self._is_best():
            self._write_policy("best.cleanrl_model", step, state(), statistics() if statistics else None)

    def evaluate(self, step: int, policy: Policy, *, atari: bool = False) -> None:
        """Close a training with a few sampled episodes, logged as CleanRL's `eval/episodic_return`."""
        started = time.monotonic()
        folder = None if self.video_folder is None else self.video_folder.with_name(f"{self.name}-eval")
        games = [
            play.make_game(self.args.env_id, atari=atari, backend=self.args.env_backend, video_folder=folder)
            for _ in range(play.games_at_once(EVAL_EPISODES, atari=atari, filming=folder is not None))
        ]
        returns = []
        for played in play.play(policy, games, self.args.seed, range(EVAL_EPISODES), max_steps=EVAL_MAX_STEPS):
            self.log(step, {"eval/episodic_return": played.ret})
            returns.append(played.ret)
        for game in games:
            game.close()
        if self.args.upload_model:
            self._push(returns, None if folder is None else folder / "episode-0.mp4")
        self._started += time.monotonic() - started  # it is no part of the training speed

    def _push(self, returns: list[float], video: Path | None) -> None:
        """To the hub; hub.json says what came of it, and a failure fails nothing else."""
        outcome = card.push_policy(
            self.policy_folder / f"{self.exp_name}.cleanrl_model",
            algo=self.exp_name,
            env_id=self.args.env_id,
            seed=self.args.seed,
            entity=self.args.hf_entity,
            returns=returns,
            video=video,
        )
        write_atomic(self.folder / "hub.json", json.dumps(outcome))
        print("; ".join(f"hub {key}: {value}" for key, value in outcome.items()), flush=True)

    def _is_best(self) -> bool:
        mean = float(np.mean(self._recent)) if self._recent else -np.inf
        better, self._best_return = mean > self._best_return, max(mean, self._best_return)
        return better

    def _write_policy(
        self, ending: str, step: int, state: Mapping[str, Any], statistics: Mapping[str, np.ndarray] | None
    ) -> Path:
        path = self.policy_folder / f"{self.exp_name}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, _policy_bytes(state))
        sidecar = {
            "format": POLICY_FORMAT,
            "algo": self.algo,
            "env_id": self.args.env_id,
            "seed": self.args.seed,
            "step": step,
            "training_return": float(np.mean(self._recent)) if self._recent else None,
            "args": as_json(self.args),
            "observation_statistics": {key: np.asarray(value).tolist() for key, value in (statistics or {}).items()}
            or None,
            "versions": _versions(),
        }
        write_atomic(path.with_name(path.name + ".json"), json.dumps(sidecar, indent=2))
        return path

    def finish(self, step: int) -> None:
        """Close the logs; W&B gets a while to send what is left."""
        self._tell(step, self.steps_per_second(step))
        os.close(self._metrics)
        for close in self._closers:
            close()

    def _open(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / "metrics.jsonl"
            offset = path.stat().st_size if path.exists() else 0
            self._metrics = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise SystemExit(f"cannot write into the run folder {self.folder}: {error.strerror}") from error
        self._closers: list[Callable[[], None]] = []
        if not self.hosted:
            self._closers.append(_tail_to_tensorboard(path, offset, self._tensorboard_folder()))
            if self.args.track:
                self._closers.append(_start_tracker(self.folder, self.name, self.args, offset))
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCONT, self._note_pause)

    def _tensorboard_folder(self) -> Path:
        return self.args.tensorboard_dir or self.folder / "tensorboard"

    def _note_pause(self, _signal: int, _frame: object) -> None:
        """The shell has let us go on and left the total of paused seconds in a file."""
        try:
            self._paused = float((self.folder / "logs" / "paused_seconds").read_text())
        except (OSError, ValueError):
            return  # continued by somebody else (a terminal's fg): nothing is known

    def _tell(self, step: int, speed: float) -> None:
        mean = f"{np.mean(self._recent):9.2f}" if self._recent else "        –"
        share = 100 * step / max(self.args.total_timesteps, 1)
        print(f"step {step:>10,} ({share:3.0f} %)   return {mean}   {speed:>9,.0f} steps/s", flush=True)


def _check(args: RunArgs) -> None:
    """Refuse at the border what would only fail, or quietly do nothing, later."""
    if args.total_timesteps < 1:
        raise SystemExit(f"--total-timesteps must be at least 1, not {args.total_timesteps}")
    if args.num_envs < 1:
        raise SystemExit(f"--num-envs must be at least 1, not {args.num_envs}")
    if args.seed < 0:
        raise SystemExit(f"--seed must be 0 or more, not {args.seed}")
    if args.upload_model and not args.save_model:
        raise SystemExit("--upload-model needs --save-model: there would be no policy to push")
    if args.upload_model and importlib.util.find_spec("huggingface_hub") is None:
        raise SystemExit("--upload-model needs huggingface_hub: pip install 'mosaic-rl[hub]'")


def _prepare_torch(args: RunArgs) -> None:
    import torch

    torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic
    if args.num_threads > 0:
        torch.set_num_threads(args.num_threads)


def _file_name(text: str) -> str:
    """`ALE/Pong-v5` and `module:Id` name folders too."""
    return text.replace("/", "-").replace(":", "-")


def _policy_bytes(state: Mapping[str, Any]) -> bytes:
    if all(isinstance(value, np.ndarray) for value in state.values()):
        from safetensors.numpy import save

        return save({key: np.ascontiguousarray(value) for key, value in state.items()})
    import io

    import torch

    buffer = io.BytesIO()
    torch.save({key: value.detach().cpu() for key, value in state.items()}, buffer)
    return buffer.getvalue()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("mosaic-rl", "torch", "jax", "flax", "gymnasium", "envpool", "ale-py", "mujoco", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _tail_to_tensorboard(path: Path, offset: int, folder: Path) -> Callable[[], None]:
    """A thread that copies rows into TensorBoard's file, away from the training loop; the answer stops it."""
    from mosaic.wire.tensorboard import ScalarWriter

    stop = threading.Event()
    tail = metrics.Tail(path, offset)
    writer = ScalarWriter(folder)

    def copy_rows() -> None:
        for row in tail.read():
            for tag, value in row.items():
                if tag not in ("step", "time"):
                    writer.add(tag, value, row["step"], row["time"])
        writer.flush()

    def follow() -> None:
        while not stop.wait(1.0):
            copy_rows()

    thread = threading.Thread(target=follow, name="tensorboard", daemon=True)
    thread.start()

    def close() -> None:
        stop.set()
        thread.join()
        copy_rows()
        writer.close()

    return close


def _start_tracker(folder: Path, name: str, args: RunArgs, offset: int) -> Callable[[], None]:
    """W&B in a process of its own: it may hang or die without touching training."""
    config = folder / "wandb_config.json"
    write_atomic(config, json.dumps(as_json(args)))
    command = [sys.executable, "-m", "cleanrl_worker.tracking", "--run-dir", str(folder), "--offset", str(offset)]
    command += [
        "--project",
        args.wandb_project_name,
        "--name",
        args.wandb_run_name or name,
        "--config-file",
        str(config),
    ]
    if args.wandb_entity:
        command += ["--entity", args.wandb_entity]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)

    def close() -> None:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(TRACKER_PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print(f"W&B did not finish within {TRACKER_PATIENCE:.0f} s and was ended; its files are in {folder}/wandb")

    return close
