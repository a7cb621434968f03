"""The stream of changes: batched, filtered, reconnected, and deaf to one page's trouble."""

import asyncio
import queue
from collections.abc import Callable, Iterator
from typing import Any

from web_site import in_a_loop

from mosaic.contract.errors import NoDaemonError
from mosaic.trainer.rpc.client import Change, State
from mosaic.web.live import Hub


class Daemon:
    """The two calls of a client that the hub makes, over a queue."""

    def __init__(self) -> None:
        self.changes: queue.Queue[Change | None] = queue.Queue()
        self.away = False
        self.cursors: list[int] = []

    def health(self) -> dict[str, Any]:
        if self.away:
            raise NoDaemonError("gone")
        return {}

    def watch_runs(self, cursor: int, *, progress: bool) -> Iterator[Change]:
        self.cursors.append(cursor)
        while (change := self.changes.get()) is not None:
            yield change
        raise NoDaemonError("gone")


def change(cursor: int, run_id: str = "a", kind: str = "moved") -> Change:
    return Change(cursor, kind, run_id, None, State.EXECUTING, "", 0.0, None)


def within_loop(test: Callable[[Hub, Daemon], Any]) -> list[Exception]:
    trouble: list[Exception] = []

    async def main() -> None:
        daemon = Daemon()
        hub = Hub(lambda: daemon, trouble.append)  # type: ignore[arg-type, return-value]
        hub.start()
        try:
            await test(hub, daemon)
        finally:
            hub.stop()
            daemon.changes.put(None)

    in_a_loop(main())
    return trouble


async def until(look: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not look():
            await asyncio.sleep(0.01)


def test_listeners_get_their_runs_moves_and_of_numbers_the_newest() -> None:
    async def test(hub: Hub, daemon: Daemon) -> None:
        all_of_them: list[Change] = []
        of_b: list[Change] = []
        hub.listen(all_of_them.extend)
        end = hub.listen(of_b.extend, "b")
        for one in (change(1), change(2), *(change(2, "b", "progress") for _ in range(50)), change(3, "b")):
            daemon.changes.put(one)
        await until(lambda: [one for one in all_of_them if one.cursor == 3])
        assert [(one.run_id, one.kind) for one in of_b].count(("b", "moved")) == 1
        assert {one.cursor for one in all_of_them} == {1, 2, 3} and len(of_b) < 20
        end()
        daemon.changes.put(change(4, "b"))
        await until(lambda: all_of_them[-1].cursor == 4)
        assert of_b[-1].cursor == 3

    assert within_loop(test) == []


def test_one_page_in_trouble_keeps_no_change_from_the_others() -> None:
    heard: list[Change] = []

    async def test(hub: Hub, daemon: Daemon) -> None:
        hub.listen(lambda changes: 1 / 0)
        hub.listen(heard.extend)
        daemon.changes.put(change(1))
        await until(lambda: heard)

    assert isinstance(within_loop(test)[0], ZeroDivisionError)


def test_connection_that_was_lost_is_told_and_followed_on_from_its_cursor() -> None:
    async def test(hub: Hub, daemon: Daemon) -> None:
        heard: list[list[Change]] = []
        states: list[bool] = []
        hub.listen(heard.append)
        hub.watch_connection(states.append)
        daemon.changes.put(change(7))
        await until(lambda: heard)
        daemon.away = True
        daemon.changes.put(None)
        await until(lambda: states == [False])
        daemon.away = False
        await until(lambda: states == [False, True] and [] in heard)
        await until(lambda: daemon.cursors == [-1, 7])

    assert within_loop(test) == []
