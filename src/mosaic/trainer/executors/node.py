"""The relay on a cluster's node: runs the worker of one attempt, and connects it to the daemon.

    python -m mosaic.trainer.executors.node      reads the order from MOSAIC_ORDER

The worker is the ordinary one and does not know the daemon. If the node sees the daemon's home, the worker writes its
files there, and the relay only sends frames and receives requests; else it writes to a folder of the node, which the
relay sends line by line. Those files are the spool: an unreachable daemon gets them when it is back.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic.contract import variables
from mosaic.contract.errors import ConfigError, MosaicError
from mosaic.contract.events import EventLog
from mosaic.contract.frames import sweep
from mosaic.contract.paths import RunPaths, write_atomic
from mosaic.contract.publisher import CANCEL, GO_ON, PAUSE
from mosaic.contract.stopping import Stops
from mosaic.store.syncing import fetch_stored, storage_of
from mosaic.trainer.executors.contract import Exit, Identity, Launch
from mosaic.trainer.executors.local import LocalExecutor
from mosaic.trainer.executors.node_orders import Order, mark_of, write_exit
from mosaic.trainer.executors.versions import differences
from mosaic.trainer.scheduling.outcome import REQUEUE
from mosaic.trainer.scheduling.resumption import checkpoints_of, next_attempt, start_over

LOOK_SECONDS = 0.1
# The interval at which a node that shares the home checks whether the run was restarted elsewhere.
FENCE_SECONDS = 5.0
# The time for the whole process tree after the worker's own grace period.
AFTER_GRACE = 1.0
LOCK_SECONDS = 60.0
KILLED_SECONDS = 3.0
REFUSED, REPLACED = 2, 3
# Ends the worker with its relay, however that dies: only the kernel can guarantee it.
_TIED = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(143); os.execvp(sys.argv[2], sys.argv[2:])"
)


def main() -> int:
    """Run the order; return the worker's exit code, 2 if this node is unsuitable, 3 if the order is outdated."""
    try:
        order = Order.decode(os.environ.pop(variables.MOSAIC_ORDER, ""))
        return NodeRelay(order).run()
    except ConfigError as error:
        print(f"mosaic node: {error}", file=sys.stderr, flush=True)
        return REFUSED
    except MosaicError as error:
        print(f"mosaic node: {error}", file=sys.stderr, flush=True)
        return 1


