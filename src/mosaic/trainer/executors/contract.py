"""The interface of executors: a run's worker is started, watched, paused, ended and found again through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mosaic.contract.errors import UnavailableError


@dataclass(frozen=True)
class Identity:
    """The unique identity of a worker.

    Locally: a pid is reused, but not in the same tick of the same boot. On a cluster: the name of its job.
    """

    pid: int
    start_ticks: int
    boot_id: str
    job: str = ""


@dataclass(frozen=True)
class Exit:
    """A worker's exit; the code is None if unknown, the signal "" if none killed it."""

    code: int | None
    signal: str = ""
    lost: str = ""
    """why it is gone, if its machine or the cluster is to blame, not the run"""
    reason: str = ""
    """the cluster's reason of the end, if the worker gave none"""
    cancelled: str = ""
    """a description, if somebody cancelled its job with the cluster's own tools"""


@dataclass(frozen=True)
class Launch:
    """The parameters with which an executor starts one attempt of a run."""

    run_id: str
    nonce: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    """of the process, if it runs on this machine; else without secrets"""
    folder: Path
    stdout: Path
    stderr: Path
    claim: Claimed = field(default_factory=lambda: Claimed())
    config: Mapping[str, Any] = field(default_factory=dict)
    """the worker's flat config, as in its file"""
    grace: float = 120.0
    resources: Mapping[str, Any] = field(default_factory=dict)
    """the payload's `resources`, with options of one executor only"""
    attempt: int = 1


@dataclass(frozen=True)
class Claimed:
    """The resources that a run claims on its machine."""

    cpus: float = 1.0
    memory_mb: int = 0
    gpus: int = 0


class ClusterError(UnavailableError):
    """A cluster that cannot be queried now; its runs continue to wait."""


class Executor(Protocol):
    """An executor of runs. One thread calls it; no method blocks for longer than a command of the cluster."""

    name: str
    here: bool
    """True if its runs are processes of this machine: they use its slots, and the daemon sees their rings"""
    only_here: bool
    """True if it has only this machine, so that waiting for missing resources would be futile"""

    def check(self, resources: Mapping[str, Any]) -> None:
        """Raise ConfigError, at the submission, for `resources` that it could never start."""

    def waits_for(self) -> str:
        """Return what must happen before anything can be started, "" if nothing."""

    def start(self, launch: Launch) -> Identity:
        """Start a worker that does not depend on this process. ClusterError: retry later."""

    def alive(self, identity: Identity) -> bool:
        """Return True if exactly this worker runs or is queued; also if the cluster cannot be queried."""

    def running_on(self, identity: Identity) -> str:
        """Return the machine that runs it, "" while it waits for one."""

    def waits_because(self, identity: Identity) -> str:
        """Return the cluster's reason why a worker waits in its queue, "" if it does not wait."""

    def elapsed_seconds(self, identity: Identity) -> float:
        """Return for how long it has run, without the time in a cluster's queue."""

    def exit(self, identity: Identity) -> Exit:
        """Return the exit of a worker that is no longer alive; repeatable until it is forgotten."""

    def last_word(self, identity: Identity, told: Exit) -> Exit | None:
        """Return the final exit, given the worker's own report; None while the cluster may know better."""

    def forget(self, identity: Identity) -> None:
        """Forget a worker whose end was recorded."""

    def terminate(self, identity: Identity, nonce: str, grace: float) -> None:
        """Ask the worker to end; it saves its algorithm's checkpoint within `grace` seconds."""

    def pause(self, identity: Identity, nonce: str) -> bool:
        """Pause a run; return True if its worker was asked and will report it, False if its processes were stopped."""

    def go_on(self, identity: Identity, nonce: str) -> bool:
        """Continue a paused run; return True if its worker will report it."""

    def wake(self, identity: Identity, nonce: str) -> None:
        """Let processes that were stopped by force receive pending requests."""

    def kill_tree(self, identity: Identity | None, nonce: str) -> bool:
        """End every process of a run by force; return True if none is left, as far as is known now."""

    def find(self, nonce: str) -> Identity | None:
        """Return the worker that was started under this nonce, None if none is found."""

    def close(self) -> None:
        """Release everything: the daemon ends, and none of its runs is left here."""
