"""The banner of a disk that fills up, with a disk of the test; and that stale pages show no remaining time."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mosaic.contract.errors import NoDaemonError, UnavailableError
from mosaic.trainer.rpc.client import Run, State
from mosaic.web.context import Web
from mosaic.web.disk import DiskWatch, notice_of
from mosaic.web.run_rows import eta_of


@pytest.mark.parametrize(
    ("used", "red"), [(0, None), (899, None), (900, False), (949, False), (950, True), (999, True), (1000, True)]
)
def test_from_ninety_percent_on_it_is_amber_and_from_ninety_five_on_red(used: int, red: bool | None) -> None:
    found = notice_of(used * 10**6, (1000 - used) * 10**6, "")
    assert (None if found is None else found.red) == red
    if found is not None:
        left = {0: "0 B", 1: "1.0 MB", 50: "50.0 MB", 51: "51.0 MB", 100: "100 MB"}[1000 - used]
        assert f"{used // 10} % full: {left} are left" in found.text


def test_a_registry_that_cannot_be_written_is_red_and_shows_up_to_when_the_states_are_true() -> None:
    told = "the registry cannot be used now: database or disk is full; the states of runs are true up to 2026-01-02"
    found = notice_of(1000, 0, told)
    assert found is not None and found.red
    assert found.text.startswith("0 B are left on the disk of the home. ") and found.text.endswith("up to 2026-01-02")
    assert notice_of(1, 1000, told).text.startswith("The trainer daemon has a problem: ")  # type: ignore[union-attr]


class Seen:
    """A watch on a disk and a daemon of the test, and how often it called back."""

    def __init__(self) -> None:
        self.used, self.answer = 10, ""
        self.calls = 0
        self.watch = DiskWatch(Path("/"), self.ask, lambda path: SimpleNamespace(used=self.used, free=100 - self.used))
        self.watch.watch(self.count)

    async def ask(self, call: Callable[[Any], str]) -> str:
        if isinstance(self.answer, Exception):
            raise self.answer
        return call(SimpleNamespace(health=lambda: {"trouble": self.answer}))

    def count(self) -> None:
        self.calls += 1

    def look(self) -> Any:
        asyncio.run(self.watch.look())
        return self.watch.notice


def test_pages_are_called_when_the_notice_changes_and_only_then() -> None:
    seen = Seen()
    assert seen.look() is None and seen.calls == 0
    seen.used = 92
    assert not seen.look().red and seen.calls == 1
    seen.look()
    assert seen.calls == 1
    seen.answer = "disk is full; the states of runs are true up to noon"
    assert seen.look().red and "up to noon" in seen.look().text and seen.calls == 2
    seen.answer = UnavailableError("it cannot be read either")  # type: ignore[assignment]
    assert "it cannot be read either" in seen.look().text
    seen.answer = NoDaemonError("gone")  # type: ignore[assignment]
    assert not seen.look().red and seen.watch.trouble == "", "another banner says that"
    seen.used, seen.answer = 10, ""
    assert seen.look() is None


def test_a_page_that_may_be_stale_shows_no_remaining_time(tmp_path: Path) -> None:
    web = Web(tmp_path)
    run = Run("a", State.EXECUTING, total_timesteps=10, step=5, sps=1.0, eta_seconds=5.0, started_at=1.0)
    assert eta_of(web.seen(run)) == "5 s left"
    web.disk.trouble = "the registry cannot be written"
    assert eta_of(web.seen(run)) == ""
    web.disk.trouble, web.hub.connected = "", False
    assert eta_of(web.seen(run)) == ""


def test_the_disk_of_the_home_is_looked_at(tmp_path: Path) -> None:
    seen = Seen()
    watch = DiskWatch(tmp_path, seen.ask)
    asyncio.run(watch.look())
    usage = shutil.disk_usage(tmp_path)
    assert (watch.notice is None) == (usage.used / (usage.used + usage.free) < 0.9)
