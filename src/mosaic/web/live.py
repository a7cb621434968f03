"""The stream of run changes from the daemon to every open page: one for all pages, with automatic reconnection."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mosaic.contract.errors import MosaicError
from mosaic.trainer.rpc.client import Change, Client

# Four times a second is as fast as users read, and does not congest a browser's socket.
FLUSH_SECONDS = 0.25
RETRY_SECONDS = 0.5

Heard = Callable[[list[Change]], Any]


@dataclass(eq=False)
class Listener:
    """A subscriber to changes; `call` gets [] after a reconnection: reload everything."""

    call: Heard
    run_id: str = ""
    waiting: dict[tuple[str, str], Change] = field(default_factory=dict)
    look_again: bool = False

    def add(self, change: Change) -> None:
        # Of progress only the newest matters; state changes are all kept, by their cursor.
        key = change.kind if change.kind == "progress" else f"{change.kind}-{change.cursor}"
        self.waiting[change.run_id, key] = change


class Hub:
    """The subscription to the daemon, in a thread; it calls listeners in the event loop."""

    def __init__(self, find_client: Callable[[], Client], trouble: Callable[[Exception], None]) -> None:
        self._find_client, self._trouble = find_client, trouble
        self._listeners: set[Listener] = set()
        self._watchers: set[Callable[[bool], Any]] = set()
        self._stopping = threading.Event()
        self.connected = True

    def start(self) -> None:
        """Start the thread; must be called in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._flush())
        threading.Thread(target=self._follow, name="changes", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()
        self._task.cancel()

    def listen(self, call: Heard, run_id: str = "") -> Callable[[], None]:
        """Subscribe to changes of one run, or of all, in the event loop; return the function that ends it."""
        listener = Listener(call, run_id)
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def watch_connection(self, call: Callable[[bool], Any]) -> Callable[[], None]:
        """Call back when the daemon disconnects or reconnects; return the function that ends it."""
        self._watchers.add(call)
        return lambda: self._watchers.discard(call)

    def _follow(self) -> None:
        cursor = -1
        while not self._stopping.is_set():
            with contextlib.suppress(MosaicError):
                client = self._find_client()
                client.health()
                self._call(self._set_connected, True)
                for change in client.watch_runs(cursor, progress=True):
                    cursor = max(cursor, change.cursor)
                    self._call(self._heard, change)
                    if self._stopping.is_set():
                        return
            self._call(self._set_connected, False)
            self._stopping.wait(RETRY_SECONDS)

    def _call(self, function: Callable[..., None], *values: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended before this thread
            self._loop.call_soon_threadsafe(function, *values)

    def _set_connected(self, connected: bool) -> None:
        if connected == self.connected:
            return
        self.connected = connected
        for listener in self._listeners if connected else ():
            listener.look_again = True
        for call in list(self._watchers):
            self._safely(call, connected)

    def _heard(self, change: Change) -> None:
        for listener in self._listeners:
            if listener.run_id in ("", change.run_id):
                listener.add(change)

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            for listener in list(self._listeners):
                changes = [*listener.waiting.values()]
                listener.waiting.clear()
                if listener.look_again:
                    listener.look_again = False
                    self._safely(listener.call, [])
                if changes:
                    self._safely(listener.call, changes)

    def _safely(self, call: Callable[[Any], Any], value: Any) -> None:
        try:
            call(value)
        except Exception as error:  # one page's error must not keep the others from their changes
            self._trouble(error)
