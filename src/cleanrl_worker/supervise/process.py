"""The algorithm's process, which the shell starts, pauses and stops."""

from __future__ import annotations

import collections
import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO

from cleanrl_worker.fastlane import settings
from cleanrl_worker.foreign.where import LAUNCHER, SOURCES
from mosaic.contract import variables
from mosaic.contract.drawing import choose_gl
from mosaic.contract.errors import StorageError, WorkerError
from mosaic.contract.paths import write_atomic
from mosaic.contract.stopping import STOP_SIGNALS, Stops

if TYPE_CHECKING:
    from cleanrl_worker.plan.plan import Plan
    from mosaic.contract.paths import RunPaths

ONLOOKER = "cleanrl_worker.fastlane.vector_wrapper"
CHOOSERS = "cleanrl_worker.envs.automatic"
STDERR_LINES = 20
# Enough for 20 lines of a traceback, and quick to read however large the log is.
_TAIL_BYTES = 64 * 1024


class AlgorithmProcess:
    """An algorithm in its own process group, of which no process outlives the shell.

    Start it from the main thread: Linux ties the child's life to the thread that forked it. `poll` reaps it, enforces
    the grace period of `stop`, and kills the rest of the group.
    """

    def __init__(self, plan: Plan, paths: RunPaths, environment: Mapping[str, str]) -> None:
        self._pause_file = paths.pause_file
        self._stderr_log = paths.stderr_log
        self._paused_since: float | None = None
        self._paused_before = 0.0
        self._kill_at: float | None = None
        self._returncode: int | None = None
        lifeline, self._lifeline = os.pipe()
        try:
            with _append(paths.stdout_log) as stdout, _append(paths.stderr_log) as stderr, _holding_back():
                self._stderr_start = os.fstat(stderr.fileno()).st_size
                self._popen = subprocess.Popen(
                    [plan.interpreter, str(LAUNCHER), *_launcher_flags(plan, lifeline, environment), "--", *plan.argv],
                    cwd=paths.folder,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=(lifeline,),
                    # A separate group in the same session: if the shell dies while the group is stopped, POSIX
                    # wakes it, so the lifeline works even where pipes send no signals.
                    process_group=0,
                )
        except OSError as error:
            os.close(self._lifeline)
            raise WorkerError(f"cannot start {plan.interpreter}: {error.strerror}; is it a Python?") from error
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline)
        self.pid = self._popen.pid
        self._pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None

    @property
    def paused(self) -> bool:
        """Return True if the group is stopped."""
        return self._paused_since is not None

    @property
    def paused_seconds(self) -> float:
        """Return the total paused time of the group, including the current pause."""
        present = time.monotonic() - self._paused_since if self._paused_since is not None else 0.0
        return self._paused_before + present

    def pause(self) -> bool:
        """Suspend the whole group; return False if it is already paused, stopping or ended."""
        if self.paused or self._kill_at is not None or self._returncode is not None:
            return False
        self._signal_group(signal.SIGSTOP)
        self._paused_since = time.monotonic()
        return True

    def go_on(self) -> bool:
        """Resume a paused group; the algorithm reads the paused seconds from the pause file."""
        if self._paused_since is None:
            return False
        self._paused_before, self._paused_since = self.paused_seconds, None
        try:
            write_atomic(self._pause_file, f"{self._paused_before:.3f}\n")
        except (OSError, StorageError):
            pass  # only the reported throughput suffers, and a full disk is reported elsewhere
        self._signal_group(signal.SIGCONT)
        return True

    def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM to the algorithm; kill its group after the grace period or at the second call.

        Only the algorithm itself gets the signal: its environment processes must live while it saves.
        """
        if self._kill_at is not None:
            self.kill()
            return
        self._kill_at = time.monotonic() + grace_seconds
        if self._returncode is None:
            os.kill(self.pid, signal.SIGTERM)
            self.go_on()

    def kill(self) -> None:
        """Kill the whole group."""
        if self._returncode is None:
            self._signal_group(signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit code after the end (negative: the signal that killed it), else None."""
        if self._returncode is not None:
            return self._returncode
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self.kill()
        if self._has_ended():
            self.kill()  # the rest of the group; before reaping, so that the group id is not reused
            self._returncode = self._popen.wait()
            os.close(self._lifeline)
            if self._pidfd is not None:
                os.close(self._pidfd)
        return self._returncode

    def wait(self, seconds: float) -> None:
        """Sleep until the algorithm ends, up to a timeout."""
        if self._returncode is not None:
            return
        if self._pidfd is not None:
            select.select([self._pidfd], [], [], seconds)
        else:
            time.sleep(seconds)

    def close(self) -> int:
        """Kill the group if it is alive, and reap it."""
        self.kill()
        while self.poll() is None:
            self.wait(1.0)
        assert self._returncode is not None
        return self._returncode

    def last_lines(self) -> list[str]:
        """Return the last lines that this process wrote to its stderr log."""
        try:
            with self._stderr_log.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self._stderr_start, end - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return []
        return text.splitlines()[-STDERR_LINES:]

    def _has_ended(self) -> bool:
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return self._popen.poll() is not None

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # no process left; macOS returns EPERM if only the unreaped leader is left


