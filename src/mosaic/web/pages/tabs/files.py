"""The Files tab: checkpoints and their pins, policies to evaluate and play, videos, every file."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from nicegui import background_tasks, ui

from mosaic.contract.errors import MosaicError
from mosaic.contract.paths import RunPaths
from mosaic.store.stored import url_of
from mosaic.web import run_files, words
from mosaic.web.layout import tell, trouble
from mosaic.web.pages.run_header import home_path
from mosaic.web.run_files import Elsewhere, File, Saved

if TYPE_CHECKING:
    from mosaic.web.pages.run import RunPage

VIDEOS_SHOWN = 8


async def show(page: RunPage) -> None:
    """Draw the tab; it is redrawn after a change of the run's state or artifacts, or on request."""
    column = ui.column().classes("w-full gap-4")
    shown: dict[str, Any] = {"state": page.run.state, "artifacts": page.run.artifacts}
    asked = 0

    async def draw() -> None:
        """Draw the local files immediately; the store's follow when it answers, which may take a while."""
        nonlocal asked
        asked += 1
        here = await page.web.do(lambda: _Here.look(page.paths))
        _draw(page, column, here, Elsewhere(here.url) if here.url else None, draw, asking=True)
        if here.url:
            background_tasks.create(ask(here, asked), name="ask the store")

    async def ask(here: _Here, number: int) -> None:
        elsewhere = await page.web.do(lambda: run_files.list_elsewhere(page.paths))
        if number == asked and not column.is_deleted:
            _draw(page, column, here, elsewhere, draw)

    async def heard() -> None:
        now = {"state": page.run.state, "artifacts": page.run.artifacts}
        if now != shown:
            shown.update(now)
            await draw()

    await draw()
    page.hear(heard)


@dataclass(frozen=True)
class _Here:
    """The local files of a run, and the URL of its store, "" for none."""

    saved: list[Saved]
    policies: list[File]
    videos: list[File]
    everything: list[File]
    url: str

    @classmethod
    def look(cls, paths: RunPaths) -> _Here:
        lists = (run_files.list_checkpoints(paths), run_files.list_policies(paths), run_files.list_videos(paths))
        return cls(*lists, run_files.list_files(paths), url_of(paths))


def _draw(
    page: RunPage,
    column: ui.column,
    here: _Here,
    elsewhere: Elsewhere | None,
    redraw: Callable[[], Any],
    *,
    asking: bool = False,
) -> None:
    column.clear()
    there, unknown = elsewhere or Elsewhere(""), ""
    with column:
        if elsewhere is not None:
            _draw_store(page, elsewhere, redraw, asking=asking)
            unknown = "the storage has not answered yet" if asking else "what the storage has is not known"
            unknown = unknown if asking or elsewhere.trouble else ""
        _draw_checkpoints(page, sorted([*here.saved, *there.saved], key=lambda one: -one.saved_at), redraw, unknown)
        _draw_policies(page, _with(here.policies, there, ".cleanrl_model"), unknown)
        _draw_videos(page, _with(here.videos, there, ".mp4"), unknown)
        _draw_all(page, sorted([*here.everything, *there.files], key=lambda one: one.path), redraw)


def _with(here: list[File], elsewhere: Elsewhere, ending: str) -> list[File]:
    """Return the files of a kind, including the store's, the last saved first."""
    found = [*here, *(one for one in elsewhere.files if one.path.endswith(ending))]
    return sorted(found, key=lambda one: -one.changed_at)


def _draw_store(page: RunPage, elsewhere: Elsewhere, redraw: Callable[[], Any], *, asking: bool) -> None:
    """Show the location of the run's copy, and which of its files are missing here."""
    with ui.row().classes("w-full items-center gap-3"):
        if asking:
            ui.spinner(size="1.2em")
            ui.label(f"A copy is kept in {elsewhere.url}: asking the storage what is there …").classes(
                "text-sm break-all"
            ).props('role=status data-store="asking"')
            return
        stored = f", up to date {words.age(elsewhere.stored_at)}" if elsewhere.stored_at else ""
        ui.label(f"A copy is kept in {elsewhere.url}{stored}.").classes("text-sm break-all").props('data-store="true"')
        count = len(elsewhere.files) + len(elsewhere.saved)
        if count:
            ui.label(f"{count:,} of its items ({words.size(elsewhere.size)}) are only there.").classes("text-sm")
        if elsewhere.files:
            _fetch_button(page, "Fetch the files", "", redraw)
    if elsewhere.trouble:
        trouble(elsewhere.trouble)
        ui.button("Ask the storage again", icon="refresh", on_click=redraw).props("flat dense no-caps")


def _fetch_button(page: RunPage, word: str, checkpoint: str, then: Callable[[], Any]) -> None:
    """Draw a button that fetches and then continues; it shows its progress."""

    async def fetch() -> None:
        button.props("loading")
        try:
            await page.web.do(lambda: run_files.fetch_all(page.paths, checkpoint))
        except MosaicError as error:
            button.props(remove="loading")
            tell(error)
            return
        found = then()
        if isinstance(found, Awaitable):
            await found

    button = ui.button(word, icon="cloud_download", on_click=fetch).props("flat no-caps dense")


