"""The Notes tab: the users' notes about the run, stored in its `notes.md`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nicegui import ui

from mosaic.contract.errors import MosaicError
from mosaic.web import words
from mosaic.web.layout import confirmed, tell
from mosaic.web.run_files import read_notes, write_notes

if TYPE_CHECKING:
    from mosaic.web.pages.run import RunPage

LOOK_SECONDS = 3.0


async def show(page: RunPage) -> None:
    """Draw the tab with the current notes."""
    await NotesView(page).draw()


class NotesView:
    """One user's view of the notes; another user's changes appear unless unsaved edits exist here."""

    def __init__(self, page: RunPage) -> None:
        self._page = page
        self._kept, self._changed_at = "", 0.0

    async def draw(self) -> None:
        self._kept, self._changed_at = await self._page.web.do(lambda: read_notes(self._page.paths))
        self._area = ui.textarea("Notes", value=self._kept, on_change=lambda: self._say())
        self._area.props('outlined autogrow input-style="min-height: 16rem"').classes("w-full mosaic-mono")
        self._area.on("keydown.ctrl.s.prevent", self._save)
        with ui.row().classes("items-center gap-4"):
            self._button = ui.button("Save", icon="save", on_click=self._save).props("no-caps")
            self._said = ui.label().classes("text-sm opacity-80").props("role=status")
        self._say()
        self._page.every(LOOK_SECONDS, self._look)

    @property
    def _is_changed(self) -> bool:
        return (self._area.value or "") != self._kept

    def _say(self) -> None:
        self._button.set_enabled(self._is_changed)
        if self._is_changed:
            self._said.set_text("not saved yet (Ctrl-S)")
        else:
            self._said.set_text(
                f"saved {words.age(self._changed_at)}" if self._changed_at else "kept in the run's notes.md"
            )

    async def _look(self) -> None:
        if not self._is_changed:
            await self._take()

    async def _take(self) -> None:
        text, changed_at = await self._page.web.do(lambda: read_notes(self._page.paths))
        if not self._is_changed and (text, changed_at) != (self._kept, self._changed_at):
            self._kept, self._changed_at = text, changed_at
            self._area.set_value(text)
        self._say()

    async def _save(self, _: Any = None) -> None:
        text = self._area.value or ""
        try:
            _, changed_at = await self._page.web.do(lambda: read_notes(self._page.paths))
            question = "Somebody else has changed these notes meanwhile. Put yours in their place?"
            if changed_at != self._changed_at and not await confirmed(question, "Replace"):
                return
            self._changed_at = await self._page.web.do(lambda: write_notes(self._page.paths, text))
        except MosaicError as error:
            tell(error)
            return
        self._kept = text
        self._say()
