"""Memory and disk that a run will need, estimated from its parameters and the catalog before it starts."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cleanrl_worker.schema import parameters
from cleanrl_worker.schema.source import Source, locate_module
from cleanrl_worker.telemetry import process_stats
from mosaic import catalog
from mosaic.contract.checkpoints import saved_args
from mosaic.contract.twins import room

if TYPE_CHECKING:
    from cleanrl_worker.plan.plan import Plan

GIGABYTE = 10**9
# Resident before the first step, as measured by heartbeats: the interpreter, torch or jax, the environment.
PROCESS = 500 * 10**6
# A network with its target and Adam's two vectors: 1.7 million parameters for images, fewer for anything else.
IMAGE_STATE, FLAT_STATE = 30 * 10**6, 3 * 10**6
KEPT = 3  # checkpoints: the newest two and the best
FRAME = 84 * 84
PROCGEN_FRAME = 64 * 64 * 3
# Activation memory per frame of a minibatch during backpropagation: DQN's network, and IMPALA's.
SMALL_LAYERS, RESIDUAL_LAYERS = 300_000, 1_400_000
IMPALA = ("ResidualBlock", "ImpalaNetwork")  # a class of each file that has IMPALA's network, in torch or in JAX
SEGMENT_ROWS = 25_000  # transitions with three more copies in memory while a checkpoint is written
# A transition of wrappers.frames: one frame and a sixteenth, five numbers of frames, and the rest.
IMAGE_TRANSITION = FRAME * 17 // 16 + 5 * 8 + 8 + 4 + 8 + 4 + 4


@dataclass(frozen=True)
class Needs:
    """The needs in bytes; `at_least` if the size of a replay memory's observations is unknown."""

    memory: int
    disk: int
    at_least: bool = False
    lever: str = "buffer_size"
    """the parameter with the largest effect on memory"""
    twin: int = 0
    """size of the replay memory's copy on a GPU; 0 without a copy, or if unknown"""
    gpu_free: int | None = None
    """free memory of this machine's GPU; None without a GPU or a copy"""

    def __str__(self) -> str:
        about = "at least" if self.at_least else "about"
        told = f"{about} {_amount(self.memory)} of memory and, for checkpoints, up to {_amount(self.disk)} of disk"
        if self.fits_gpu is None or self.gpu_free is None:
            return told
        place = (
            f"its replay memory ({_amount(self.twin)}) fits the GPU, where {_amount(self.gpu_free)} are free"
            if self.fits_gpu
            else f"its replay memory ({_amount(self.twin)}) does not fit the GPU, where a copy may take "
            f"{_amount(int(room(self.gpu_free)))}: samples are sent to it, which is slower (or lower buffer_size)"
        )
        return f"{told}; {place}"

    @property
    def fits_gpu(self) -> bool | None:
        """Return True if the replay memory fits on the GPU, None if irrelevant or unknown."""
        return None if not self.twin or self.gpu_free is None else self.twin <= room(self.gpu_free)

    def as_json(self) -> dict[str, Any]:
        told = {"memory_bytes": self.memory, "disk_bytes": self.disk, "at_least": self.at_least}
        return told | {"gpu_bytes": self.twin, "fits_gpu": self.fits_gpu}


def needs_of(plan: Plan) -> Needs | None:
    """Return the needs of a run, None for a user's script and for an evaluation."""
    source = locate_module(plan.module) if plan.ours and plan.module else None
    if source is None or not any(flag.startswith("--total-timesteps=") for flag in plan.argv):
        return None
    values = {field.name: field.default for field in parameters.read_fields(source)}
    given = dict(flag.removeprefix("--").split("=", 1) for flag in plan.argv if "=" in flag)
    if "resume" in given:
        values |= saved_args(Path(given["resume"]))
    values |= {name.replace("-", "_"): value for name, value in given.items()}
    if "device_ids" in values and not int(values["world_size"]):
        values["world_size"] = sum(flag.startswith("--device-ids=") for flag in plan.argv)
    known = catalog.find(str(values["env_id"]))
    uses_gpu = "--no-cuda" not in plan.argv and str(values.get("cuda")).lower() != "false"
    images = known is not None and known.observation_space == "image"
    residual = any(Source.read(source).find(name) for name in IMPALA)
    return _needs(values, images, uses_gpu, RESIDUAL_LAYERS if residual else SMALL_LAYERS)


