"""The context of every page: the home, the daemon's client, the algorithms, the log, the stream of changes."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from mosaic.contract.channel import daemon_card, read_card
from mosaic.contract.errors import MosaicError
from mosaic.contract.happenings import Happenings
from mosaic.contract.workers import WorkerCapabilities, discover_workers, schema_of
from mosaic.trainer.rpc.client import Client, Run
from mosaic.web.disk import DiskWatch
from mosaic.web.live import Hub

# Calls wait for the daemon, not for a core: enough that one slow response does not block another user's page.
THREADS = 16

_Answer = TypeVar("_Answer")


class Web:
    """The state of one web process, shared by all pages."""

    def __init__(self, home: Path) -> None:
        self.home = home.resolve()
        self.happenings = Happenings(self.home / "var" / "logs" / "gym_gui.log")
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="ask")
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._card: Any = None
        self.hub = Hub(lambda: self.client, self.page_trouble)
        self.disk = DiskWatch(self.home, self.ask)
        self.workers, self.worker_problems = discover_workers()

    def seen(self, run: Run) -> Run:
        """Return the run as pages show it: without a remaining time if its worker may have ended since."""
        return run if self.hub.connected and not self.disk.trouble else replace(run, eta_seconds=None)

    def start(self) -> None:
        """Start following runs and disk; must be called in the event loop."""
        self.hub.start()
        self.disk.start()

    @property
    def runs_folder(self) -> Path:
        return self.home / "var" / "trainer" / "runs"

    @property
    def client(self) -> Client:
        """Return a client of this home's current daemon; calls block, so pages use `ask`."""
        card = read_card(daemon_card(self.home))
        with self._lock:
            if self._client is None or (card and card != self._card):
                # An older client stays open for its callers: closing it would break their streams.
                self._client, self._card = Client(home=self.home), card
            return self._client

    async def ask(self, call: Callable[[Client], _Answer]) -> _Answer:
        """Run a blocking call on the daemon's client in a thread; MosaicError reports a failure."""
        return await self.do(lambda: call(self.client))

    async def do(self, work: Callable[[], _Answer]) -> _Answer:
        """Run any other blocking work (files, subprocesses) in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    @functools.cached_property
    def worker(self) -> WorkerCapabilities | None:
        """Return the worker that forms submit to: CleanRL's if installed, else the first one found."""
        return self.workers.get("cleanrl") or next(iter(self.workers.values()), None)

    @functools.cached_property
    def _schema(self) -> dict[str, Any]:
        return schema_of(self.worker) if self.worker else {}

    def schema(self) -> dict[str, Any]:
        """Return the algorithms and their fields, by name; {} without a worker."""
        return self._schema

    def page_trouble(self, error: BaseException) -> None:
        """Log a page's failure; the page itself reports it to the user."""
        level = self.happenings.note if isinstance(error, MosaicError) else self.happenings.warn
        level("ui.page_trouble", error=f"{type(error).__name__}: {error}")

    def close(self) -> None:
        self.happenings.note("ui.stopped")
        self.hub.stop()
        self.disk.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.happenings.close()
