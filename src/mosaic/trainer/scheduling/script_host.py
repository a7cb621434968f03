"""The host process of a script: emits the run's start, heartbeats and end, and forwards requests to its processes.

    python -m mosaic.trainer.scheduling.script_host --script PATH --config FILE [--attempt N]

It works without the daemon: events go to the run's log. The phases that the script starts are separate workers.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from mosaic.contract import variables
from mosaic.contract.events import EventLog
from mosaic.contract.paths import RunPaths
from mosaic.contract.phases import COMPLETED, STOPPED, PhaseRecord, last_step, read_phases
from mosaic.contract.secrets import is_secret, mask_secrets
from mosaic.contract.stopping import STOP_SIGNALS, Stops
from mosaic.store.syncing import FLUSH_SECONDS, STOPPED_FLUSH_SECONDS, Syncer, storage_of
from mosaic.trainer.executors.local import catches

POLL_SECONDS = 0.25
HEARTBEAT_SECONDS = 30.0
GRACE_SECONDS = 120.0
# The time for a phase that used up its grace period to report its end.
AFTER_GRACE = 5.0
# A pause waits this long for every process to stop before it is reported.
STANDING_SECONDS = 5.0
REQUEUE = 75
_STANDS = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_TAIL_LINES = 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run a script as one run; return its exit code, or a failed phase's if it has none."""
    parser = argparse.ArgumentParser(prog="mosaic.trainer.scheduling.script_host", allow_abbrev=False)
    parser.add_argument("--script", required=True, type=Path)
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--attempt", type=int, default=1)
    args = parser.parse_args(argv)
    received: collections.deque[int] = collections.deque()
    stops = Stops()

    def take(number: int, _frame: object) -> None:
        if number not in STOP_SIGNALS or stops.told():
            received.append(number)

    for number in (*STOP_SIGNALS, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, take)
    paths = RunPaths(os.environ[variables.MOSAIC_RUN_ID])
    config = json.loads(args.config.read_bytes())
    with _holding(paths), EventLog(paths.events, paths.run_id) as log, _own_temporary_folder() as temporary:
        paths.phases.unlink(missing_ok=True)
        return _Host(args.script, config, paths, log, (received, stops)).to_end(args.attempt, temporary)


