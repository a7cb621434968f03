"""Slots and admission: which queued run the machine has room for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import psutil

from mosaic.contract import variables
from mosaic.contract.errors import ConfigError

# The modes of runs that take an evaluation's slot.
EVALUATING = ("policy_eval", "interactive")


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine."""

    index: int
    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Machine:
    """The machine's resources. A training takes one CPU slot, or as many as it claims.

    Evaluations have slots of their own, one each: they take minutes, and would wait behind hours.
    """

    gpus: tuple[Gpu, ...] = ()
    cpu_slots: float = 1.0
    memory_mb: int = 0
    eval_slots: int = 1

    @classmethod
    def found(cls, cpu_slots: float | None = None, eval_slots: int | None = None) -> Machine:
        """Return this machine; `cpu_slots` overrides the number of its cores."""
        memory = psutil.virtual_memory().total >> 20
        return cls(find_gpus(), cpu_slots or float(os.cpu_count() or 1), memory, eval_slots or cls.eval_slots)


@dataclass(frozen=True)
class Claim:
    """What a run asks for."""

    cpus: float = 1.0
    memory_mb: int = 0
    gpus: int = 0
    gpus_mandatory: bool = False
    evaluates: bool = False


@dataclass
class Room:
    """What is free. `grant` takes from it; a run that must wait keeps those behind it off what it waits for."""

    machine: Machine
    cpus: float = 0.0
    memory_mb: int = 0
    gpus: list[int] = field(default_factory=list)
    evaluations: int = 0

    @classmethod
    def beside(cls, machine: Machine, held: Sequence[tuple[Claim, Sequence[int]]]) -> Room:
        """What the live runs leave."""
        taken = {index for _, gpus in held for index in gpus}
        return cls(
            machine,
            machine.cpu_slots - sum(claim.cpus for claim, _ in held if not claim.evaluates),
            machine.memory_mb - sum(claim.memory_mb for claim, _ in held),
            [gpu.index for gpu in machine.gpus if gpu.index not in taken],
            machine.eval_slots - sum(claim.evaluates for claim, _ in held),
        )

    def grant(self, claim: Claim) -> list[int] | None:
        """The GPUs that the run gets (perhaps none), or None where it must wait."""
        if claim.evaluates:
            if self.evaluations < 1 or claim.memory_mb > self.memory_mb:
                self.evaluations = 0
                return None
        # A little more than nothing: fractions of cores do not add up exactly.
        elif claim.cpus > self.cpus + 1e-9 or claim.memory_mb > self.memory_mb:
            self.cpus = -1.0  # it is first in the queue: nobody overtakes it
            return None
        awaited = claim.gpus <= len(self.machine.gpus) and not claim.evaluates
        if claim.gpus > len(self.gpus) and (claim.gpus_mandatory or awaited):
            self.gpus = []  # those that are there and busy are waited for; runs that need no GPU may pass
            return None
        if claim.evaluates:
            self.evaluations -= 1
        else:
            self.cpus -= claim.cpus
        self.memory_mb -= claim.memory_mb
        granted = self.gpus[: claim.gpus] if claim.gpus <= len(self.gpus) else []
        self.gpus = self.gpus[len(granted) :]
        return granted


def check_claim(claim: Claim, machine: Machine) -> list[str]:
    """Refuse what this machine can never give; warnings for what it gives less of."""
    if claim.cpus > machine.cpu_slots:
        raise ConfigError(
            f"resources.cpus: {claim.cpus:g} are asked for, this daemon has {machine.cpu_slots:g} slots; ask for less"
        )
    if claim.memory_mb > machine.memory_mb:
        raise ConfigError(
            f"resources.memory_mb: {claim.memory_mb} are asked for, this machine has {machine.memory_mb}; ask for less"
        )
    if claim.gpus > len(machine.gpus):
        there = f"{claim.gpus} asked for, {len(machine.gpus)} on this machine"
        if claim.gpus_mandatory:
            raise ConfigError(f"resources.gpus: {there}; ask for less, or set mandatory to false to train on the CPU")
        return [f"resources.gpus: {there}; this run trains on the CPU"]
    return []


def find_gpus() -> tuple[Gpu, ...]:
    """The GPUs that NVIDIA's library tells of and this process may use; none without library, driver or permission."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError):
        return ()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        allowed = _allowed([_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles])
        return tuple(
            Gpu(index, _text(pynvml.nvmlDeviceGetName(handle)), int(pynvml.nvmlDeviceGetMemoryInfo(handle).total))
            for index, handle in enumerate(handles)
            if index in allowed
        )
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _allowed(uuids: Sequence[str]) -> set[int]:
    """What CUDA_VISIBLE_DEVICES leaves, as CUDA reads it: up to the first entry that names no GPU.

    A cluster's scheduler sets it for the daemon; NVIDIA's library lists the whole machine all the same.
    """
    given = os.environ.get(variables.CUDA_VISIBLE_DEVICES)
    if given is None:
        return set(range(len(uuids)))
    allowed = set()
    for entry in map(str.strip, given.split(",")):
        named = [index for index, uuid in enumerate(uuids) if entry == str(index) or (entry and uuid.startswith(entry))]
        if len(named) != 1:
            break
        allowed.add(named[0])
    return allowed


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
