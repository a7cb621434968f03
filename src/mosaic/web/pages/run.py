"""The page of a run: its state and reason, its progress, its actions, and a tab for each kind of data."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import Request, Response, WebSocket
from nicegui import app, background_tasks, context, ui
from starlette.responses import PlainTextResponse, StreamingResponse

from mosaic.contract.errors import MosaicError, UnknownRunError
from mosaic.contract.paths import RunPaths, check_run_id
from mosaic.trainer.rpc.client import Change, Run, Series
from mosaic.web import curves, files, tensorboard_proxy
from mosaic.web.context import Web
from mosaic.web.frame_socket import FrameSockets
from mosaic.web.layout import on_changes, on_freshness, page_at, trouble
from mosaic.web.pages import run_header
from mosaic.web.pages.tabs import config, events, live, logs, metrics, notes, tensorboard, wandb
from mosaic.web.pages.tabs import files as files_tab
from mosaic.web.tensorboard_server import TensorBoards

SCRIPT = (Path(__file__).parents[1] / "run_page.js").read_text(encoding="utf-8")
# Artifacts (a first policy, a checkpoint) and new metrics come without a change of state.
LOOK_SECONDS = 5.0
# A message of the daemon holds 64 MiB, a point 24 bytes.
CSV_POINTS = 2_000_000

Tab = Callable[["RunPage"], Awaitable[None]]


def add(web: Web) -> None:
    """Register the page, and its data addresses."""
    boards = TensorBoards(web.home)
    app.on_shutdown(boards.close)
    _add_addresses(web, boards)

    @page_at(web, "/run/{run_id}", "Run")
    async def show(run_id: str, tab: str = "") -> None:
        check_run_id(run_id)
        page = RunPage(web, boards, await web.ask(lambda client: client.get_run(run_id)))
        web.happenings.note("ui.run_subscribed", run_id)
        await page.draw(tab)


class RunPage:
    """One open page: the run as last fetched, and the open tab. Only one tab exists at a time."""

    def __init__(self, web: Web, boards: TensorBoards, run: Run) -> None:
        self.web, self.boards, self.run = web, boards, run
        self.paths = RunPaths(run.run_id, web.home)
        self.view = curves.CurveView(smoothing=0.6)
        self._hears: list[Callable[[], Any]] = []
        self._deleted = self._drawing = False
        self._wanted = ""
        self._begun_later: list[Callable[[], None]] = []

    @property
    def run_id(self) -> str:
        return self.run.run_id

    async def draw(self, tab: str) -> None:
        """Draw the complete page, with the tab that its address names."""
        ui.add_head_html(f"<script>{SCRIPT}</script>")
        ui.page_title(f"{self.run.run_name or self.run.algo or 'Run'} · {self.run.env_id} · MOSAIC")
        self._header = run_header.Header(self)
        chosen = tab if tab in TABS else ("metrics" if self.run.ended else "live")
        tabs = ui.tabs().classes("w-full border-b border-gray-300 dark:border-neutral-700")
        tabs.props("align=left dense no-caps inline-label active-color=primary outside-arrows mobile-arrows")
        tabs.props["aria-label"] = "What to see of the run"
        with tabs:
            for name, (word, icon, _) in TABS.items():
                ui.tab(name, label=word, icon=icon)
        tabs.set_value(chosen)
        tabs.on_value_change(lambda event: self._turn(event.value))
        self._panel = ui.column().classes("w-full gap-4").props('role=tabpanel aria-label="Chosen tab"')
        await self._show(chosen)
        on_changes(self.web, self._heard, self.run_id)
        on_freshness(self.web, self._header.update)
        ui.timer(LOOK_SECONDS, self._look)

    def hear(self, callback: Callable[[], Any]) -> None:
        """Call back when the run has changed, while the requesting tab is open."""
        self._hears.append(callback)

    def every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat some work while the tab is open; a missing daemon does not stop it."""

        async def once() -> None:
            with contextlib.suppress(MosaicError):
                await work()

        slot = context.slot

        def begin() -> None:
            with slot:
                ui.timer(seconds, once)

        # A timer waits for the browser, which sends the page as it is: so begin only after the tab is drawn.
        if self._drawing:
            self._begun_later.append(begin)
        else:
            begin()

    async def refresh(self) -> None:
        """Fetch the complete run again."""
        try:
            self._take(await self.web.ask(lambda client: client.get_run(self.run_id)))
        except UnknownRunError:
            self.show_deleted()

    def show_deleted(self) -> None:
        """Replace the page's content with a notice that the run was deleted."""
        if self._deleted:
            return
        self._deleted = True
        self._header.show_deleted()
        if not self._drawing:  # else once the tab is drawn
            self._draw_deleted()

    def _draw_deleted(self) -> None:
        self._hears.clear()
        self._panel.clear()
        with self._panel:
            ui.label("This run was deleted: its folder, its configs and its curves are gone.").classes("text-lg")
            ui.link("To the runs", "/runs")

    async def _turn(self, name: str) -> None:
        if self._deleted:
            return
        ui.navigate.history.replace(f"/run/{self.run_id}?tab={name}")
        await self._show(name)

    async def _show(self, name: str) -> None:
        """Draw a tab; one still being drawn is finished first, so that no two mix."""
        self._wanted = name
        if self._drawing:
            return
        self._drawing = True
        try:
            while self._wanted:
                name, self._wanted = self._wanted, ""
                await self._draw_tab(name)
        finally:
            self._drawing = False
        if self._deleted:
            self._draw_deleted()
            return
        for begin in self._begun_later:
            begin()

    async def _draw_tab(self, name: str) -> None:
        self._hears.clear()
        self._panel.clear()
        self._begun_later = []
        with self._panel:
            try:
                await TABS[name][2](self)
            except MosaicError as error:
                trouble(error)

    def _heard(self, changes: list[Change]) -> Any:
        if self._deleted:
            return None
        if any(change.kind == "deleted" for change in changes):
            self.show_deleted()
            return None
        if not changes or any(change.kind == "moved" for change in changes):
            return self.refresh()
        newest = next((change.run for change in reversed(changes) if change.run is not None), None)
        if newest is not None:
            kept = self.run
            self._take(replace(newest, payload=kept.payload, last_values=kept.last_values, artifacts=kept.artifacts))
        return None

    def _take(self, run: Run) -> None:
        self.run = run
        self._header.update()
        for callback in list(self._hears):
            answer = callback()
            if inspect.isawaitable(answer):
                background_tasks.create(self._awaited(answer), name="tab")

    async def _awaited(self, work: Awaitable[Any]) -> None:
        with contextlib.suppress(MosaicError):  # the banner reports the missing daemon
            await work

    async def _look(self) -> None:
        if not self.run.ended and not self._deleted and context.client.has_socket_connection:
            with contextlib.suppress(MosaicError):
                await self.refresh()