class _Host:
    """A script's bash, in a process group shared with its phases, and the requests to all of them."""

    def __init__(
        self,
        script: Path,
        config: dict[str, Any],
        paths: RunPaths,
        log: EventLog,
        signals: tuple[collections.deque[int], Stops],
    ) -> None:
        self._script, self._config, self._paths, self._log = script, config, paths, log
        self._received, self._stops = signals
        given = (config.get("extras") or {}).get("grace_seconds")
        self._grace = GRACE_SECONDS if given in (None, "") else float(given)
        self._errors_from = _size(paths.worker_stderr_log)
        self._stopped_by: signal.Signals | None = None
        self._kill_at = 0.0
        self._released = False
        self._paused_since: float | None = None
        self._paused_before = 0.0
        self._pause_told = True
        self._asked: set[int] = set()
        self._syncer: Syncer | None = None

    def to_end(self, attempt: int, temporary: Path) -> int:
        """Start the script, follow it, and report its end."""
        if attempt > 1:
            again = f"attempt {attempt}: a script starts over from its first phase; earlier checkpoints are kept"
            self._log.append("warning", {"message": again})
        environment = {**os.environ, variables.TMPDIR: str(temporary)}
        try:
            self._bash = subprocess.Popen(
                ["bash", str(self._script)], env=environment, stdin=subprocess.DEVNULL, process_group=0
            )
        except OSError as error:
            self._fail(127, f"cannot start bash: {error.strerror}")
            return 127
        digest = hashlib.sha256(json.dumps(self._config, sort_keys=True).encode()).hexdigest()
        total = self._config.get("total_timesteps")
        started = {"mode": "script", "total_timesteps": total, "config_digest": digest, **self._which()}
        self._log.append("run_started", self._about({**started, "seed": self._config.get("seed"), "pid": os.getpid()}))
        if url := storage_of(self._config.get("extras") or {}):
            self._syncer = Syncer(self._paths, url, os.environ, self._paths.checkpoints)
        while self._bash.poll() is None:
            while self._received:
                self._act_on(self._received.popleft())
            self._look_after()
            self._wait()
        while self._received and self._bash.returncode:  # signalled together with its bash, which has just died of it
            self._act_on(self._received.popleft())
        self._end_group()
        self._store()
        code = self._end(self._bash.returncode)
        if self._syncer is not None and (trouble := self._syncer.close()):
            print(f"mosaic: {trouble}", file=sys.stderr)
        return code

    def _store(self) -> None:
        """Upload everything except the last event, which marks the end of the run."""
        if self._syncer is None:
            return
        seconds = FLUSH_SECONDS if self._stopped_by is None else STOPPED_FLUSH_SECONDS
        if trouble := self._syncer.flush(seconds, self._is_hurried, lambda: None):
            self._log.append("warning", {"message": trouble})

    def _wait(self) -> None:
        """Sleep until the script ends or the next poll is due."""
        if not hasattr(os, "pidfd_open"):
            time.sleep(POLL_SECONDS)
            return
        descriptor = os.pidfd_open(self._bash.pid)
        try:
            select.select([descriptor], [], [], POLL_SECONDS)
        finally:
            os.close(descriptor)

    def _is_hurried(self) -> bool:
        """Return True on a second stop signal during the final work, or if the first one was long ago."""
        return self._stops.again or (self._stopped_by is None and self._stops.seconds() > STOPPED_FLUSH_SECONDS)

    def _act_on(self, number: int) -> None:
        if number in STOP_SIGNALS:
            self._stop(signal.Signals(number))
        elif number == signal.SIGUSR1 and self._paused_since is None and self._stopped_by is None:
            self._pause()
        elif number == signal.SIGUSR2 and self._paused_since is not None:
            self._go_on()

    def _stop(self, number: signal.Signals) -> None:
        """Ask the phase to end; the script is stopped meanwhile, or it would start the next one."""
        if self._stopped_by is not None:  # asked again: now
            self._signal_group(signal.SIGKILL)
            return
        self._stopped_by, self._kill_at = number, time.monotonic() + self._grace + AFTER_GRACE
        self._bash.send_signal(signal.SIGSTOP)
        for process in self._others():
            _send(process, signal.SIGTERM)
            _send(process, signal.SIGCONT)

    def _pause(self) -> None:
        """Pause the run: workers pause their own algorithms and keep sending events; other processes are stopped."""
        self._bash.send_signal(signal.SIGSTOP)
        self._asked = {process.pid for process in self._others() if catches(process.pid, signal.SIGUSR1)}
        for process in self._others():
            _send(process, signal.SIGUSR1 if process.pid in self._asked else signal.SIGSTOP)
        self._paused_since, self._pause_told = time.monotonic(), False

    def _go_on(self) -> None:
        assert self._paused_since is not None
        self._tell_pause()
        for process in self._others():
            _send(process, signal.SIGUSR2 if process.pid in self._asked else signal.SIGCONT)
        self._bash.send_signal(signal.SIGCONT)
        self._paused_before += time.monotonic() - self._paused_since
        self._paused_since = None
        paused = round(self._paused_before, 3)
        self._log.append("continued", {"step": last_step(self._paths), "paused_seconds": paused})

    def _look_after(self) -> None:
        now = time.monotonic()
        if self._syncer is not None and (trouble := self._syncer.poll()):
            self._log.append("warning", {"message": trouble})
        if self._stopped_by is not None:
            if now >= self._kill_at:
                self._signal_group(signal.SIGKILL)
            elif not self._released and not self._others():
                self._released = True  # its EXIT traps still run
                self._bash.send_signal(signal.SIGTERM)
                self._bash.send_signal(signal.SIGCONT)
            return
        if self._paused_since is not None and not self._pause_told:
            if now - self._paused_since > STANDING_SECONDS or self._all_stand():
                self._tell_pause()
        with contextlib.suppress(OSError):
            # Phases send better heartbeats: this is for the time between them, and for other work of a script.
            if time.time() - self._paths.events.stat().st_mtime >= HEARTBEAT_SECONDS:
                paused = self._paused_since is not None
                self._log.append("heartbeat", self._about({"step": last_step(self._paths), "paused": paused}))

    def _tell_pause(self) -> None:
        if not self._pause_told:
            self._pause_told = True
            self._log.append("paused", {"step": last_step(self._paths)})

    def _all_stand(self) -> bool:
        """Return True if every process except the workers that were asked is stopped."""
        try:
            below = psutil.Process(self._bash.pid).children(recursive=True)
            return all(process.status() in _STANDS for process in below if process.pid not in self._asked)
        except psutil.Error:
            return False  # one has just ended: retry

    def _others(self) -> list[psutil.Process]:
        """Return the living processes of the script's group except its bash; algorithms have their own groups."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                ours = process.pid != self._bash.pid and os.getpgid(process.pid) == self._bash.pid
                if ours and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    found.append(process)
        return found

    def _end_group(self) -> None:
        """End the processes that the script left in the background: they are no longer part of its run."""
        for process in self._others():
            _send(process, signal.SIGTERM)
            _send(process, signal.SIGCONT)
        # A bash that was signalled with everybody else exits before its phase has saved.
        end = time.monotonic() + self._grace if self._stopped_by is None else self._kill_at
        while self._others() and time.monotonic() < end and not self._is_hurried():
            time.sleep(POLL_SECONDS / 5)
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._bash.pid, number)

    def _end(self, returncode: int) -> int:
        """Emit the run's last event; return the host's exit code."""
        phases = read_phases(self._paths)
        code = returncode if returncode >= 0 else 128 - returncode
        if self._stopped_by is not None:
            saved = any(phase.outcome == STOPPED and phase.exit_code == REQUEUE for phase in phases)
            code = REQUEUE if saved else 128 + self._stopped_by
            self._fail(code, f"stopped by {self._stopped_by.name}", phases[-1] if phases else None)
            return code
        failed = [phase for phase in phases if phase.outcome != COMPLETED]
        if code == 0 and not failed:
            told = {"manifest": _json(self._paths.analytics), "phases": len(phases), **self._which()}
            self._log.append("run_completed", self._about(told))
            return 0
        if failed and code in (0, _code(failed[-1])):
            worst = failed[-1]
            self._fail(code or _code(worst), f"phase {worst.number} ({worst.name}) failed: {_words(worst)}", worst)
            return code or _code(worst)
        lines = self._last_lines()
        reason = f"exit code {code}" if returncode >= 0 else _signal_name(-returncode)
        self._fail(code, f"script {self._script.name} failed: {reason}" + (f": {lines[-1]}" if lines else ""))
        return code

    def _fail(self, code: int, error: str, phase: PhaseRecord | None = None) -> None:
        told = {
            "exit_code": code,
            "signal": None,
            "stderr_tail": self._last_lines(),
            "hint": None,
            "error": error,
            "phase": None if phase is None else phase.name,
            "stopped_by": None if self._stopped_by is None else self._stopped_by.name,
            "step": last_step(self._paths),
        }
        self._log.append("run_failed", self._about({**told, **self._which()}))

    def _last_lines(self) -> list[str]:
        """Return the last stderr lines of the script and its workers in this attempt."""
        try:
            text = self._paths.worker_stderr_log.read_bytes()[self._errors_from :][-16384:].decode(errors="replace")
        except OSError:
            return []
        for secret in (value for name, value in os.environ.items() if is_secret(name) and len(value) >= 8):
            text = text.replace(secret, "***")
        return [line for line in str(mask_secrets(text)).splitlines() if line.strip()][-_TAIL_LINES:]

    def _which(self) -> dict[str, Any]:
        """Return the field by which the daemon distinguishes the script's end from its phases'."""
        return {"script": str(self._script)}

    def _about(self, payload: dict[str, Any]) -> dict[str, Any]:
        config = self._config
        extras = config.get("extras") or {}
        return {
            "algo": config.get("algo"),
            "env_id": config.get("env_id"),
            "agent_id": config.get("agent_id") or extras.get("agent_id"),
            "worker_id": config.get("worker_id") or f"script-{self._paths.run_id[:8]}",
            **payload,
        }


@contextlib.contextmanager
def _holding(paths: RunPaths) -> Iterator[None]:
    """Share the run's lock with its phases: the run counts as alive between two phases, too."""
    descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with contextlib.suppress(OSError):  # a disk without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _own_temporary_folder() -> Iterator[Path]:
    """Create a private folder for mktemp and the like; under /tmp, where socket paths stay short."""
    folder = Path(tempfile.mkdtemp(prefix="mosaic-script-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)


def _code(phase: PhaseRecord) -> int:
    """Return a phase's exit code; a phase that recorded none was killed."""
    if phase.exit_code is None:
        return 128 + signal.SIGKILL
    return phase.exit_code if phase.exit_code > 0 else 1


def _words(phase: PhaseRecord) -> str:
    return phase.error or "it ended without a word (killed?)"


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


if __name__ == "__main__":
    sys.exit(main())