def child_environment(
    extras: Mapping[str, Any], plan: Plan, paths: RunPaths, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the algorithm's environment variables; the caller handles secrets and W&B's."""
    environment = dict(inherited)
    environment[variables.PYTHONUNBUFFERED] = "1"
    environment[variables.SDL_NO_SIGNAL_HANDLERS] = "1"
    choose_gl(environment)
    environment[variables.MOSAIC_HOME] = str(paths.home)
    environment[variables.MOSAIC_RUN_ID] = paths.run_id
    environment[variables.MOSAIC_SHELL_PID] = str(os.getpid())
    # Threads that spin while waiting for work take cores from those that step the environments: with as many busy
    # processes as cores, a rollout of Atari games took thirty times as long.
    environment.setdefault(variables.OMP_WAIT_POLICY, "passive")
    # The next run of this home reuses JAX's compilation cache.
    environment.setdefault(variables.JAX_COMPILATION_CACHE_DIR, str(paths.home / "var" / "cache" / "jax"))
    environment.setdefault(variables.JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS, "0.1")
    if plan.num_threads > 0:
        for name in (variables.OMP_NUM_THREADS, variables.OPENBLAS_NUM_THREADS, variables.MKL_NUM_THREADS):
            environment[name] = str(plan.num_threads)
    elif plan.ours and "_jax" in plan.name:  # all cores are for XLA; numpy only acts, and its idle threads spin
        environment.setdefault(variables.OPENBLAS_NUM_THREADS, "1")
    if plan.ours and extras.get("telemetry") == "steps" and not extras.get("fastlane_only"):
        environment[variables.MOSAIC_STEP_LOG] = str(paths.notes)
    given = {
        variables.CLEANRL_AGENT_ID: extras.get("agent_id"),
        variables.CLEANRL_NUM_ENVS: (extras.get("algo_params") or {}).get("num_envs"),
    }
    environment.update({name: str(value) for name, value in given.items() if value not in (None, "")})
    environment.update(settings.fastlane_variables(extras, inherited))
    return environment


class Signals:
    """A queue of the signals that the shell receives; its loop handles them.

    Simultaneous signals are handled by number (pause, then continue): the kernel does not keep the order of pending
    signals, and a wake-up pipe often receives the reverse. Only stop signals that count are kept.
    """

    def __init__(self) -> None:
        self.received: collections.deque[int] = collections.deque()
        self.stops = Stops()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (*STOP_SIGNALS, signal.SIGUSR1, signal.SIGUSR2):
                if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue  # nohup: the run is meant to outlive its terminal
                self._previous[number] = signal.signal(number, self.take)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def take(self, number: int, frame: FrameType | None = None) -> None:
        """Queue a signal, or a daemon's request in its place; stop signals at the same time count as one."""
        if number not in STOP_SIGNALS or self.stops.told():
            self.received.append(number)


@contextlib.contextmanager
def _holding_back() -> Iterator[None]:
    """Block stop signals for a process started inside, until its launcher unblocks them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _launcher_flags(plan: Plan, lifeline: int, environment: Mapping[str, str]) -> list[str]:
    flags = ["--shell-pid", str(os.getpid()), "--lifeline", str(lifeline)]
    if settings.is_on(environment):
        flags += ["--fastlane", "own", "--onlooker", ONLOOKER] if plan.ours else ["--fastlane", "foreign"]
    if plan.ours and any(flag.startswith("--curriculum=") for flag in plan.argv):
        flags += ["--onlooker", CHOOSERS]
    if plan.era.era:
        flags += ["--era", plan.era.era, *(["--count-episodes"] if plan.era.count_episodes else [])]
    if plan.era.also_path:
        flags += ["--also-path", plan.era.also_path]
    if plan.script is not None:
        return [*flags, "--script", str(plan.script)]
    flags += ["--module", str(plan.module)]
    if plan.callable != "main":
        flags.append("--as-main")
    if plan.ours:
        flags += ["--ours", "--also-path", str(SOURCES)]
    # The algorithm's folder is the run's; modules that the shell found in its own must still be importable.
    return [*flags, "--also-path", os.getcwd()]


def _append(path: Path) -> BinaryIO:
    try:
        return path.open("ab")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
