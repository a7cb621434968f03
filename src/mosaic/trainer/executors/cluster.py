"""The common base of Ray and Slurm: an order becomes a job, and one thread polls all jobs with one listing."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from mosaic.contract.paths import RunPaths
from mosaic.trainer.executors import versions
from mosaic.trainer.executors.contract import ClusterError, Exit, Identity, Launch
from mosaic.trainer.executors.node import PYTHON
from mosaic.trainer.executors.node_orders import Order, mark_of
from mosaic.trainer.live.worker_requests import WorkerRequests
from mosaic.trainer.scheduling.outcome import REQUEUE

# Short enough to notice a run's end soon, long enough for a scheduler that hundreds of people query.
LOOK_SECONDS = 1.0
# A cluster that answers, but does not list a job this long after its submission, has lost it.
FORGOTTEN_SECONDS = 20.0
# A relay whose worker's end was recorded has nothing left to do; after this time it is stopped.
LEAVING_SECONDS = 60.0
# A run that has saved itself waits this long for its cluster to report why it was stopped.
WORD_SECONDS = 15.0
# The time for a relay to end its worker's processes before the cluster ends the relay.
RELAY_SECONDS = 10.0


class JobPhase(StrEnum):
    """The phase of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class Job:
    """A job as the cluster lists it; times are unix seconds, 0.0 if not yet happened."""

    name: str
    phase: JobPhase
    node: str = ""
    why: str = ""
    """the cluster's reason why it waits"""
    started_at: float = 0.0
    ended_at: float = 0.0
    exit: Exit = field(default_factory=lambda: Exit(None))


@dataclass(frozen=True)
class ClusterSite:
    """The daemon's data that nodes need."""

    home: Path
    target: Callable[[], str]
    """the daemon's address for nodes"""
    certificate: Path | None = None
    scratch: str = ""
    python: str = ""
    """the interpreter on the nodes; "" is the daemon's own path"""

    def order(self, launch: Launch) -> Order:
        """Return the attempt as an order; the daemon's interpreter is replaced by a placeholder for the node's."""
        command = tuple(PYTHON if word == sys.executable else word for word in launch.command)
        return Order(
            run_id=launch.run_id,
            nonce=launch.nonce,
            command=command,
            config=launch.config,
            home=str(self.home),
            target=self.target(),
            certificate=self.certificate.read_text() if self.certificate else "",
            environment=dict(launch.environment),
            grace=launch.grace,
            attempt=launch.attempt,
            scratch=self.scratch,
            versions=versions.present(),
        )

    @property
    def entry(self) -> list[str]:
        """Return the command that runs an order on a node."""
        return [self.python or sys.executable, "-m", "mosaic.trainer.executors.node"]


