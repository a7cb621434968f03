"""Runs as processes of this machine: started in their own session, known by identity, ended with all descendants."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from mosaic.contract import variables
from mosaic.contract.errors import ConfigError, WorkerError, storage_error
from mosaic.contract.identity import LINUX, TICKS_PER_SECOND, boot_id, is_running, start_ticks
from mosaic.trainer.executors.contract import Exit, Identity, Launch


class LocalExecutor:
    """Starts, watches and ends the processes of runs."""

    name, here, only_here = "local", True, True

    def __init__(self) -> None:
        self._children: dict[Identity, subprocess.Popen[bytes]] = {}

    def check(self, resources: Mapping[str, Any]) -> None:
        """Refuse options that only a cluster supports."""
        if resources.get("slurm"):
            raise ConfigError('resources.slurm goes with executor "slurm"; this run would run on the daemon\'s machine')
        if (resources.get("ray") or {}).get("custom"):
            raise ConfigError('resources.ray goes with executor "ray"; this run would run on the daemon\'s machine')

    def waits_for(self) -> str:
        """Return "": this machine is always available."""
        return ""

    def start(self, launch: Launch) -> Identity:
        """Start a worker that does not depend on this process: its own session, files instead of pipes."""
        command, stdout, stderr = launch.command, launch.stdout, launch.stderr
        try:
            with stdout.open("ab") as out, stderr.open("ab") as err:
                child = subprocess.Popen(
                    list(command),
                    cwd=launch.folder,
                    env=dict(launch.environment),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
        except OSError as error:
            if error.filename in (str(stdout), str(stderr)):
                raise storage_error(error.filename, error) from None
            raise WorkerError(f"cannot start {command[0]!r}: {error.strerror}") from error
        # Our own unreaped child keeps its pid, so this tick is that of our child.
        identity = Identity(child.pid, start_ticks(child.pid, dead=True) or 0, boot_id())
        self._children[identity] = child
        return identity

    def alive(self, identity: Identity) -> bool:
        """Return True if exactly this process runs; False for a zombie."""
        child = self._children.get(identity)
        if child is not None:
            return child.poll() is None
        return is_running(identity.pid, identity.start_ticks, identity.boot_id)

    def exit(self, identity: Identity) -> Exit:
        """Return the exit of a process that is no longer alive; repeatable until it is forgotten."""
        child = self._children.get(identity)
        if child is None or child.returncode is None:
            return Exit(None)
        if child.returncode >= 0:
            return Exit(child.returncode)
        return Exit(child.returncode, _signal_name(-child.returncode))

    def last_word(self, identity: Identity, told: Exit) -> Exit | None:
        """Return the worker's own report."""
        return told

    def forget(self, identity: Identity) -> None:
        """Forget a worker whose end was recorded."""
        self._children.pop(identity, None)

    def running_on(self, identity: Identity) -> str:
        """Return "": the name of this machine is not shown."""
        return ""

    def waits_because(self, identity: Identity) -> str:
        """Return "": a started process never waits."""
        return ""

    def elapsed_seconds(self, identity: Identity) -> float:
        """Return for how long the process has existed."""
        return elapsed_seconds(identity)

    def terminate(self, identity: Identity, nonce: str = "", grace: float = 0.0) -> None:
        """Ask the worker, and only it, to end; it saves its algorithm's checkpoint."""
        self._send(identity, signal.SIGTERM)

    def pause(self, identity: Identity, nonce: str) -> bool:
        """Pause a run; return True if its worker was asked and will report it, False if its processes were stopped."""
        if catches(identity.pid, signal.SIGUSR1):
            self._send(identity, signal.SIGUSR1)
            return True
        self._send_all(identity, nonce, signal.SIGSTOP)
        return False

    def go_on(self, identity: Identity, nonce: str) -> bool:
        """Continue a paused run; return True if its worker will report it."""
        if catches(identity.pid, signal.SIGUSR2):
            self._send(identity, signal.SIGUSR2)
            return True
        self._send_all(identity, nonce, signal.SIGCONT)
        return False

    def wake(self, identity: Identity, nonce: str) -> None:
        """Let processes that were stopped here receive pending requests; workers that pause themselves do so anyway."""
        if not catches(identity.pid, signal.SIGUSR2):
            self._send_all(identity, nonce, signal.SIGCONT)

    def kill_tree(self, identity: Identity | None, nonce: str, seconds: float = 4.0) -> bool:
        """End every process of a run by force; return True if none is left."""
        end = time.monotonic() + seconds
        while True:
            left = processes_of(identity, nonce)
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            if identity is not None and (child := self._children.get(identity)) is not None:
                child.poll()
            if not left or time.monotonic() >= end:
                return not left
            time.sleep(0.02)

    def find(self, nonce: str) -> Identity | None:
        """Return the worker that carries this nonce: the leader of its session."""
        for process in _carriers(nonce):
            with contextlib.suppress(OSError, psutil.Error):
                if os.getsid(process.pid) == process.pid:
                    ticks = start_ticks(process.pid)
                    return None if ticks is None else Identity(process.pid, ticks, boot_id())
        return None

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _send(self, identity: Identity, number: signal.Signals) -> None:
        if self.alive(identity):
            with contextlib.suppress(ProcessLookupError):
                os.kill(identity.pid, number)

    def _send_all(self, identity: Identity, nonce: str, number: signal.Signals) -> None:
        for process in processes_of(identity, nonce):
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)


def processes_of(identity: Identity | None, nonce: str) -> list[psutil.Process]:
    """Return the processes of a run: those with its nonce and, while its worker lives, its session and descendants."""
    found = {process.pid: process for process in _carriers(nonce)}
    if identity is not None and is_running(identity.pid, identity.start_ticks, identity.boot_id):
        with contextlib.suppress(psutil.Error):
            leader = psutil.Process(identity.pid)
            found.update({process.pid: process for process in (leader, *leader.children(recursive=True))})
        for process in psutil.process_iter():
            with contextlib.suppress(OSError):
                # A session id is not reused while its leader lives.
                if os.getsid(process.pid) == identity.pid:
                    found[process.pid] = process
    return [process for process in found.values() if process.pid != os.getpid() and _runs(process)]


def elapsed_seconds(identity: Identity) -> float:
    """Return for how long a process has existed, by a clock that cannot be set."""
    if LINUX:
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - identity.start_ticks / TICKS_PER_SECOND)
    return max(0.0, time.time() - identity.start_ticks / TICKS_PER_SECOND)


def _carriers(nonce: str) -> list[psutil.Process]:
    if not nonce:
        return []
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(variables.MOSAIC_ATTEMPT) == nonce:
                found.append(process)
    return found


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def catches(pid: int, number: signal.Signals) -> bool:
    """Return True if a process handles a signal; otherwise the signal would kill it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return not LINUX  # unknown there: workers support it by contract
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
