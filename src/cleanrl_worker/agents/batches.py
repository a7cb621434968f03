"""Samples of a replay memory as tensors, where the networks are."""

from typing import Any, NamedTuple

import numpy as np
import torch

from cleanrl_worker.kit.buffers import ReplayBuffer, Transitions

# Smaller ones are not worth a twin, and could be written round while they are still on their way.
SMALLEST_TWIN = 4096
# A GPU's memory is for networks first, and page-locked memory cannot be swapped out.
TWIN_SHARE, LARGEST_TWIN = 0.5, 8 * 2**30


class Batch(NamedTuple):
    """`Transitions` as tensors."""

    obs: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    next_obs: torch.Tensor
    terminations: torch.Tensor


class Batches:
    """Draws from a replay memory, the same rows on every device.

    On a GPU that has room, the memory has a twin there: a draw sends the transitions that are new and the numbers of
    the rows, nothing else. Where there is no room the sample itself is sent, through page-locked memory.
    """

    def __init__(self, replay: ReplayBuffer, size: int, device: torch.device) -> None:
        self._replay, self._size = replay, size
        self._on_gpu = device.type == "cuda"
        self._twin: torch.Tensor | None = None
        if not self._on_gpu:
            return
        self._row = _row_type(replay)
        words, needed = self._row.itemsize // 4, self._row.itemsize * replay.capacity
        room = min(LARGEST_TWIN, TWIN_SHARE * torch.cuda.mem_get_info(device)[0])
        if replay.capacity >= SMALLEST_TWIN and needed <= room:
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
        """What `at` makes a batch of; on a GPU always the same tensor, filled anew."""
        chosen = rng.integers(0, len(self._replay), self._size)
        if not self._on_gpu:
            return torch.from_numpy(chosen)
        self._copied.synchronize()  # page-locked memory is ours again when the draw before has been sent
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
        """The batch of a draw. It may be called inside an update that is recorded."""
        if not self._on_gpu:
            return Batch(*(torch.from_numpy(part) for part in self._replay.take(drawn.numpy())))
        rows = drawn if self._twin is None else self._twin.index_select(0, drawn)
        return Batch(*(_column(rows, self._row, name) for name in Transitions._fields))

    def _send(self, twin: torch.Tensor) -> None:
        """What the twin does not have yet: one slice of the ring, or two where it wraps."""
        added, capacity = self._replay.added, self._replay.capacity
        count = min(added - self._sent, capacity)
        first = (added - count) % capacity
        until_end = min(count, capacity - first)
        twin[first : first + until_end].copy_(self._ring[first : first + until_end], non_blocking=True)
        if count > until_end:
            twin[: count - until_end].copy_(self._ring[: count - until_end], non_blocking=True)
        if 2 * count > capacity:  # so many at once could be written over before the next draw looks
            self._stream.synchronize()
        self._sent = added


def _row_type(replay: ReplayBuffer) -> np.dtype:
    """A transition in one piece."""
    arrays = ((name, getattr(replay, name)) for name in Transitions._fields)
    return np.dtype([(name, array.dtype, array.shape[1:]) for name, array in arrays], align=True)


def _column(rows: torch.Tensor, row: np.dtype, name: str) -> torch.Tensor:
    """One field of packed rows, as a view of its own type and shape."""
    assert row.fields is not None
    kind, start = row.fields[name][:2]
    words = rows[:, start // 4 : (start + kind.itemsize) // 4]
    dtypes: dict[Any, torch.dtype] = {np.dtype(np.float32): torch.float32, np.dtype(np.int64): torch.int64}
    return words.view(dtypes[kind.base]).reshape(len(rows), *kind.shape)