class ClusterExecutor(ABC):
    """Jobs of a cluster, by the cluster's own ids. Requests to a node go through its stream to the daemon."""

    name = ""
    here = only_here = False

    def __init__(self, site: ClusterSite, controls: WorkerRequests) -> None:
        self._site, self._controls = site, controls
        self._jobs: dict[str, Job] = {}
        self._submitted: dict[str, float] = {}
        self._killed: dict[str, float] = {}
        self._leaving: dict[str, float] = {}
        self._told: dict[str, float] = {}
        self._trouble = ""
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def check(self, resources: Mapping[str, Any]) -> None:
        """Refuse resources that could never be submitted."""

    @abstractmethod
    def submit(self, name: str, order: Order, launch: Launch) -> str:
        """Submit a job; return its id. ClusterError: retry later. ConfigError: never."""

    @abstractmethod
    def list_jobs(self) -> dict[str, Job]:
        """Return all our jobs that the cluster knows, by id; raise ClusterError if it does not answer."""

    @abstractmethod
    def stop(self, job: str, *, force: bool) -> None:
        """Ask a job to end, or kill it."""

    @abstractmethod
    def remove(self, job: str) -> bool:
        """Remove an ended, recorded job from the cluster's queue; return False if that is not possible yet."""

    def waits_for(self) -> str:
        return ""

    def start(self, launch: Launch) -> Identity:
        order = self._site.order(launch).fitting(RunPaths(launch.run_id, self._site.home))
        job = self.submit(job_name(launch.run_id, launch.nonce), order, launch)
        self._know(job)
        return Identity(0, 0, "", job)

    def alive(self, identity: Identity) -> bool:
        found = self._job(identity)
        return found is None or found.phase != JobPhase.ENDED

    def running_on(self, identity: Identity) -> str:
        found = self._job(identity)
        return found.node if found is not None and found.phase == JobPhase.RUNNING else ""

    def waits_because(self, identity: Identity) -> str:
        found = self._job(identity)
        if found is None or found.phase != JobPhase.WAITING:
            return ""
        return f"it waits in the queue of {self.name.capitalize()}" + (f" ({found.why})" if found.why else "")

    def elapsed_seconds(self, identity: Identity) -> float:
        found = self._job(identity)
        if found is None or not found.started_at:
            return 0.0
        return max(0.0, (found.ended_at or time.time()) - found.started_at)

    def exit(self, identity: Identity) -> Exit:
        found = self._job(identity)
        return Exit(None) if found is None else found.exit

    def last_word(self, identity: Identity, told: Exit) -> Exit | None:
        """Return the exit; only the cluster can distinguish a job cancelled by hand from a preempted one."""
        if told.code != REQUEUE:
            return told
        found = self._job(identity)
        if found is not None and found.phase == JobPhase.ENDED:
            return found.exit if found.exit.cancelled else told
        since = self._told.setdefault(identity.job, time.monotonic())
        return told if time.monotonic() - since > WORD_SECONDS else None

    def forget(self, identity: Identity) -> None:
        self._told.pop(identity.job, None)
        with self._lock:
            # Its relay may be just exiting: cancelled now, a completed run would be listed as cancelled.
            self._leaving[identity.job] = time.monotonic()
            self._jobs.pop(identity.job, None)
            self._submitted.pop(identity.job, None)
        self._killed.pop(identity.job, None)
        self._wanted.set()

    def terminate(self, identity: Identity, nonce: str, grace: float) -> None:
        self._controls.tell(nonce, "cancel", grace)
        self.stop(identity.job, force=False)

    def pause(self, identity: Identity, nonce: str) -> bool:
        self._controls.tell(nonce, "pause")
        return True

    def go_on(self, identity: Identity, nonce: str) -> bool:
        self._controls.tell(nonce, "continue")
        return True

    def wake(self, identity: Identity, nonce: str) -> None:
        """Do nothing: nodes stop nothing by force, so a paused run receives the next request."""
        return None

    def kill_tree(self, identity: Identity | None, nonce: str) -> bool:
        """End a run by force: first by its relay, which knows its processes best; if that fails, by the cluster."""
        if identity is None:
            return False
        now = time.monotonic()
        asked = self._killed.get(identity.job)
        if asked is None or now - asked > RELAY_SECONDS:
            self._killed[identity.job] = now
            self._controls.tell(nonce, "cancel", 0.0)
            self.stop(identity.job, force=asked is not None)
        return False

    def find(self, nonce: str) -> Identity | None:
        for job, found in self.list_jobs().items():
            if found.name.endswith(_tag(nonce)):
                self._know(job)
                return Identity(0, 0, "", job)
        return None

    def close(self) -> None:
        return None

    @property
    def trouble(self) -> str:
        """Return why the last query of the cluster failed, "" if it succeeded."""
        return self._trouble

    def _know(self, job: str) -> None:
        with self._lock:
            self._submitted.setdefault(job, time.monotonic())
            if self._thread is None:
                self._thread = threading.Thread(target=self._look_on, name=f"{self.name}-jobs", daemon=True)
                self._thread.start()
        self._wanted.set()

    def _job(self, identity: Identity) -> Job | None:
        self._know(identity.job)
        with self._lock:
            return self._jobs.get(identity.job)

    def _look_on(self) -> None:
        while True:
            self._wanted.wait()
            self.look()
            with self._lock:
                if not self._submitted and not self._leaving:
                    self._wanted.clear()
            time.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Query the cluster once; a job that it no longer lists has ended."""
        began = time.monotonic()
        try:
            found = self.list_jobs()
        except ClusterError as error:
            self._trouble = str(error)
            return
        self._trouble = ""
        now = time.monotonic()
        for job, since in list(self._leaving.items()):
            if since > began:
                continue  # the listing is older
            if job not in found or (found[job].phase == JobPhase.ENDED and self.remove(job)):
                self._leaving.pop(job, None)
            elif now - since > LEAVING_SECONDS:
                self._leaving[job] = now
                with contextlib.suppress(ClusterError):
                    self.stop(job, force=True)
        with self._lock:
            for job, since in self._submitted.items():
                if job in found:
                    self._jobs[job] = found[job]
                elif now - since > FORGOTTEN_SECONDS and not self._ended(job):
                    lost = f"{self.name} no longer knows its job {job}"
                    self._jobs[job] = Job("", JobPhase.ENDED, exit=Exit(None, lost=lost))

    def _ended(self, job: str) -> bool:
        known = self._jobs.get(job)
        return known is not None and known.phase == JobPhase.ENDED


def job_name(run_id: str, nonce: str) -> str:
    """Return a job's name; it is public, so it contains only a digest of the nonce."""
    return f"mosaic-{run_id}-{_tag(nonce)}"


def _tag(nonce: str) -> str:
    return mark_of(nonce)[:12]
