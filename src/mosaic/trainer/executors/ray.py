"""Runs as jobs of a Ray cluster, through its Jobs API: plain HTTP, so that the daemon needs no Ray of the same version.

A job is one process tree that Ray queues by resources and that outlives its submitter. Tasks and actors would tie every
run to a driver, and end with a daemon that is killed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from mosaic.contract import variables
from mosaic.contract.errors import ConfigError, shown
from mosaic.trainer.executors.cluster import ClusterExecutor, ClusterSite, Job, JobPhase
from mosaic.trainer.executors.contract import ClusterError, Exit, Identity, Launch
from mosaic.trainer.executors.node_orders import Order
from mosaic.trainer.executors.ray_head import PrivateHead
from mosaic.trainer.live.worker_requests import WorkerRequests

CALL_SECONDS = 30.0
# After the worker's grace period: for its relay to end leftover processes, and to send the last events.
STOP_SECONDS = 30.0
# A relay heard within this time receives requests; it sends a heartbeat every few seconds.
HEARD_SECONDS = 15.0
# Ray polls each job every second; one deleted before Ray has seen its end is listed anew, as failed.
SEEN_SECONDS = 5.0
PHASES = {"PENDING": JobPhase.WAITING, "RUNNING": JobPhase.RUNNING}
# Ray's messages if the machine failed, not the entry point; such a run is restarted elsewhere.
BLAMELESS = (
    *("supervisor actor died", "supervisor actor failed to start", "supervisor actor could not be scheduled"),
    *("node died", "node was terminated", "has died", "unexpected system error", "cluster", "raylet"),
)
# Its job server is starting, has no agent that answers, or is at its limit: HTTP's own codes, or text under a 500.
TEMPORARY = (429, 502, 503, 504)
LATER = ("try again", "timed out", "timeout", "cannot connect to host", "connection refused", "connection reset")
NO_MODULE, NO_ENVIRONMENT = "No module named 'mosaic'", "runtime_env setup failed"


class RayExecutor(ClusterExecutor):
    """Jobs of the cluster whose dashboard is at `address`, such as http://head:8265, or of a private one."""

    name = "ray"

    def __init__(
        self, site: ClusterSite, controls: WorkerRequests, address: str = "", head: PrivateHead | None = None
    ) -> None:
        super().__init__(site, controls)
        self._address, self._head, self.only_here = address, head, head is not None
        self._stopped: set[str] = set()
        self._waiting: set[str] = set()
        self._over_since: dict[str, float] = {}

    def waits_for(self) -> str:
        """Return why the private cluster is not ready; it takes seconds to start, in a thread of its own."""
        return "" if self._head is None else self._head.waits_for()

    def check(self, resources: Mapping[str, Any]) -> None:
        if resources.get("slurm"):
            raise ConfigError('resources.slurm goes with executor "slurm", not with "ray"')
        env = (resources.get("ray") or {}).get("runtime_env") or {}
        if not isinstance(env.get("env_vars", {}), Mapping):
            raise ConfigError("resources.ray.runtime_env.env_vars is an object of texts")

    def submit(self, name: str, order: Order, launch: Launch) -> str:
        asked = launch.resources.get("ray") or {}
        env = dict(asked.get("runtime_env") or {})
        ours = {
            variables.MOSAIC_ORDER: order.encode(),
            "RAY_JOB_STOP_WAIT_TIME_S": f"{launch.grace + STOP_SECONDS:.0f}",
        }
        body = {
            "submission_id": name,
            "entrypoint": f"exec {shlex.join(self._site.entry)}",
            "runtime_env": {**env, "env_vars": {**env.get("env_vars", {}), **ours}},
            "metadata": {"run_id": launch.run_id},
            "entrypoint_num_cpus": launch.claim.cpus,
            "entrypoint_num_gpus": launch.claim.gpus,
            "entrypoint_memory": launch.claim.memory_mb << 20,
            "entrypoint_resources": {str(key): float(value) for key, value in (asked.get("custom") or {}).items()},
        }
        try:
            self._call("POST", "/api/jobs/", body)
        except _Answered as error:
            if error.is_temporary:
                raise ClusterError(f"Ray takes no job now: {error}; it is asked again") from None
            if "already exists" not in str(error):  # the first answer was lost
                raise ConfigError(f"Ray refuses the job: {error}") from None
        return name

    def list_jobs(self) -> dict[str, Job]:
        if self._head is not None and not self._head.runs():
            return {}  # it ended, and its jobs with it
        try:
            found = self._call("GET", "/api/jobs/")
        except _Answered as error:
            raise ClusterError(f"Ray does not list its jobs: {error}") from None
        ours = (one for one in found if str(one.get("submission_id") or "").startswith("mosaic-"))
        jobs = {str(one["submission_id"]): job_of(one) for one in ours}
        self._waiting = {name for name, job in jobs.items() if job.phase == JobPhase.WAITING}
        return jobs

    def alive(self, identity: Identity) -> bool:
        """Return False for a stopped job that waits: Ray keeps it in the queue, and ends it when its turn comes."""
        return super().alive(identity) and identity.job not in self._stopped & self._waiting

    def terminate(self, identity: Identity, nonce: str, grace: float) -> None:
        """Ask the relay if it is connected: Ray signals every process of a job, also those that are needed to save."""
        silent = self._controls.silent_seconds(nonce)
        if silent is not None and silent < HEARD_SECONDS:
            self._controls.tell(nonce, "cancel", grace)
        else:
            super().terminate(identity, nonce, grace)

    def stop(self, job: str, *, force: bool) -> None:
        """Send SIGTERM to the relay and all below it; a second one makes the relay end its worker at once."""
        if job in self._stopped & self._waiting:
            return  # Ray has recorded it
        try:
            self._call("POST", f"/api/jobs/{_quoted(job)}/stop")
        except _Answered:
            pass  # it has ended meanwhile
        self._stopped.add(job)

    def remove(self, job: str) -> bool:
        """Delete an ended job; Ray deletes no others. Its list, queried every second, would grow forever."""
        if time.monotonic() - self._over_since.setdefault(job, time.monotonic()) < SEEN_SECONDS:
            return False
        self._stopped.discard(job)
        self._over_since.pop(job)
        try:
            self._call("DELETE", f"/api/jobs/{_quoted(job)}")
        except (_Answered, ClusterError):
            return False
        return True

    def close(self) -> None:
        """Stop a private cluster that is no longer needed."""
        if self._head is not None:
            self._head.close()

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        address = self._address if self._head is None else self._head.address()
        if not address:
            raise ClusterError("the private Ray cluster does not run")
        headers = {"Content-Type": "application/json"}
        if token := os.environ.get(variables.RAY_AUTH_TOKEN) if self._head is None else self._head.token():
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address.rstrip("/") + path, data, headers, method=method)
        try:
            # No proxy: a cluster is reached directly, or not at all.
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                request, timeout=CALL_SECONDS
            ) as got:
                return json.loads(got.read() or b"null")
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace").strip().splitlines() or [error.reason]
            raise _Answered(shown(said[-1], 300).strip("'\""), error.code) from None
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or error
            raise ClusterError(f"the Ray cluster at {address} does not answer: {why}; its runs wait") from None