TABS: dict[str, tuple[str, str, Tab]] = {
    "live": ("Live", "smart_display", live.show),
    "metrics": ("Metrics", "show_chart", metrics.show),
    "logs": ("Logs", "notes", logs.show),
    "events": ("Events", "timeline", events.show),
    "config": ("Config", "tune", config.show),
    "files": ("Files", "folder", files_tab.show),
    "tensorboard": ("TensorBoard", "insights", tensorboard.show),
    "wandb": ("W&B", "cloud", wandb.show),
    "notes": ("Notes", "edit_note", notes.show),
}


def _add_addresses(web: Web, boards: TensorBoards) -> None:
    frames = FrameSockets(lambda: web.client)

    @app.websocket("/frames/{run_id}")
    async def show_frames(socket: WebSocket, run_id: str) -> None:
        await frames.serve(socket, run_id)

    @app.get("/files/{run_id}/{path:path}")
    async def send_file(run_id: str, path: str, download: str = "") -> Response:
        return await web.do(lambda: files.file_response(web.home, run_id, path, download=bool(download)))

    @app.get("/metrics/{run_id}.csv")
    async def send_csv(run_id: str, key: str = "") -> Response:
        try:
            check_run_id(run_id)
            run = await web.ask(lambda client: client.get_run(run_id))
        except MosaicError as error:
            return PlainTextResponse(str(error), 404)
        keys = [key] if key else sorted(run.last_values, key=curves.sort_key)
        headers = {"Content-Disposition": f'attachment; filename="metrics-{run_id}.csv"'}
        return StreamingResponse(curves.csv_text(_series(web, run_id, keys)), media_type="text/csv", headers=headers)

    @app.api_route("/tensorboard/{run_id}/{path:path}", methods=["GET", "HEAD", "POST"])
    async def pass_on(request: Request, run_id: str, path: str) -> Response:
        return await tensorboard_proxy.answer(boards, request, run_id, path)


def _series(web: Web, run_id: str, keys: list[str]) -> Iterator[Series]:
    """Yield one metric after another: together they may exceed a message."""
    for key in keys:
        yield from web.client.get_metrics(run_id, [key], max_points=CSV_POINTS)
