"""Several processes that train one agent: each a rank with environments of its own, gradients shared between them.

The first rank is the run: it starts the others, writes the logs and the checkpoints, and ends when one of them dies.
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
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # torchrun has a store of its own
HOST = "127.0.0.1"
PR_SET_PDEATHSIG = 1
ABANDONED = 76  # exit code of a rank that found another one gone
PATIENCE = 10.0  # seconds for the training loop to notice that a rank is gone, and for ranks to end by themselves
HOURS = timedelta(hours=6)  # ranks wait while the first one saves, evaluates or is paused
# Where the run writes is the first rank's matter.
OWN = ("run_dir", "tensorboard_dir", "track", "capture_video", "save_model", "upload_model", "resume", "world_size")


class Ranks:
    """This process among those that train together; every rank must make the same calls in the same order."""

    def __init__(self, args: RunArgs, world_size: int, backend: str) -> None:
        self.rank = int(os.environ.get(RANK, 0))
        self.size = int(os.environ[WORLD_SIZE]) if RANK in os.environ else world_size
        self._others: dict[int, subprocess.Popen[bytes]] = {}
        self._leaving = threading.Event()
        if self.size == 1:
            return
        if RANK not in os.environ and sys.platform.startswith("linux"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine's own name need not have an address
        store = self._store(args)
        if self.is_first:
            atexit.register(self._end_others)
        else:
            _follow_first()
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()
        # gloo carries what lies in the machine's memory, whoever carries gradients
        kinds = "gloo" if backend == "gloo" else f"cpu:gloo,cuda:{backend}"
        with self._together():
            dist.init_process_group(kinds, store=store, rank=self.rank, world_size=self.size, timeout=HOURS)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def leave(self) -> None:
        """Training is over: the others end by themselves."""
        self._leaving.set()
        for process in self._others.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
        self._end_others()
        if self.size > 1:
            dist.destroy_process_group()

    def device(self, cuda: bool, device_ids: Sequence[int]) -> torch.device:
        """The GPU that is this rank's: of those named, or its number where there are enough, else the first."""
        if not cuda or not torch.cuda.is_available():
            return torch.device("cpu")
        if device_ids:
            return torch.device("cuda", device_ids[self.rank])
        return torch.device("cuda", self.rank if torch.cuda.device_count() >= self.size else 0)

    def mean(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mean over all ranks."""
        if self.size > 1:
            with self._together():
                dist.all_reduce(tensor)
            tensor /= self.size
        return tensor

    def mean_gradient(self, loss: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """The gradient of the mean of all ranks' losses, as one vector."""
        return self.mean(torch.cat([piece.reshape(-1) for piece in torch.autograd.grad(loss, parameters)]))

    def agree(self, value: float) -> float:
        """What the first rank has."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64)
        with self._together():
            dist.broadcast(shared, 0)
        return float(shared[0])

    def share_state(self, optimizer: FlatAdam) -> None:
        """Give every rank the first one's parameters and optimizer: it alone has read a checkpoint."""
        if self.size > 1:
            with self._together():
                for tensor in (optimizer.flat, optimizer.mean, optimizer.variance):
                    dist.broadcast(tensor, 0)
            optimizer.steps = int(self.agree(optimizer.steps))

    def gather(self, ended: list[tuple[int, Episode]]) -> list[tuple[int, Episode]]:
        """Episodes of all ranks' environments with the steps that ended them, in the order of one process."""
        if self.size == 1:
            return ended
        everybody: list[Any] = [None] * self.size
        with self._together():
            dist.all_gather_object(everybody, ended)
        return sorted((each for some in everybody for each in some), key=lambda each: (each[0], each[1].env))

    def _store(self, args: RunArgs) -> dist.TCPStore:
        """Where ranks find each other; the first one starts the others as soon as it knows the port."""
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
        """What breaks because a rank has died is told by its name, once."""
        try:
            yield
        except RuntimeError:
            if not self.is_first:
                os._exit(ABANDONED)  # as in `_end`
            if lost := self._lost():
                self._end(lost)
            raise

    def _end(self, lost: str) -> NoReturn:
        """End the run where it stands; rows that TensorBoard has not written yet are in metrics.jsonl.

        Python's own way out now and then aborts on torch's threads that wait for the rank.
        """
        print(lost, file=sys.stderr, flush=True)
        self._end_others()
        os._exit(1)

    def _end_others(self) -> None:
        """They wait for somebody who goes."""
        self._leaving.set()
        for process in self._others.values():
            process.kill()
            process.wait()

    def _watch(self) -> None:
        """A rank that is gone ends the run, also where the others would wait for it for ever."""
        while not self._leaving.wait(0.5):
            if lost := self._lost(0.0):
                if not self._leaving.wait(PATIENCE):
                    self._end(lost)
                return

    def _lost(self, patience: float = 2.0) -> str | None:
        """Which rank has died, and of what; a connection breaks a little before its process is gone."""
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
    """What a rank beyond the first has in the place of a run: the same calls, and nothing is written."""

    video_folder = None

    def __init__(self, args: RunArgs, ranks: Ranks) -> None:
        self._seed, self._rank = args.seed, ranks.rank
        torch.manual_seed(args.seed)
        torch.set_num_threads(args.num_threads or torch.get_num_threads())

    def restore(self, parts: Mapping[str, Any]) -> int:
        return 0  # the first rank shares what it has read

    def reset(self, envs: VectorEnvs, step: int) -> np.ndarray:
        """Start this rank's environments: those that follow the ones of the rank before."""
        seed = episode_seed(self._seed, step) if step else self._seed
        return envs.reset(seed, self._rank * envs.num_envs)

    def checkpoint(self, step: int, envs: VectorEnvs) -> np.ndarray:
        return self.reset(envs, step)

    def checkpoint_due(self, step: int) -> bool:
        return False  # as the first rank says

    def log(self, *_: Any) -> None: ...

    log_episodes = log_speed = keep_best = finish = log


def _flags(args: RunArgs) -> list[str]:
    """The arguments as a command line, but for what is the first rank's alone or computed."""
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
    """Die with who started us, the first rank or torchrun; signals that stop a run are for the first, who needs us."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