def shortages(needs: Needs, folder: Path) -> list[str]:
    """Return a warning for each resource of which this machine has less than the run needs."""
    found = []
    memory = _free_memory()
    if memory is not None and memory < needs.memory:
        found.append(
            f"this run needs about {_amount(needs.memory)} of memory, and {_amount(memory)} are free here: "
            f"lower {needs.lever}, or it may be killed"
        )
    while not folder.exists():
        folder = folder.parent
    disk = shutil.disk_usage(folder).free
    if disk < needs.disk:
        found.append(
            f"checkpoints may take up to {_amount(needs.disk)}, and {_amount(disk)} are free in {folder}: lower "
            "buffer_size or checkpoint_budget_mb, or set MOSAIC_HOME to a larger disk"
        )
    return found


def _needs(values: Mapping[str, Any], images: bool, uses_gpu: bool, layers: int) -> Needs:
    number = {name: int(float(value)) for name, value in values.items() if _is_number(value)}
    state = IMAGE_STATE if images else FLAT_STATE
    ranks = number.get("world_size") or 1
    steps, envs = number.get("total_timesteps", 0), number.get("local_num_envs") or number.get("num_envs", 1)
    held = min(number.get("buffer_size", 0), steps)
    transition = IMAGE_TRANSITION if images else 0
    rollout = number.get("num_steps", 0) * envs * FRAME * 4 if images else 0
    replay = held * transition
    saving = 3 * min(held, SEGMENT_ROWS) * transition
    phase = number.get("num_steps", 0) * envs * number.get("n_iteration", 0) * PROCGEN_FRAME  # distilled by PPG
    free = process_stats.free_gpu_memory() if images and uses_gpu else None
    frames = number.get("num_steps", 0) * envs // max(number.get("num_minibatches", 1), 1)
    if held:  # a minibatch is a sample of the replay memory
        frames = number.get("batch_size", 0)
    learning = frames * layers if images and free is None else 0
    memory = ranks * (PROCESS + 2 * state + 2 * rollout + learning) + replay + saving + phase
    disk = KEPT * state + 2 * replay  # the best checkpoint may hold transitions that are overwritten in the newest
    if budget := number.get("checkpoint_budget_mb", 0) * 2**20:
        disk = min(disk, budget)
    lever = "n_iteration" if phase > replay else "buffer_size" if held else "world_size" if ranks > 1 else "num_envs"
    # an algorithm that replays its updates as CUDA graphs keeps its frames on the same device
    twin = number.get("buffer_size", 0) * FRAME * 17 // 16 if images and uses_gpu and "cudagraphs" in values else 0
    gpu_free = free if twin else None
    return Needs(memory, disk, at_least=held > 0 and not images, lever=lever, twin=twin, gpu_free=gpu_free)


def _is_number(value: Any) -> bool:
    """Return True for a finite number; a name may read `nan`, a limit may be `inf`."""
    try:
        return not isinstance(value, bool) and math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _free_memory() -> int | None:
    """Return the memory available without swapping, within a container's limit; None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        try:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError):
            return None
    try:
        limit, used, parts = (Path(f"/sys/fs/cgroup/memory.{name}").read_text() for name in ("max", "current", "stat"))
        cached = dict(line.split() for line in parts.splitlines()).get("file", "0")  # reclaimable page cache
        return min(free, int(limit) - int(used) + int(cached))
    except (OSError, ValueError):  # no limit
        return free


def _amount(count: int) -> str:
    return f"{count / GIGABYTE:.1f} GB" if count >= GIGABYTE else f"{count / 10**6:.0f} MB"
