"""When a run saves its whole state, and how it goes on from one."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from cleanrl_worker.kit import checkpoint as checkpoints
from cleanrl_worker.kit.args import RunArgs, as_json
from cleanrl_worker.kit.buffers import ReplayBuffer
from cleanrl_worker.kit.checkpoint import Checkpoint, Part
from mosaic.wire import metrics, variables
from mosaic.wire.checkpoints import CheckpointError, prune

REQUEUE = 75  # EX_TEMPFAIL: the state is saved, start me again
SAVING_SHARE = 0.8  # of the grace period: the rest is for writing the checkpoint itself

# Where and how a run writes is no part of what it computes.
NOT_OF_THE_RECIPE = frozenset(
    {
        "run_dir",
        "resume",
        "tensorboard_dir",
        "track",
        "wandb_project_name",
        "wandb_entity",
        "wandb_run_name",
        "exp_name",
    }
    | {"save_model", "capture_video", "checkpoint_budget_mb", "additional_timesteps", "grace_seconds"}
    | {"batch_size", "minibatch_size", "num_iterations"}
)


class Continuation:
    """Saves at scheduled steps and on SIGTERM, and restores what an earlier process saved.

    `tell` takes (kind of event, payload); `speed` gives the run's steps per second at a step.
    """

    def __init__(
        self,
        args: RunArgs,
        algo: str,
        folder: Path,
        rng: np.random.Generator,
        tell: Callable[[str, dict[str, Any]], None],
        speed: Callable[[int], float],
    ) -> None:
        self._args, self._algo, self._run_folder, self._rng, self._tell, self._speed = (
            args,
            algo,
            folder,
            rng,
            tell,
            speed,
        )
        given = os.environ.get(variables.MOSAIC_CHECKPOINT_DIR)
        self.folder = Path(given) if given and args.run_dir is not None else folder / "checkpoints"
        self._parts: Mapping[str, Part] = {}
        self._replay: ReplayBuffer | None = None
        self._saved_at: int | None = None
        self._asked_to_stop: float | None = None

    @property
    def stopping(self) -> bool:
        return self._asked_to_stop is not None

    def restore(self, parts: Mapping[str, Part], replay: ReplayBuffer | None) -> int:
        """Remember what makes up the state; load it when `--resume` says so. Returns the step to go on from."""
        self._parts, self._replay = parts, replay
        self._refuse_over_budget()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        source = self._args.resume
        if source is None:
            return 0
        if source.is_file():
            self._warm_start(source)
            return 0
        try:
            checkpoint = checkpoints.newest(source, lambda message: self._tell("warning", {"message": message}))
            checkpoints.restore(checkpoint, parts, self._rng, replay, self.folder)
        except CheckpointError as error:
            raise SystemExit(str(error)) from error
        except (RuntimeError, KeyError, ValueError) as error:  # torch and numpy tell sizes and names that differ
            raise SystemExit(f"{source} does not fit {self._algo} on {self._args.env_id}: {_line(error)}") from error
        if self._args.additional_timesteps:
            self._args.total_timesteps = checkpoint.step + self._args.additional_timesteps
        self._continue_curves(checkpoint)
        self._say_resumed(checkpoint)
        self._saved_at = checkpoint.step
        return checkpoint.step

    def due(self, previous: int, step: int) -> bool:
        """Whether the state must be saved now: at a scheduled step, or when told to stop and none is within reach."""
        every = self._args.checkpoint_every
        if every > 0 and step // every > previous // every:
            return True
        if self._asked_to_stop is None:
            return False
        left = self._asked_to_stop + SAVING_SHARE * self._args.grace_seconds - time.monotonic()
        return every <= 0 or (every - step % every) / max(self._speed(step), 1e-9) > left

    def save(self, previous: int, step: int, backend: str, score: float | None) -> None:
        """Write the state of this step and delete what need not be kept."""
        every = self._args.checkpoint_every
        exact = every > 0 and step // every > previous // every
        about = {
            "algo": self._algo,
            "env_id": self._args.env_id,
            "seed": self._args.seed,
            "args": as_json(self._args),
            "env_backend": backend,
            "exact": exact,
            "score": score,
            "saved_at": time.time(),
        }
        started = time.monotonic()
        budget = self._args.checkpoint_budget_mb * 2**20 or None
        try:
            path = checkpoints.write(self.folder, step, self._parts, self._rng, about, self._replay)
            prune(self.folder, budget)
        except OSError as error:  # the earlier checkpoints are whole, and training need not end for a full disk
            message = f"no checkpoint at step {step:,}: {error.strerror}; training goes on"
            print(message, file=sys.stderr, flush=True)
            with contextlib.suppress(OSError):
                self._tell("warning", {"message": message})
                prune(self.folder, budget)  # takes what was half written off the disk
            return
        self._saved_at = step
        seconds = round(time.monotonic() - started, 4)
        self._tell("checkpoint", {"step": step, "path": str(path), "exact": exact, "seconds": seconds})

    def save_last(self, step: int, backend: str, score: float | None) -> None:
        """The state that a longer run would go on from."""
        if self._parts and self._saved_at != step:
            self.save(step, step, backend, score)

    def env_seed(self, step: int) -> int:
        """The seed that every environment starts anew with at a checkpoint's step; the run's own at the start."""
        if step == 0:
            return self._args.seed
        return int(np.random.SeedSequence([self._args.seed, step]).generate_state(1)[0]) >> 1

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._asked_to_stop is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._asked_to_stop = time.monotonic()
        print("told to stop: saving a checkpoint first; another signal ends at once", flush=True)

    def _warm_start(self, path: Path) -> None:
        """Weights and observation statistics of a policy file; everything else starts anew."""
        sidecar = path.with_name(path.name + ".json")
        try:
            about = json.loads(sidecar.read_text()) if sidecar.exists() else {}
            self._parts["policy"].load_state_dict(_policy_state(path))
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise SystemExit(
                f"policy {path} does not fit {self._algo} on {self._args.env_id}: {_line(error)}"
            ) from error
        statistics = about.get("observation_statistics")
        if statistics and "observations" in self._parts:
            self._parts["observations"].load_state_dict({"count": about.get("step", 1), **statistics})
        payload = {"step": 0, "from": str(path), "exact": False, "warm_start": True}
        self._tell("resumed", payload | {"message": "warm start from a policy: weights only, a new optimizer, step 0"})

    def _continue_curves(self, checkpoint: Checkpoint) -> None:
        """In the run's own folder later rows stop counting; a new folder starts with the parent's rows so far."""
        ours = self._run_folder / "metrics.jsonl"
        parent = checkpoint.document.get("run_folder") or checkpoint.path.parent.parent
        theirs = Path(parent) / "metrics.jsonl"
        with ours.open("ab") as file:
            if theirs.exists() and not theirs.samefile(ours) and file.tell() == 0:
                rows = (row for row in metrics.read_rows(theirs) if row["step"] <= checkpoint.step)
                for row in rows:
                    tags = {tag: value for tag, value in row.items() if tag not in ("step", "time")}
                    file.write(metrics.encode_row(row["step"], row["time"], tags))
            elif file.tell() > 0:
                file.write(metrics.encode_resumed(checkpoint.step))

    def _say_resumed(self, checkpoint: Checkpoint) -> None:
        before, now = checkpoint.document["args"], as_json(self._args)
        changed = {
            name: [before.get(name), value]
            for name, value in now.items()
            if name not in NOT_OF_THE_RECIPE and before.get(name) != value
        }
        exact = checkpoint.exact and not changed
        payload = {"step": checkpoint.step, "from": str(checkpoint.path), "exact": exact, "changed": changed}
        self._tell("resumed", payload)
        listed = ", ".join(f"{name} {old} → {new}" for name, (old, new) in changed.items())
        kind = "exactly" if exact else "not bit for bit"
        print(f"resumed {kind} at step {checkpoint.step:,}" + (f"; changed: {listed}" if listed else ""), flush=True)

    def _refuse_over_budget(self) -> None:
        budget = self._args.checkpoint_budget_mb
        needed = checkpoints.size_of(self._parts) + (self._replay.nbytes if self._replay is not None else 0)
        if budget and needed > budget * 2**20:
            raise SystemExit(
                f"one checkpoint takes up to {needed / 2**20:,.0f} MB, more than --checkpoint-budget-mb {budget}; "
                "raise it, or lower --buffer-size"
            )


def _policy_state(path: Path) -> Any:
    from safetensors.numpy import load_file

    if path.read_bytes()[:2] == b"PK":  # torch.save writes a zip
        import torch

        return torch.load(path, weights_only=True, map_location="cpu")
    return load_file(path)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
