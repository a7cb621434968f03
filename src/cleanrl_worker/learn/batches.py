"""Samples of a replay memory as tensors on the networks' device."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from cleanrl_worker.learn.buffers import ReplayBuffer, Transitions, twins

# Smaller ones are not worth a twin, and could wrap around during a transfer.
SMALLEST_TWIN = 4096
LARGEST_TWIN = twins.LARGEST_TWIN
BLOCK = 64  # frames per transfer: more than arrive between two draws


class Batch(NamedTuple):
    """`Transitions` as tensors."""

    obs: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    next_obs: torch.Tensor
    terminations: torch.Tensor


class Batches:
    """Samples of a replay memory, with the same rows on every device.

    If the GPU has room, the memory has a twin there: a draw only sends the new transitions and the row numbers.
    Otherwise the sample itself is sent, through pinned memory.
    """

    def __init__(self, replay: ReplayBuffer, size: int, device: torch.device) -> None:
        self._replay, self._size = replay, size
        self._on_gpu = device.type == "cuda"
        self._twin: torch.Tensor | None = None
        if not self._on_gpu:
            return
        self._row = _row_type(replay, Transitions._fields)
        words, needed = self._row.itemsize // 4, self._row.itemsize * replay.capacity
        if replay.capacity >= SMALLEST_TWIN and needed <= _room(device):
            self._twin = torch.empty((replay.capacity, words), dtype=torch.int32, device=device)
            self._ring = torch.zeros((replay.capacity, words), dtype=torch.int32, pin_memory=True)
            for name in Transitions._fields:
                setattr(replay, name, self._ring.numpy().view(self._row)[name][:, 0])
            self._staging = torch.empty(size, dtype=torch.int64, pin_memory=True)
        else:
            self._staging = torch.empty((size, words), dtype=torch.int32, pin_memory=True)
        self._staged = self._staging.numpy()
        self._drawn = torch.empty_like(self._staging, device=device)
        self._sent = 0
        self._stream, self._copied = torch.cuda.current_stream(), torch.cuda.Event()

    def draw(self, rng: np.random.Generator) -> torch.Tensor:
        """Sample the input of `at`; on a GPU always the same tensor, refilled."""
        chosen = rng.integers(0, len(self._replay), self._size)
        if not self._on_gpu:
            return torch.from_numpy(chosen)
        self._copied.synchronize()  # pinned memory is reusable once the previous draw has been sent
        if self._twin is not None:
            self._staged[:] = chosen
            self._send(self._twin)
        else:
            sample, staged = self._replay.take(chosen), self._staged.view(self._row)
            for name, part in zip(sample._fields, sample, strict=True):
                staged[name][:, 0] = part
        self._drawn.copy_(self._staging, non_blocking=True)
        self._copied.record(self._stream)
        return self._drawn

    def at(self, drawn: torch.Tensor) -> Batch:
        """Return the batch of a draw. It may be called inside a recorded update."""
        if not self._on_gpu:
            return Batch(*(torch.from_numpy(part) for part in self._replay.take(drawn.numpy())))
        rows = drawn if self._twin is None else self._twin.index_select(0, drawn)
        return Batch(*(_column(rows, self._row, name) for name in Transitions._fields))

    def _send(self, twin: torch.Tensor) -> None:
        """Send the new transitions to the twin: one slice of the ring, or two if it wraps."""
        added, capacity = self._replay.added, self._replay.capacity
        count = min(added - self._sent, capacity)
        first = (added - count) % capacity
        until_end = min(count, capacity - first)
        twin[first : first + until_end].copy_(self._ring[first : first + until_end], non_blocking=True)
        if count > until_end:
            twin[: count - until_end].copy_(self._ring[: count - until_end], non_blocking=True)
        if 2 * count > capacity:  # so many could be overwritten before the next draw synchronizes
            self._stream.synchronize()
        self._sent = added


class Frames(Protocol):
    """A replay memory that stores each frame once (`learn.frame_buffer`)."""

    capacity: int
    seen: int
    frames: np.ndarray
    stacks: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminations: np.ndarray

    @property
    def first(self) -> int: ...

    def __len__(self) -> int: ...

    def take(self, numbers: np.ndarray) -> Transitions: ...


class FrameBatches:
    """Samples of a memory of frames, with the same transitions on every device; observations are uint8.

    If the GPU has room, the frames have a twin there (a million of Atari's take 7.5 GB): a draw sends the new frames
    and the transitions' frame numbers. Otherwise it sends the frames of the sample.
    """

    def __init__(self, replay: Frames, size: int, device: torch.device) -> None:
        self._replay, self._size = replay, size
        self._on_gpu = device.type == "cuda"
        if not self._on_gpu:
            return
        frame, stack = replay.frames.shape[1:], replay.stacks.shape[1]
        self._row = _row_type(replay, ("stacks", "actions", "rewards", "terminations"))
        self._staging = torch.empty((size, self._row.itemsize // 4), dtype=torch.int32, pin_memory=True)
        staged = self._staging.numpy().view(self._row)[:, 0]
        self._staged = {name: staged[name] for name in self._row.fields or ()}
        self._drawn = torch.empty_like(self._staging, device=device)
        self._has_twin = replay.frames.nbytes <= _room(device)
        on_gpu, at_once = (len(replay.frames), BLOCK) if self._has_twin else (size * stack, size * stack)
        self._frames = torch.empty((on_gpu, *frame), dtype=torch.uint8, device=device)
        self._frame_staging = torch.empty((at_once, *frame), dtype=torch.uint8, pin_memory=True)
        self._sent = 0
        self._stream, self._copied = torch.cuda.current_stream(), torch.cuda.Event()

    def draw(self, rng: np.random.Generator) -> torch.Tensor:
        """Sample the input of `at`; on a GPU always the same tensor, refilled."""
        return self.send(self._replay.first + rng.integers(0, len(self._replay), self._size))

    def send(self, chosen: np.ndarray) -> torch.Tensor:
        """Prepare these transitions like a draw; their number must be the batch size."""
        replay = self._replay
        if not self._on_gpu:
            return torch.from_numpy(chosen)
        where = chosen % replay.capacity
        slots = replay.stacks[where] % len(replay.frames)
        self._copied.synchronize()  # pinned memory is reusable once the previous draw has been sent
        if self._has_twin:
            self._send_new()
        else:
            replay.frames.take(slots.reshape(-1), axis=0, out=self._frame_staging.numpy(), mode="clip")
            self._frames.copy_(self._frame_staging, non_blocking=True)
            slots = np.arange(slots.size).reshape(slots.shape)
        self._staged["stacks"][:] = slots
        for name in ("actions", "rewards", "terminations"):
            self._staged[name][:] = getattr(replay, name)[where]
        self._drawn.copy_(self._staging, non_blocking=True)
        self._copied.record(self._stream)
        return self._drawn

    def at(self, drawn: torch.Tensor) -> Batch:
        """Return the batch of a draw. It may be called inside a recorded update."""
        if not self._on_gpu:
            return Batch(*(torch.from_numpy(part) for part in self._replay.take(drawn.numpy())))
        slots, *others = (_column(drawn, self._row, name) for name in ("stacks", "actions", "rewards", "terminations"))
        shown = self._frames.index_select(0, slots.reshape(-1)).unflatten(0, slots.shape)
        actions, rewards, terminations = others
        return Batch(shown[:, :-1], actions, rewards, shown[:, 1:], terminations)

    def _send_new(self) -> None:
        """Send the new frames to the twin: usually one piece, for which the staging memory is free."""
        frames, seen = self._replay.frames, self._replay.seen
        self._sent = first = max(self._sent, seen - len(frames))
        while self._sent < seen:
            if self._sent > first:
                self._stream.synchronize()  # the previous piece has been sent
            start = self._sent % len(frames)
            count = min(BLOCK, seen - self._sent, len(frames) - start)
            self._frame_staging.numpy()[:count] = frames[start : start + count]
            self._frames[start : start + count].copy_(self._frame_staging[:count], non_blocking=True)
            self._sent += count


def _room(device: torch.device) -> float:
    """Return the maximum size of a twin on a GPU, in bytes."""
    return twins.room(torch.cuda.mem_get_info(device)[0], LARGEST_TWIN)


def _row_type(replay: ReplayBuffer | Frames, names: Sequence[str]) -> np.dtype:
    """Return the packed dtype of a transition."""
    arrays = ((name, getattr(replay, name)) for name in names)
    return np.dtype([(name, array.dtype, array.shape[1:]) for name, array in arrays], align=True)


def _column(rows: torch.Tensor, row: np.dtype, name: str) -> torch.Tensor:
    """Return one field of packed rows, as a view of its own dtype and shape."""
    assert row.fields is not None
    kind, start = row.fields[name][:2]
    words = rows[:, start // 4 : (start + kind.itemsize) // 4]
    dtypes: dict[Any, torch.dtype] = {np.dtype(np.float32): torch.float32, np.dtype(np.int64): torch.int64}
    return words.view(dtypes[kind.base]).reshape(len(rows), *kind.shape)