class NodeRelay:
    """One attempt on this node."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._shared = is_shared(order)
        home = Path(order.home) if self._shared else scratch_of(order)
        self._paths = RunPaths(order.run_id, home)
        self._executor = LocalExecutor()
        self._orders: queue.SimpleQueue[tuple[str, float]] = queue.SimpleQueue()
        self._terms, self._stops = 0, Stops()
        self._kill_at: float | None = None
        self._cancelled = False
        self._looked = time.monotonic()
        self._restarted = int(os.environ.get("SLURM_RESTART_COUNT") or 0)

    def run(self) -> int:
        """Run the attempt from the registration to the last acknowledged event."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._paths.create()
        from mosaic.trainer.executors.node_link import Link  # gRPC, only once the order is read

        again = self._order.attempt > 1 or self._restarted > 0
        link = Link(self._order, self._paths, self._shared, lambda what, grace: self._orders.put((what, grace)))
        # What the daemon has must be known before anything is appended.
        if not link.open(wait=(again or not self._order.is_whole) and not self._shared):
            return self._stand_down(link.refused)
        try:
            identity = self._start(link.secrets, again)
        except MosaicError as error:
            return self._refuse(link, str(error))
        ended = self._follow(identity, link)
        if ended is None:
            link.abandon()
            return self._stand_down(link.refused)
        return self._end(ended, link)

    def _start(self, secrets: Mapping[str, str], again: bool) -> Identity:
        self._order = order = self._order.whole(self._paths)
        paths = self._paths
        if different := differences(order.versions):
            raise ConfigError(
                f"node {socket.gethostname()} has {different[0]}, the daemon has {different[1]}: "
                "install the same there, or ship it (resources.ray.runtime_env)"
            )
        script = _flag(order.command, "--script") or order.environment.get(variables.MOSAIC_SCRIPT)
        if script and not self._shared:
            raise ConfigError("a script needs the daemon's own home on the node: share it, or run the script locally")
        self._wait_for_lock()
        environment = self._environment(secrets)
        config = self._moved(order.config)
        command = [self._moved(word) for word in order.command]
        if again and script:
            start_over(config, paths)
        elif again:
            if not self._shared and (url := storage_of(config.get("extras") or {})):
                fetch_stored(paths, url, environment)
            config = next_attempt(config, paths, checkpoints_of(environment, paths))
        if not script:
            write_atomic(Path(command[command.index("--config") + 1]), json.dumps(config, indent=2) + "\n")
        tied = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid())] if sys.platform.startswith("linux") else []
        launch = Launch(
            run_id=order.run_id,
            nonce=order.nonce,
            command=(*tied, *command),
            environment=environment,
            folder=paths.home,
            stdout=paths.worker_stdout_log,
            stderr=paths.worker_stderr_log,
        )
        return self._executor.start(launch)

    def _wait_for_lock(self) -> None:
        """Wait until the previous attempt's worker, which its cluster is just ending, releases the run's lock."""
        end = time.monotonic() + LOCK_SECONDS
        while time.monotonic() < end:
            try:
                with open(self._paths.lock, "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(LOOK_SECONDS)
            except OSError:
                return  # it does not exist, or this file system has no locks

    def _environment(self, secrets: Mapping[str, str]) -> dict[str, str]:
        own = {variables.MOSAIC_TOKEN, variables.MOSAIC_TARGET, variables.MOSAIC_ORDER, variables.RAY_AUTH_TOKEN}
        return {
            **{name: value for name, value in os.environ.items() if name not in own},
            **{name: self._moved(value) for name, value in self._order.environment.items()},
            **secrets,
            variables.MOSAIC_HOME: str(self._paths.home),
            variables.MOSAIC_RUN_ID: self._order.run_id,
            variables.MOSAIC_ATTEMPT: self._order.nonce,
            variables.PYTHONUNBUFFERED: "1",
        }

    def _moved(self, value: Any) -> Any:
        """Return a value with the paths of the daemon's home and interpreter replaced by this node's."""
        if isinstance(value, str):
            if value == PYTHON:
                return sys.executable
            inside = value.removeprefix(f"{self._order.home}/")
            return value if self._shared or inside == value else str(self._paths.home / inside)
        if isinstance(value, Mapping):
            return {key: self._moved(item) for key, item in value.items()}
        return [self._moved(item) for item in value] if isinstance(value, list | tuple) else value

    def _follow(self, identity: Identity, link: Any) -> Exit | None:
        """Wait until the worker ends; return None if the run was restarted elsewhere, and this attempt is void."""
        terms = 0
        while self._executor.alive(identity):
            while terms < self._terms:
                terms += 1
                self._stop(identity, self._order.grace if terms == 1 else 0.0)
            while not self._orders.empty():
                what, grace = self._orders.get()
                if what == CANCEL:
                    self._cancelled = True
                    self._stop(identity, grace)
                elif what in (PAUSE, GO_ON):
                    (self._executor.pause if what == PAUSE else self._executor.go_on)(identity, self._order.nonce)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._executor.kill_tree(identity, self._order.nonce)
            if link.refused or self._is_replaced():
                self._executor.kill_tree(identity, self._order.nonce)
                return None
            time.sleep(LOOK_SECONDS)
        ended = self._executor.exit(identity)
        self._executor.kill_tree(identity, self._order.nonce)
        if self._terms and not self._cancelled and ended.code:
            # The cluster reclaimed its node. A worker that could not save in time has not failed.
            return Exit(REQUEUE)
        return ended

    def _stop(self, identity: Identity, grace: float) -> None:
        """Stop the worker: the first call asks it; a later one may only shorten its time."""
        at = time.monotonic() + grace + AFTER_GRACE
        if self._kill_at is None:
            self._executor.terminate(identity)
            self._executor.wake(identity, self._order.nonce)
        self._kill_at = at if self._kill_at is None else min(at, self._kill_at)

    def _is_replaced(self) -> bool:
        if not self._shared or time.monotonic() - self._looked < FENCE_SECONDS:
            return False
        self._looked = time.monotonic()
        return not is_shared(self._order) and self._paths.attempt.exists()

    def _end(self, ended: Exit, link: Any) -> int:
        """Report the worker's exit, once all its output is stored."""
        sweep()  # also of an attempt that died with its relay
        if ended.signal == "SIGKILL" and self._kill_at is None and "SLURM_JOB_ID" in os.environ:
            time.sleep(KILLED_SECONDS)  # Slurm may be ending the whole job, and its reason is the better one
        code = ended.code if ended.code is not None else 1
        if self._shared:
            write_exit(self._paths, self._order.nonce, code, ended.signal)
            link.close(LOOK_SECONDS)
        elif trouble := link.close(self._order.linger, (code, ended.signal)):
            print(f"mosaic node: {trouble}; it lies in {self._paths.folder}", file=sys.stderr, flush=True)
        return code if code >= 0 else 128 - code

    def _refuse(self, link: Any, reason: str) -> int:
        """End the attempt: this node cannot run it."""
        print(f"mosaic node: {reason}", file=sys.stderr, flush=True)
        with EventLog(self._paths.events, self._order.run_id) as log:
            log.append("run_failed", {"exit_code": REFUSED, "signal": None, "error": reason})
        return self._end(Exit(REFUSED), link)

    def _stand_down(self, reason: str) -> int:
        sweep()
        print(f"mosaic node: this attempt is out of date and ends: {reason or 'the run was started anew'}", flush=True)
        return REPLACED

    def _on_signal(self, *_: object) -> None:
        self._terms += self._stops.told()


PYTHON = "{python}"
"""a placeholder in a command for the node's interpreter"""


def is_shared(order: Order) -> bool:
    """Return True if the node sees, in the daemon's own home, the marker of this attempt."""
    if order.scratch:
        return False
    try:
        mark = RunPaths(order.run_id, order.home).attempt.read_text(encoding="ascii").strip()
        return mark == mark_of(order.nonce)
    except (OSError, UnicodeDecodeError):
        return False


def scratch_of(order: Order) -> Path:
    """Return the home on a node that does not see the daemon's; one per daemon."""
    import hashlib
    import tempfile

    given = order.scratch or os.environ.get(variables.MOSAIC_SCRATCH)
    root = Path(given) if given else Path(tempfile.gettempdir()) / f"mosaic-{os.getuid()}"
    return root / hashlib.sha256(f"{order.target} {order.home}".encode()).hexdigest()[:12]


def _flag(command: tuple[str, ...], name: str) -> str:
    return name if name in command else ""


if __name__ == "__main__":
    sys.exit(main())
