"""The panels below and beside a form: the dry run's output, the changes from the defaults, the command to copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nicegui import ui

from mosaic.contract.errors import ConfigError
from mosaic.web.forms.command_line import folded
from mosaic.web.forms.own_rows import SECRET
from mosaic.web.layout import code_box

if TYPE_CHECKING:
    from mosaic.web.forms.page import JobPage


class Output:
    """The panel below the form; hidden until the first check."""

    def __init__(self) -> None:
        with ui.card().classes("w-full gap-2").props('data-output="true" role=status aria-live=polite') as self._card:
            with ui.row().classes("items-start no-wrap gap-2 w-full"):
                self._icon = ui.icon("check_circle").classes("text-xl mt-0.5").props("aria-hidden=true")
                self._headline = ui.label("").classes("font-medium break-words min-w-0 whitespace-pre-wrap")
            self._text = ui.label("").classes(
                "mosaic-mono text-xs whitespace-pre-wrap break-all w-full max-h-96 overflow-auto "
                "rounded bg-gray-100 dark:bg-neutral-800 p-3"
            )
            self._text.props("tabindex=0")
        self._card.set_visibility(False)

    def good(self, headline: str, text: str) -> None:
        self._show(headline, text, "check_circle", "positive", "ok")

    def bad(self, headline: str, text: str) -> None:
        self._show(headline, text, "error", "negative", "refused")

    def _show(self, headline: str, text: str, icon: str, colour: str, word: str) -> None:
        self._icon.name = icon
        self._icon.props(f"color={colour}")
        self._headline.text = headline
        self._text.text = text.strip()
        self._text.set_visibility(bool(text.strip()))
        self._card.props(f"data-result={word}")
        self._card.set_visibility(True)
        if word == "ok":  # a refusal scrolls to its field instead
            ui.run_javascript(
                "setTimeout(() => document.querySelector('[data-output]')?.scrollIntoView({block: 'nearest'}), 200)"
            )


class Aside:
    """The column beside the form, which stays in view on a wide screen."""

    def __init__(self, page: JobPage) -> None:
        self._page = page
        self._shown: Any = None
        with ui.column().classes("w-full min-w-0 gap-4 lg:sticky lg:top-16"):
            with ui.card().classes("w-full gap-2"):
                ui.label("Differs from the defaults").classes("font-medium")
                self._changes = ui.column().classes("w-full gap-1 max-h-80 overflow-auto").props('data-changes="true"')
            with ui.card().classes("w-full gap-2"):
                ui.label("The same in a terminal").classes("font-medium")
                self._command = ui.column().classes("mosaic-command w-full gap-1").props('data-command="true"')

    def refresh(self, problems: Mapping[str, str]) -> None:
        """Redraw the parts that changed since the last call."""
        changes = {
            name: (field.row.title, _said("", field.row.shown(field.row.default)), _said(name, field.value))
            for name, field in self._page.all_fields().items()
            if not field.is_default and field.widget.visible
        }
        try:
            command, waiting = self._page.command(self._page.values()), ""
        except ConfigError as error:
            command, waiting = "", _without_field(str(error), self._page)
        if problems:
            command, waiting = "", "It is shown once every marked field is mended."
        if (changes, command, waiting) == self._shown:
            return
        self._shown = (changes, command, waiting)
        self._draw_changes(changes)
        self._command.clear()
        with self._command:
            if command:
                code_box(folded(command), label="Copy the command")
            else:
                ui.label(waiting).classes("text-sm opacity-70")

    def _draw_changes(self, changes: Mapping[str, tuple[str, str, str]]) -> None:
        self._changes.clear()
        with self._changes:
            if not changes:
                ui.label("Nothing: every field has its default.").classes("text-sm opacity-70")
            for name, (title, default, value) in changes.items():
                with ui.row().classes("w-full items-baseline gap-x-2 gap-y-0 text-sm").props(f'data-change="{name}"'):
                    ui.label(title).classes("font-medium")
                    ui.label(value or "empty").classes("mosaic-mono break-all")
                    if default:
                        ui.label(f"was {default}").classes("opacity-60")


def _without_field(error: str, page: JobPage) -> str:
    """Return a refusal as a sentence without its field, which is shown beside it."""
    name, _, rest = error.partition(": ")
    return f"{rest[:1].upper()}{rest[1:]}." if rest and name in page.all_fields() else error


def _said(name: str, value: Any) -> str:
    if name == SECRET:
        return "given, not shown"
    text = {True: "on", False: "off"}.get(value) if isinstance(value, bool) else str(value if value is not None else "")
    return str(text) if len(str(text)) <= 80 else f"{str(text)[:79]}…"
