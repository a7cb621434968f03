"""Transfers of observations to the networks' device, and of their outputs back."""

from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np
import torch

from cleanrl_worker.learn import graphs
from cleanrl_worker.run.training import Run

Network = Callable[[torch.Tensor], torch.Tensor]


class Courier:
    """Transfers of arrays to the networks' device, and of their outputs back.

    Transfers to a GPU use pinned memory, and arrays of one shape always arrive in the same tensor, so that a CUDA graph
    can read it. On the CPU nothing is copied.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._pairs: dict[Hashable, tuple[torch.Tensor, torch.Tensor]] = {}
        """by shape and dtype: the pinned tensor, and the one on the GPU"""
        self._back: dict[Hashable, torch.Tensor] = {}
        if self._on_gpu:
            self._stream, self._sent = torch.cuda.current_stream(), torch.cuda.Event()

    def send(self, array: np.ndarray) -> torch.Tensor:
        """Return the array as a tensor; on a GPU, the next array of its shape overwrites it."""
        if not self._on_gpu:
            return torch.from_numpy(array)
        key = array.shape, array.dtype
        if key not in self._pairs:
            here = torch.from_numpy(np.empty_like(array)).pin_memory()
            self._pairs[key] = here, torch.empty_like(here, device=self._device)
        here, there = self._pairs[key]
        self._sent.synchronize()  # pinned memory is reusable once its last transfer is complete
        here.numpy()[...] = array
        there.copy_(here, non_blocking=True)
        self._sent.record(self._stream)
        return there

    def fetch(self, tensor: torch.Tensor) -> np.ndarray:
        """Return the tensor as an array; wait until it is computed."""
        if not self._on_gpu:
            return tensor.numpy()
        key = tensor.shape, tensor.dtype
        if key not in self._back:
            self._back[key] = torch.empty_like(tensor, device="cpu", pin_memory=True)
        here = self._back[key]
        here.copy_(tensor, non_blocking=True)
        self._stream.synchronize()  # this copy is its last operation
        return here.numpy().copy()

    def both_ways(self, run: Run) -> Callable[[Network], Callable[[np.ndarray], "Answer"]]:
        """Return a decorator for networks called with arrays; on a GPU, both transfers are recorded with them."""

        def wrap(network: Network) -> Callable[[np.ndarray], Answer]:
            if self._on_gpu and not getattr(run.args, "compile", False):
                return Messenger(network, run)
            known = graphs.captured(run)(network)

            def ask(array: np.ndarray) -> Answer:
                found = known(self.send(array))
                return Answer(lambda: self.fetch(found))

            return ask

        return wrap


class Answer(NamedTuple):
    """A pending output of a network, computed asynchronously."""

    fetch: Callable[[], np.ndarray]
    """wait for the output as an array; must be called before the network is called again"""


class Messenger:
    """Calls of a network on a GPU: both copies and the network as one launch, with a CUDA graph."""

    def __init__(self, network: Network, run: Run) -> None:
        self._device, self._network = run.device, network
        self._sent: dict[Hashable, torch.Tensor] = {}
        self._back: dict[Hashable, torch.Tensor] = {}
        """by input shape: the pinned tensors of the outputs"""
        self._carry = graphs.captured(run)(self._there_and_back)
        self._stream, self._told = torch.cuda.current_stream(), torch.cuda.Event()

    def __call__(self, array: np.ndarray) -> Answer:
        if array.shape not in self._sent:
            self._sent[array.shape] = torch.from_numpy(np.empty_like(array)).pin_memory()
        sent = self._sent[array.shape]
        self._told.synchronize()  # pinned memory is reusable once the previous call is complete
        sent.numpy()[...] = array
        told = self._carry(sent)
        self._told.record(self._stream)
        return Answer(lambda: self._wait(told))

    def _there_and_back(self, sent: torch.Tensor) -> torch.Tensor:
        found = self._network(sent.to(self._device, non_blocking=True))
        if sent.shape not in self._back:  # in the first call, which is not recorded
            self._back[sent.shape] = torch.empty_like(found, device="cpu", pin_memory=True)
        return self._back[sent.shape].copy_(found, non_blocking=True)

    def _wait(self, told: torch.Tensor) -> np.ndarray:
        self._told.synchronize()
        return told.numpy().copy()
