"""Distributed training of one agent: each process is a rank with its own environments, and gradients are shared.

The first rank is the run: it starts the others, writes the logs and checkpoints, and ends when one of them dies.
Under torchrun, which starts all of them, each finds its number in the environment.
"""

import atexit
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist

from cleanrl_worker.envs.episodes import Episode, VectorEnvs
from cleanrl_worker.envs.play import episode_seed
from cleanrl_worker.learn.optim import FlatAdam
from cleanrl_worker.run.args import RunArgs, as_json

RANK, WORLD_SIZE, ADDRESS, PORT = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"  # torchrun's names
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # torchrun has its own store
HOST = "127.0.0.1"
PR_SET_PDEATHSIG = 1
ABANDONED = 76  # exit code of a rank that lost another one
PATIENCE = 10.0  # seconds for the training loop to notice a dead rank, and for ranks to end by themselves
HOURS = timedelta(hours=6)  # ranks wait while the first one saves, evaluates or is paused
# Only the first rank handles the run's outputs.
OWN = ("run_dir", "tensorboard_dir", "track", "capture_video", "save_model", "upload_model", "resume", "world_size")


class Ranks:
    """The group of training processes; every rank must make the same calls in the same order."""

    def __init__(self, args: RunArgs, world_size: int, backend: str) -> None:
        self.rank = int(os.environ.get(RANK, 0))
        self.size = int(os.environ[WORLD_SIZE]) if RANK in os.environ else world_size
        self._others: dict[int, subprocess.Popen[bytes]] = {}
        self._leaving = threading.Event()
        if self.size == 1:
            return
        if RANK not in os.environ and sys.platform.startswith("linux"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine's hostname may not resolve
        store = self._store(args)
        if self.is_first:
            atexit.register(self._end_others)
        else:
            _follow_first()
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()
        # gloo handles CPU tensors, whichever backend handles the gradients
        kinds = "gloo" if backend == "gloo" else f"cpu:gloo,cuda:{backend}"
        with self._together():
            dist.init_process_group(kinds, store=store, rank=self.rank, world_size=self.size, timeout=HOURS)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def leave(self) -> None:
        """End the training: wait for the other ranks, then kill those still running."""
        self._leaving.set()
        for process in self._others.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
        self._end_others()
        if self.size > 1:
            dist.destroy_process_group()

    def device(self, cuda: bool, device_ids: Sequence[int]) -> torch.device:
        """Return this rank's GPU: the one in `device_ids`, else its number if enough GPUs exist, else the first."""
        if not cuda or not torch.cuda.is_available():
            return torch.device("cpu")
        if device_ids:
            return torch.device("cuda", device_ids[self.rank])
        return torch.device("cuda", self.rank if torch.cuda.device_count() >= self.size else 0)

    def mean(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the mean over all ranks."""
        if self.size > 1:
            with self._together():
                dist.all_reduce(tensor)
            tensor /= self.size
        return tensor

    def mean_gradient(self, loss: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the gradient of the mean of all ranks' losses, as one vector."""
        return self.mean(torch.cat([piece.reshape(-1) for piece in torch.autograd.grad(loss, parameters)]))

    def agree(self, value: float) -> float:
        """Return the first rank's value."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64)
        with self._together():
            dist.broadcast(shared, 0)
        return float(shared[0])

    def share_state(self, optimizer: FlatAdam) -> None:
        """Broadcast the first rank's parameters and optimizer state: only it has read a checkpoint."""
        if self.size > 1:
            with self._together():
                for tensor in (optimizer.flat, optimizer.mean, optimizer.variance):
                    dist.broadcast(tensor, 0)
            optimizer.steps = int(self.agree(optimizer.steps))

    def gather(self, ended: list[tuple[int, Episode]]) -> list[tuple[int, Episode]]:
        """Return the ended episodes of all ranks with their steps, in the order of a single process."""
        if self.size == 1:
            return ended
        everybody: list[Any] = [None] * self.size
        with self._together():
            dist.all_gather_object(everybody, ended)
        return sorted((each for some in everybody for each in some), key=lambda each: (each[0], each[1].env))

    def _store(self, args: RunArgs) -> dist.TCPStore:
        """Return the ranks' rendezvous store; the first rank starts the others once it knows the port."""
        if RANK in os.environ:
            serves = self.is_first and os.environ.get(AGENT_STORE) != "True"
            return dist.TCPStore(os.environ[ADDRESS], int(os.environ[PORT]), self.size, serves, timeout=HOURS)
        store = dist.TCPStore(HOST, 0, self.size, True, timeout=HOURS, wait_for_workers=False)
        module = sys.modules[type(args).__module__]
        started = ["-m", module.__spec__.name] if module.__spec__ is not None else [str(module.__file__)]
        command = [sys.executable, "-P", *started, *_flags(args)]
        for rank in range(1, self.size):
            numbers = {RANK: str(rank), WORLD_SIZE: str(self.size), ADDRESS: HOST, PORT: str(store.port)}
            self._others[rank] = subprocess.Popen(command, env={**os.environ, **numbers}, stdin=subprocess.DEVNULL)
        return store

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Report an error caused by a dead rank once, with that rank's number."""
        try:
            yield
        except RuntimeError:
            if not self.is_first:
                os._exit(ABANDONED)  # as in `_end`
            if lost := self._lost():
                self._end(lost)
            raise

    def _end(self, lost: str) -> NoReturn:
        """End the run at once; rows that TensorBoard has not written yet are in metrics.jsonl.

        A normal Python exit sometimes aborts because of torch's threads that wait for the rank.
        """
        print(lost, file=sys.stderr, flush=True)
        self._end_others()
        os._exit(1)

    def _end_others(self) -> None:
        """Kill the other ranks, which wait for this one."""
        self._leaving.set()
        for process in self._others.values():
            process.kill()
            process.wait()

    def _watch(self) -> None:
        """End the run when a rank dies, even if the others would wait for it forever."""
        while not self._leaving.wait(0.5):
            if lost := self._lost(0.0):
                if not self._leaving.wait(PATIENCE):
                    self._end(lost)
                return

    def _lost(self, patience: float = 2.0) -> str | None:
        """Return a report of a dead rank, else None; wait a little, as a connection breaks before its process ends."""
        until = time.monotonic() + patience
        while True:
            for rank, process in self._others.items():
                if (code := process.poll()) and code != ABANDONED:
                    how = f"of {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
                    return f"rank {rank} of {self.size} (process {process.pid}) died {how}, which ends the run"
            if time.monotonic() >= until:
                return None
            time.sleep(0.05)


class Follower:
    """A run's replacement in ranks beyond the first: the same calls without outputs."""

    video_folder = None

    def __init__(self, args: RunArgs, ranks: Ranks) -> None:
        self._seed, self._rank = args.seed, ranks.rank
        torch.manual_seed(args.seed)
        torch.set_num_threads(args.num_threads or torch.get_num_threads())

    def restore(self, parts: Mapping[str, Any]) -> int:
        return 0  # the first rank shares what it has read

    def reset(self, envs: VectorEnvs, step: int) -> np.ndarray:
        """Reset this rank's environments, numbered after those of the previous rank."""
        seed = episode_seed(self._seed, step) if step else self._seed
        return envs.reset(seed, self._rank * envs.num_envs)

    def checkpoint(self, step: int, envs: VectorEnvs) -> np.ndarray:
        return self.reset(envs, step)

    def checkpoint_due(self, step: int) -> bool:
        return False  # the first rank decides

    def log(self, *_: Any) -> None: ...

    log_episodes = log_speed = keep_best = finish = log


def _flags(args: RunArgs) -> list[str]:
    """Return the arguments as a command line, without those of the first rank only or with default values."""
    flags = []
    for name, value in as_json(args).items():
        option = "--" + name.replace("_", "-")
        if name in OWN or value in (None, "") or value == getattr(type(args), name, None):
            continue
        if isinstance(value, list):
            flags += [option, *map(str, value)] if value else []
        else:
            flags.append(f"{option}={str(value).lower() if isinstance(value, bool) else value}")
    return flags


def _follow_first() -> None:
    """Die with the parent, the first rank or torchrun; ignore stop signals, which the first rank handles."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
