"""Slots and admission: the free resources of the machine, and the runs that get them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import psutil

from mosaic.contract import variables
from mosaic.contract.errors import ConfigError

# The modes of runs that use an evaluation slot.
EVALUATING = ("policy_eval", "interactive")


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine."""

    index: int
    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Machine:
    """The machine's resources. A training uses one CPU slot, or as many as it claims.

    Each evaluation uses one of separate slots: evaluations take minutes, and would wait behind hours.
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
    """The resources that a run claims."""

    cpus: float = 1.0
    memory_mb: int = 0
    gpus: int = 0
    gpus_mandatory: bool = False
    evaluates: bool = False


@dataclass
class Room:
    """Free resources. `grant` reduces them; a run that must wait reserves what it waits for against later runs."""

    machine: Machine
    cpus: float = 0.0
    memory_mb: int = 0
    gpus: list[int] = field(default_factory=list)
    evaluations: int = 0

    @classmethod
    def beside(cls, machine: Machine, held: Sequence[tuple[Claim, Sequence[int]]]) -> Room:
        """Return the resources that the live runs leave free."""
        taken = {index for _, gpus in held for index in gpus}
        return cls(
            machine,
            machine.cpu_slots - sum(claim.cpus for claim, _ in held if not claim.evaluates),
            machine.memory_mb - sum(claim.memory_mb for claim, _ in held),
            [gpu.index for gpu in machine.gpus if gpu.index not in taken],
            machine.eval_slots - sum(claim.evaluates for claim, _ in held),
        )

    def grant(self, claim: Claim) -> list[int] | None:
        """Return the GPUs granted to a run (possibly none), or None if it must wait."""
        if claim.evaluates:
            if self.evaluations < 1 or claim.memory_mb > self.memory_mb:
                self.evaluations = 0
                return None
        # A tolerance: fractions of cores do not add up exactly.
        elif claim.cpus > self.cpus + 1e-9 or claim.memory_mb > self.memory_mb:
            self.cpus = -1.0  # it is first in the queue: no run overtakes it
            return None
        awaited = claim.gpus <= len(self.machine.gpus) and not claim.evaluates
        if claim.gpus > len(self.gpus) and (claim.gpus_mandatory or awaited):
            self.gpus = []  # it waits for the busy ones; runs without GPUs may pass
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
    """Refuse a claim that this machine can never satisfy; return warnings for one that it satisfies in part."""
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
    """Return the GPUs that NVIDIA's library lists and we may use; none without library, driver or permission."""
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
    """Return the indices that CUDA_VISIBLE_DEVICES allows, parsed like CUDA: up to the first invalid entry.

    A cluster's scheduler sets it for the daemon; NVIDIA's library lists the whole machine anyway.
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
