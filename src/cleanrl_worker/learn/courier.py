"""What an agent sees and does, on its way to the networks and back."""

from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np
import torch

from cleanrl_worker.learn import graphs
from cleanrl_worker.run.training import Run

Network = Callable[[torch.Tensor], torch.Tensor]


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

    def both_ways(self, run: Run) -> Callable[[Network], Callable[[np.ndarray], "Answer"]]:
        """The function below, asked with arrays; on a GPU the ways there and back are recorded with it."""

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
    """What a network was asked for: on its way, while the program goes on."""

    fetch: Callable[[], np.ndarray]
    """as an array, once it has been computed; to be called before the network is asked again"""


class Messenger:
    """Asks a network on a GPU: a copy there, the network and a copy back, which a CUDA graph makes one launch of."""

    def __init__(self, network: Network, run: Run) -> None:
        self._device, self._network = run.device, network
        self._sent: dict[Hashable, torch.Tensor] = {}
        self._back: dict[Hashable, torch.Tensor] = {}
        """by what is asked: the page-locked tensors of the question and of the answer"""
        self._carry = graphs.captured(run)(self._there_and_back)
        self._stream, self._told = torch.cuda.current_stream(), torch.cuda.Event()

    def __call__(self, array: np.ndarray) -> Answer:
        if array.shape not in self._sent:
            self._sent[array.shape] = torch.from_numpy(np.empty_like(array)).pin_memory()
        sent = self._sent[array.shape]
        self._told.synchronize()  # page-locked memory is ours again when the question before has been answered
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
