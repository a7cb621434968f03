"""What every executor promises: a run's worker is started, watched, paused, ended and found again through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mosaic.contract.errors import UnavailableError


@dataclass(frozen=True)
class Identity:
    """A worker that no other can be taken for.

    Of this machine: a pid is used again, but not in the same tick of the same boot. Of a cluster: the name of its job.
    """

    pid: int
    start_ticks: int
    boot_id: str
    job: str = ""


@dataclass(frozen=True)
class Exit:
    """How a worker ended; the code is None where nobody could tell, the signal "" where it died of none."""

    code: int | None
    signal: str = ""
    lost: str = ""
    """why it is gone, where not the run but its machine or the cluster is to blame"""
    reason: str = ""
    """what the cluster says of the end, where the worker said nothing"""
    cancelled: str = ""
    """that somebody ended its job by the cluster's own means, in words"""


@dataclass(frozen=True)
class Launch:
    """Everything an executor needs to start one attempt of a run."""

    run_id: str
    nonce: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    """of the process, where it runs on this machine; without secrets where it does not"""
    folder: Path
    stdout: Path
    stderr: Path
    claim: Claimed = field(default_factory=lambda: Claimed())
    config: Mapping[str, Any] = field(default_factory=dict)
    """the worker's flat config, as its file holds it"""
    grace: float = 120.0
    resources: Mapping[str, Any] = field(default_factory=dict)
    """the payload's `resources`, with what only one executor understands"""
    attempt: int = 1


@dataclass(frozen=True)
class Claimed:
    """What a run asks of the machine that it gets."""

    cpus: float = 1.0
    memory_mb: int = 0
    gpus: int = 0


class ClusterError(UnavailableError):
    """The cluster cannot be asked for the moment; what waits for it waits on."""


class Executor(Protocol):
    """Where runs run. One thread calls it; nothing here waits longer than a command of the cluster takes."""

    name: str
    here: bool
    """whether its runs are processes of this machine: they take its slots, and the daemon sees their rings"""
    only_here: bool
    """whether this machine is all that it has, so that what is not here would be waited for in vain"""

    def check(self, resources: Mapping[str, Any]) -> None:
        """Refuse, at the submission, `resources` that it could never start; ConfigError."""

    def waits_for(self) -> str:
        """What must happen before anything can be started, "" where nothing must."""

    def start(self, launch: Launch) -> Identity:
        """Start a worker that needs nothing of this process to live. ClusterError: try again later."""

    def alive(self, identity: Identity) -> bool:
        """Whether this very worker runs or waits for its turn; also where the cluster cannot be asked."""

    def running_on(self, identity: Identity) -> str:
        """The machine that has it, "" while it waits for one."""

    def waits_because(self, identity: Identity) -> str:
        """What the cluster says of a worker that waits in its queue, "" for one that does not."""

    def elapsed_seconds(self, identity: Identity) -> float:
        """How long it has run; the time in a cluster's queue does not count."""

    def exit(self, identity: Identity) -> Exit:
        """How a worker that is no longer alive ended; as often as asked, until it is forgotten."""

    def last_word(self, identity: Identity, told: Exit) -> Exit | None:
        """What counts where the worker's side has told how it ended; None while the cluster may know better."""

    def forget(self, identity: Identity) -> None:
        """Its end was written down."""

    def terminate(self, identity: Identity, nonce: str, grace: float) -> None:
        """Ask the worker to end; it leads its algorithm to a checkpoint within `grace` seconds."""

    def pause(self, identity: Identity, nonce: str) -> bool:
        """Stop a run; True where its worker was asked and will tell, False where its processes were stopped."""

    def go_on(self, identity: Identity, nonce: str) -> bool:
        """Let a paused run go on; True where its worker will tell."""

    def wake(self, identity: Identity, nonce: str) -> None:
        """Let processes that were stopped by force hear what they were asked."""

    def kill_tree(self, identity: Identity | None, nonce: str) -> bool:
        """End every process of a run by force; whether none is left, as far as can be told now."""

    def find(self, nonce: str) -> Identity | None:
        """The worker that was started under this nonce, None where there is none."""

    def close(self) -> None:
        """The daemon ends, and none of its runs is left here."""
