"""A run's worker in the foreground of this terminal: its config files, its process, its events."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any

from mosaic.wire import variables
from mosaic.wire.errors import ConfigError, EventError, WorkerError
from mosaic.wire.events import Event, decode
from mosaic.wire.paths import RunPaths, write_atomic
from mosaic.wire.secrets import proxy_variables, without_secrets
from mosaic.wire.workers import WorkerCapabilities

# The worker's exit code for a config that it refuses.
REFUSED = 2


class ForegroundWorker:
    """One worker process; `events` must be read to its end before `exit_code` says anything."""

    def __init__(self, capabilities: WorkerCapabilities, config: dict[str, Any], home: Path) -> None:
        self.paths = RunPaths(config["run_id"], home)
        self.strays: list[str] = []
        self.exit_code: int | None = None
        self._seen_event = False
        self._program = f"{capabilities.worker_type}-worker: "
        proxies = proxy_variables(config)
        self._files = write_configs(self.paths, config)
        self._stderr: IO[bytes] = tempfile.TemporaryFile()
        self._process = start([*capabilities.command, "--config", str(self._files[-1])], home, self._stderr, proxies)

    def events(self) -> Iterator[Event]:
        """The worker's events as they come; afterwards the process has ended. A refused config is a ConfigError."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                event = decode(line)
            except EventError:
                self.strays.append(line.decode(errors="replace").rstrip())
                continue
            self._seen_event = True
            yield event
        self.exit_code = self._process.wait()
        if self.exit_code == REFUSED and not self._seen_event:
            for file in self._files:
                file.unlink(missing_ok=True)
            reason = "\n".join(line.removeprefix(self._program) for line in self.stderr_tail())
            raise ConfigError(reason or "the worker refused this config and gave no reason")

    def stderr_tail(self, lines: int = 20) -> list[str]:
        """The last lines that the worker itself, not its algorithm, wrote to stderr."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace").splitlines()[-lines:]

    def ask_to_stop(self) -> None:
        """Pass an interrupt on: the worker ends its algorithm gently, and hard when it is asked a second time."""
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End the worker at once; its algorithm dies with it."""
        self._process.kill()


@contextmanager
def passing_signals(worker: ForegroundWorker, say: Callable[[str], None]) -> Iterator[None]:
    """Inside, interrupts reach the worker instead of this process; `say` tells the person what was done."""
    count = 0

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 2:
            worker.kill()
            say("Killed the worker.")
            return
        worker.ask_to_stop()
        say("Stopping: asked the run to end. Ctrl-C again ends it at once." if count == 1 else "Ending the run now.")

    # Losing the terminal (SIGHUP) would otherwise leave the worker, which is in a group of its own, behind; what is
    # ignored, as under nohup, stays ignored.
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [number for number in wanted if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, handle) for number in heard}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def write_configs(paths: RunPaths, config: dict[str, Any]) -> tuple[Path, Path]:
    """Write the accepted config and the worker's own copy of it, logins masked."""
    accepted, given = paths.config_file, paths.worker_config(next_slot(paths.configs_folder))
    for file in (accepted, given):
        write_atomic(file, json.dumps(without_secrets(config), indent=2) + "\n")
    return accepted, given


def next_slot(folder: Path) -> int:
    """The number after the highest that any worker config in the folder carries."""
    slots = (file.stem.rpartition("-")[2] for file in folder.glob("worker-*-*.json"))
    return max((int(slot) for slot in slots if slot.isdecimal()), default=0) + 1


def start(command: list[str], home: Path, stderr: IO[bytes], proxies: dict[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **proxies, variables.MOSAIC_HOME: str(home)},
            process_group=0,
        )
    except OSError as error:
        raise WorkerError(f"cannot start the worker {command[0]!r}: {error.strerror}") from error
