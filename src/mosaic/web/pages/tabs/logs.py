"""The Logs tab: the output of the algorithm and its worker, followed and searched."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from nicegui import ui

from mosaic.web.log_files import LogTail, fetch_logs, logs_of
from mosaic.web.pages.run_header import BUTTON

if TYPE_CHECKING:
    from mosaic.web.pages.run import RunPage

POLL_SECONDS = 0.7


async def show(page: RunPage) -> None:
    """Draw the tab with the end of the most informative log."""
    trouble = await page.web.do(lambda: fetch_logs(page.paths))
    found = await page.web.do(lambda: logs_of(page.paths))
    if trouble:
        ui.label(trouble).classes("text-sm opacity-80")
    if not found:
        waits = "It has not started yet; its output appears here." if not page.run.ended else page.run.reason
        ui.label(f"This run has no logs. {waits}").classes("opacity-80")
        if not page.run.ended:
            _wait_for_logs(page)
        return
    first = next(iter(found))
    if page.run.state == "FAILED" and "Errors" in found:
        said = await page.web.do(LogTail(found["Errors"]).read)
        first = "Errors" if said else first
    await LogView(page, {word: str(path) for word, path in found.items()}, first).draw()


def _wait_for_logs(page: RunPage) -> None:
    column = ui.context.slot.parent

    async def look() -> None:
        if await page.web.do(lambda: logs_of(page.paths)):
            column.clear()
            with column:
                await show(page)

    page.every(1.0, look)


class LogView:
    """One log, with its controls."""

    def __init__(self, page: RunPage, logs: dict[str, str], chosen: str) -> None:
        self._page, self._logs, self._chosen = page, logs, chosen
        self._follow, self._wanted = True, ""

    async def draw(self) -> None:
        with ui.row().classes("w-full items-center gap-4"):
            ui.toggle(list(self._logs), value=self._chosen, on_change=self._choose).props(
                'no-caps dense aria-label="Log"'
            )
            ui.input("Search", on_change=self._search).props("dense clearable debounce=250").classes("w-48")
            ui.switch("Follow", value=True, on_change=self._set_follow).props("dense")
            ui.space()
            self._download = ui.button("Download", icon="download").props(BUTTON)
        self._said = ui.label().classes("text-sm opacity-80")
        self._box = (
            ui.element("pre")
            .classes(
                "mosaic-mono text-xs w-full h-[60vh] overflow-auto rounded p-3 m-0 whitespace-pre-wrap break-all "
                "bg-gray-100 dark:bg-neutral-800"
            )
            .props('tabindex=0 role=log aria-label="Log text"')
        )
        await self._open()
        self._page.every(POLL_SECONDS, self._read)

    async def _open(self) -> None:
        """Start with the end of the chosen log."""
        path = next(p for word, p in self._logs.items() if word == self._chosen)
        self._tail = LogTail(self._page.paths.inside(path))
        self._rest = ""
        self._lines = self._matched = 0
        self._download.props["href"] = f"/files/{self._page.run_id}/{quote(self._page.paths.relative(path))}?download=1"
        ui.run_javascript(f"mosaicLog.clear('{self._box.html_id}')")
        await self._read()

    async def _read(self) -> None:
        tail = self._tail
        text = await self._page.web.do(tail.read)
        if tail is not self._tail:
            return  # another log was chosen meanwhile
        if text:
            self._add(text)
        self._say()

    def _add(self, text: str) -> None:
        if self._wanted:
            # only complete lines can match; the last one waits for its end
            whole, _, self._rest = (self._rest + text).rpartition("\n")
            lines = whole.split("\n") if whole else []
            found = [line for line in lines if self._wanted in line.lower()]
            self._matched += len(found)
            text = "".join(f"{line}\n" for line in found)
        self._lines += text.count("\n")
        with self._box:
            told = json.dumps(text).replace("<", "\\u003c")
            ui.run_javascript(f"mosaicLog.add('{self._box.html_id}', {told}, {json.dumps(self._follow)})")

    def _say(self) -> None:
        said = []
        if self._tail.cut:
            said.append("the end of a long log; the whole is a download")
        if self._wanted:
            said.append(f"{self._matched:,} lines match")
        elif not self._lines:
            ended = self._page.run.ended
            said.append("empty: no errors were written" if self._chosen == "Errors" and ended else "nothing so far")
        self._said.set_text("; ".join(said))

    async def _choose(self, event: Any) -> None:
        self._chosen = str(event.value)
        await self._open()

    async def _search(self, event: Any) -> None:
        self._wanted = str(event.value or "").lower()
        await self._open()

    def _set_follow(self, event: Any) -> None:
        self._follow = bool(event.value)
        if self._follow:
            ui.run_javascript(f"mosaicLog.end('{self._box.html_id}')")