def _draw_checkpoints(page: RunPage, saved: list[Saved], redraw: Callable[[], Any], unknown: str) -> None:
    _heading("Checkpoints", len(saved))
    if not saved:
        _none("None was saved. A run can be resumed from one; the form sets how often they are saved.", unknown)
        return
    ui.label("The newest two, the best and the pinned ones are kept.").classes("text-sm opacity-80")
    with _list():
        for one in saved:
            with _line():
                ui.label(f"step {one.step:,}").classes("font-medium w-40")
                score = f" · return {words.number(one.score)}" if one.score is not None else ""
                kind = "" if one.exact else " · saved in haste: goes on from here, not bit for bit"
                ui.label(f"{words.size(one.size)} · {words.age(one.saved_at)}{score}{kind}").classes(
                    "text-sm opacity-80 grow"
                )
                address = f"/resume?run={page.run_id}&checkpoint={quote(home_path(page, one.path), safe='')}"
                if one.here:
                    _pin_switch(page, one, redraw)
                    _link_button("Resume", "restore", address)
                else:
                    _fetch_button(page, "Fetch and resume", one.path, functools.partial(ui.navigate.to, address))


def _pin_switch(page: RunPage, one: Saved, redraw: Callable[[], Any]) -> None:
    async def change(event: Any) -> None:
        try:
            await page.web.do(lambda: run_files.pin(page.paths, one.path, bool(event.value)))
        except MosaicError as error:
            tell(error)
            await redraw()

    switch = ui.switch("Pin", value=one.pinned, on_change=change).props("dense")
    switch.props["aria-label"] = f"Pin the checkpoint of step {one.step}"
    switch.tooltip("a pinned checkpoint is never deleted")


def _draw_policies(page: RunPage, policies: list[File], unknown: str) -> None:
    _heading("Policies", len(policies))
    if not policies:
        _none("None was saved; one is with save_model.", unknown)
        return
    with _list():
        for one in policies:
            with _line():
                best = one.path.endswith(".best.cleanrl_model")
                ui.label("best" if best else "last").classes("font-medium w-12")
                ui.label(one.path).classes("mosaic-mono text-sm break-all grow min-w-0")
                ui.label(_told(one)).classes("text-sm opacity-80")
                named = quote(home_path(page, one.path), safe="")
                _link_button("Evaluate", "fact_check", f"/policy?policy={named}")
                _link_button("Play", "sports_esports", f"/play?policy={named}")
                _link_button("Download", "download", _address(page, one.path, download=True))


def _draw_videos(page: RunPage, videos: list[File], unknown: str) -> None:
    _heading("Videos", len(videos))
    if not videos:
        _none("None was filmed; capture_video films training, and an evaluation films with its own switch.", unknown)
        return
    with ui.element("div").classes("w-full grid grid-cols-1 md:grid-cols-2 xl:grid-cols-3 gap-4"):
        for one in videos[:VIDEOS_SHOWN]:
            with ui.column().classes("gap-1 min-w-0"):
                # One that only the store has is fetched when played, not when the tab opens.
                ahead = "metadata" if one.here else "none"
                film = ui.element("video").classes("w-full rounded bg-black")
                film.props(f"controls preload={ahead} playsinline")
                film.props["src"] = _address(page, one.path)
                film.props["aria-label"] = f"Video {one.path}"
                ui.link(one.path, _address(page, one.path, download=True)).classes("mosaic-mono text-xs break-all")
                if not one.here:
                    ui.label("only in the store; playing fetches it").classes("text-xs opacity-80")
    if len(videos) > VIDEOS_SHOWN:
        ui.label(f"{len(videos) - VIDEOS_SHOWN} more are among the files below.").classes("text-sm opacity-80")


def _draw_all(page: RunPage, everything: list[File], redraw: Callable[[], Any]) -> None:
    with ui.row().classes("w-full items-center gap-4"):
        total = sum(one.size for one in everything)
        _heading("All files", len(everything), f", {words.size(total)}")
        ui.button("Look again", icon="refresh", on_click=redraw).props("flat dense no-caps")
    with ui.expansion("Show them", icon="folder").classes("w-full"), _list():
        for one in everything[: run_files.MOST_FILES]:
            with _line():
                ui.link(one.path, _address(page, one.path), new_tab=True).classes("mosaic-mono text-sm break-all grow")
                ui.label(_told(one)).classes("text-sm opacity-80")
        if len(everything) > run_files.MOST_FILES:
            ui.label(f"and {len(everything) - run_files.MOST_FILES} more in {page.paths.folder}").classes("text-sm p-2")


def _none(text: str, unknown: str) -> None:
    """Show why a list is empty; while the store's content is unknown, do not claim that nothing exists."""
    ui.label(f"None is here; {unknown}." if unknown else text).classes("text-sm opacity-80")


def _told(one: File) -> str:
    place = "" if one.here else " · only in the store"
    return f"{words.size(one.size)} · {words.age(one.changed_at)}{place}"


def _address(page: RunPage, path: str, *, download: bool = False) -> str:
    return f"/files/{page.run_id}/{quote(path)}" + ("?download=1" if download else "")


def _heading(text: str, count: int, more: str = "") -> None:
    ui.label(f"{text} ({count:,}{more})").classes("text-base font-semibold").props("role=heading aria-level=3")


def _list() -> ui.element:
    return ui.column().classes(
        "w-full gap-0 rounded border border-gray-200 dark:border-neutral-700 divide-y divide-gray-200 "
        "dark:divide-neutral-700"
    )


def _line() -> ui.element:
    return ui.row().classes("w-full items-center gap-x-4 gap-y-1 px-3 py-1.5")


def _link_button(word: str, icon: str, address: str) -> None:
    button = ui.button(word, icon=icon).props("flat no-caps dense")
    button.props["href"] = address
