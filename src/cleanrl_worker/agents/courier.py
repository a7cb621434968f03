"""What an agent sees and does, on its way to the networks and back."""

from collections.abc import Hashable

import numpy as np
import torch


class Courier:
    """Takes arrays to where the networks are, and brings their answers back.

    A GPU is reached through page-locked memory, and arrays of one shape always arrive in the same tensor, so that what
    reads it can be recorded as a CUDA graph. On the CPU nothing is copied.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._pairs: dict[Hashable, tuple[torch.Tensor, torch.Tensor]] = {}
        """by what is carried: the page-locked tensor, and the one on the GPU"""
        self._back: dict[Hashable, torch.Tensor] = {}
        if self._on_gpu:
            self._stream, self._sent = torch.cuda.current_stream(), torch.cuda.Event()

    def send(self, array: np.ndarray) -> torch.Tensor:
        """The array as a tensor; on a GPU the next one of its shape takes its place."""
        if not self._on_gpu:
            return torch.from_numpy(array)
        key = array.shape, array.dtype
        if key not in self._pairs:
            here = torch.from_numpy(np.empty_like(array)).pin_memory()
            self._pairs[key] = here, torch.empty_like(here, device=self._device)
        here, there = self._pairs[key]
        self._sent.synchronize()  # page-locked memory is ours again when what was in it has been sent
        here.numpy()[...] = array
        there.copy_(here, non_blocking=True)
        self._sent.record(self._stream)
        return there

    def fetch(self, tensor: torch.Tensor) -> np.ndarray:
        """The tensor as an array, once it has been computed."""
        if not self._on_gpu:
            return tensor.numpy()
        key = tensor.shape, tensor.dtype
        if key not in self._back:
            self._back[key] = torch.empty_like(tensor, device="cpu", pin_memory=True)
        here = self._back[key]
        here.copy_(tensor, non_blocking=True)
        self._stream.synchronize()  # this copy is the last thing it was given
        return here.numpy().copy()