class _Answered(Exception):
    """An error response of Ray; `is_temporary` if the same request may be accepted later."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.is_temporary = status in TEMPORARY or any(word in text.lower() for word in LATER)


def job_of(told: Mapping[str, Any]) -> Job:
    """Return a job from an entry of Ray's list."""
    status, message = str(told.get("status")), str(told.get("message") or "")
    node = urllib.parse.urlsplit(str(told.get("driver_agent_http_address") or "")).hostname or ""
    code = told.get("driver_exit_code")
    return Job(
        name=str(told["submission_id"]),
        phase=PHASES.get(status, JobPhase.ENDED),
        node=node,
        why="for the resources that it asks for, or for its runtime_env",
        started_at=(told.get("start_time") or 0) / 1000 if status != "PENDING" else 0.0,
        ended_at=(told.get("end_time") or 0) / 1000,
        exit=_exit(status, message, code if isinstance(code, int) else None),
    )


def _exit(status: str, message: str, code: int | None) -> Exit:
    said = " ".join(message.split())[-400:]
    if NO_MODULE in message:
        return Exit(1, reason="the node has no mosaic-rl: install it there, or ship it (resources.ray.runtime_env)")
    if NO_ENVIRONMENT in message:  # whatever else it contains: another node would fail the same way
        return Exit(1, reason=f"Ray could not make what resources.ray.runtime_env asks for: {said[-200:]}")
    if status == "SUCCEEDED":
        return Exit(0)
    if status == "STOPPED":
        return Exit(code, cancelled="somebody stopped its job in Ray; mosaic resume goes on from its checkpoint")
    if status == "FAILED" and code in (None, -9) and any(word in message.lower() for word in BLAMELESS):
        why = re.search(r"died because ([^.]+)", message)
        return Exit(None, lost=f"Ray lost its node: {why[1].strip() if why else said[-160:]}")
    return Exit(code, reason=f"Ray says: {said}" if said else "")


def _quoted(job: str) -> str:
    return urllib.parse.quote(job, safe="")
