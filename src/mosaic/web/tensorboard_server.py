"""One TensorBoard process per viewed run, each on its own Unix socket; ended when idle."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from mosaic.contract.errors import ConfigError, WorkerError
from mosaic.contract.fields import NOTE_BYTES, read_object
from mosaic.contract.paths import RunPaths
from mosaic.store.stored import ensure
from mosaic.web.tensorboard_process import READY

# Since the last request or signal of an open tab. Starting one takes seconds, keeping one 150 MB.
IDLE_SECONDS = 300.0
START_SECONDS = 120.0
SWEEP_SECONDS = 5.0
MOST = 4


@dataclass(eq=False)
class Board:
    """A running TensorBoard; requests go through `client`."""

    run_id: str
    folder: Path
    process: asyncio.subprocess.Process
    client: httpx.AsyncClient
    used_at: float = field(default_factory=time.monotonic)

    @property
    def lives(self) -> bool:
        return self.process.returncode is None


class TensorBoards:
    """The running boards. Not thread-safe: only for the event loop of the web process."""

    def __init__(self, home: Path, idle_seconds: float = IDLE_SECONDS, most: int = MOST) -> None:
        self.idle_seconds = idle_seconds
        self._home, self._most = home, most
        self._boards: dict[str, Board] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._sweeper: asyncio.Task[None] | None = None

    async def open(self, run_id: str) -> Board:
        """Return the run's board, started if necessary; ConfigError if the run has no event files."""
        async with self._locks.setdefault(run_id, asyncio.Lock()):
            board = self._boards.get(run_id)
            if board is None or not board.lives:
                await self._end(run_id)
                paths = RunPaths(run_id, self._home)
                logs = await asyncio.to_thread(log_folder, paths)
                while len(self._boards) >= self._most:
                    await self._end(min(self._boards.values(), key=lambda one: one.used_at).run_id)
                board = self._boards[run_id] = await _start(run_id, logs, board_name(paths))
                if self._sweeper is None or self._sweeper.done():
                    self._sweeper = asyncio.create_task(self._sweep())
            board.used_at = time.monotonic()
            return board

    def touch(self, run_id: str) -> None:
        """Reset the idle time of a run's board."""
        if board := self._boards.get(run_id):
            board.used_at = time.monotonic()

    def running(self) -> list[str]:
        """Return the ids of the runs with a running board."""
        return [run_id for run_id, board in self._boards.items() if board.lives]

    async def close(self) -> None:
        """End all boards."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for run_id in list(self._boards):
            await self._end(run_id)

    async def _sweep(self) -> None:
        while self._boards:
            await asyncio.sleep(SWEEP_SECONDS)
            for board in list(self._boards.values()):
                if not board.lives or time.monotonic() - board.used_at > self.idle_seconds:
                    await self._end(board.run_id)

    async def _end(self, run_id: str) -> None:
        board = self._boards.pop(run_id, None)
        if board is None:
            return
        with contextlib.suppress(ProcessLookupError):
            board.process.kill()
        await board.process.wait()
        await board.client.aclose()
        shutil.rmtree(board.folder, ignore_errors=True)


def log_folder(paths: RunPaths) -> Path:
    """Return the folder of a run's event files; fetch them if only the run's store has them."""
    for folder in (paths.tensorboard, paths.tensorboard_eval):
        ensure(folder, paths.home)
    for folder in (paths.tensorboard, paths.tensorboard_eval):
        if any(folder.rglob("*tfevents*")):
            return folder
    raise ConfigError(
        f"run {paths.run_id} has no TensorBoard files; every scalar is under Metrics. "
        "Switch TensorBoard on in the form, or train with: --set tensorboard_dir=tensorboard"
    )


def board_name(paths: RunPaths) -> str:
    """Return TensorBoard's name for the run: its given name, as far as a folder name allows, else its id."""
    try:
        name = str(read_object(paths.config_file, "config", NOTE_BYTES).get("run_name") or "")
    except (OSError, ValueError, AttributeError):
        name = ""
    return re.sub(r"[^\w .:=+-]+", "_", name)[:60].strip(" ._") or paths.run_id


async def _start(run_id: str, logs: Path, name: str) -> Board:
    # 0700, and short: a socket's path has at most 107 characters
    folder = Path(tempfile.mkdtemp(prefix="mosaic-tb-"))
    socket, named = folder / "socket", folder / "logs"
    named.mkdir()
    # TensorBoard names a run by its folder below the given one, and the given one itself "."
    (named / name).symlink_to(logs, target_is_directory=True)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "mosaic.web.tensorboard_process", str(named), str(socket)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        said = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
    except TimeoutError:
        said = b""
    if said.decode().strip() != READY:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        shutil.rmtree(folder, ignore_errors=True)
        raise WorkerError(
            f"TensorBoard does not start (exit code {process.returncode}); try: {sys.executable} -m tensorboard.main "
            f"--logdir {logs}"
        )
    client = httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=str(socket)), base_url="http://tensorboard", timeout=60.0
    )
    return Board(run_id, folder, process, client)
