"""The banner of a disk that fills up, and of a daemon that cannot write."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic.contract.errors import MosaicError, NoDaemonError
from mosaic.trainer.rpc.client import Client
from mosaic.web import words

AMBER, RED = 90, 95  # percent
LOOK_SECONDS = 3.0

Ask = Callable[[Callable[[Client], str]], Awaitable[str]]


@dataclass(frozen=True)
class Notice:
    """The text of a banner, and its colour."""

    text: str
    red: bool


def notice_of(used: int, free: int, trouble: str) -> Notice | None:
    """Return the notice for a disk with so many bytes in use and left, and a daemon with this problem."""
    percent = 100 * used / (used + free) if used + free else 0.0  # of the users' part; the rest is the system's
    left = f"{words.size(free)} are left"
    if trouble:
        disk = f"{left} on the disk of the home. " if percent >= AMBER else ""
        return Notice(f"{disk}The trainer daemon has a problem: {trouble}", red=True)
    if percent < AMBER:
        return None
    # Rounded down: the colour changes at whole percents.
    text = f"The disk of the home is {int(percent)} % full: {left}; delete runs, or: mosaic gc"
    return Notice(text, red=percent >= RED)


class DiskWatch:
    """A monitor that checks disk and daemon every few seconds, once for all pages."""

    def __init__(self, home: Path, ask: Ask, usage: Callable[[Path], Any] = shutil.disk_usage) -> None:
        self._home, self._ask, self._usage = home, ask, usage
        self._watchers: set[Callable[[], Any]] = set()
        self.notice: Notice | None = None
        self.trouble = ""

    def start(self) -> None:
        """Start the monitor; must be called in the event loop."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    def stop(self) -> None:
        self._task.cancel()

    def watch(self, call: Callable[[], Any]) -> Callable[[], None]:
        """Call back when the notice changes; return the function that ends it."""
        self._watchers.add(call)
        return lambda: self._watchers.discard(call)

    async def look(self) -> None:
        """Check once, and call back if the notice changed."""
        before = self.notice, self.trouble
        try:
            self.trouble = await self._ask(lambda client: str(client.health()["trouble"]))
        except NoDaemonError:  # reported by its own banner
            self.trouble = ""
        except MosaicError as error:
            self.trouble = str(error)
        with contextlib.suppress(OSError):
            usage = await asyncio.to_thread(self._usage, self._home)
            self.notice = notice_of(usage.used, usage.free, self.trouble)
        if before != (self.notice, self.trouble):
            for call in list(self._watchers):
                call()

    async def _work(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)
