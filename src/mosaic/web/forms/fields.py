"""Form fields: a row as a widget that validates as the user types, shows its help, and marks a non-default value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from nicegui import ui

from mosaic.contract.errors import ConfigError
from mosaic.web.forms.own_rows import SECRET
from mosaic.web.forms.rows import Row

# Otherwise every keystroke is sent at once; a mark this late goes unnoticed.
DEBOUNCE_MS = 250
GRID = "grid w-full grid-cols-1 sm:grid-cols-2 xl:grid-cols-3 gap-x-5 gap-y-2"
# Below a switch, where Quasar has no line for help or errors.
_SMALL = "text-xs leading-tight break-words"


class FormField:
    """One widget. `touched` is called after every change by the user."""

    def __init__(self, row: Row, value: Any, touched: Callable[[FormField], None]) -> None:
        self.row = row
        self.expansion: ui.expansion | None = None
        self._touched = touched
        self._quiet = False
        self._refused = ""
        self.other: Callable[[str], Any] = lambda name: None
        """returns the value of another field, for limits that refer to it"""
        self._reset: ui.element
        with ui.element("div").classes("w-full min-w-0").props(f'data-field="{row.name}"') as self.box:
            self.widget = self._draw(row.shown(row.first) if value is None else value)
        if row.type != "bool":
            self.widget.validation = self._validated
        self._mark()

    @property
    def value(self) -> Any:
        """Return the widget's content, as typed."""
        return self.widget.value

    @property
    def problem(self) -> str:
        """Return the field's error; "" if it is valid."""
        try:
            self.row.check_limits(self.row.read(self.value), self.other)
        except ConfigError as error:
            return str(error)
        return self._refused

    @property
    def is_default(self) -> bool:
        if self.row.plain:
            return True
        try:
            value = self.row.read(self.value)
        except ConfigError:
            return False
        return value == self.row.default or (value in (None, "") and self.row.default in (None, ""))

    def set(self, value: Any) -> None:
        """Set a value without calling `touched`."""
        self._quiet = True
        self.widget.value = self.row.shown(value)
        self._quiet = False
        self._refused = ""
        self._show_problem()
        self._mark()

    def look_again(self) -> None:
        """Validate again after a change of another field that a limit refers to."""
        self._show_problem()

    def refuse(self, reason: str) -> None:
        """Show the worker's or the daemon's refusal until the value changes."""
        self._refused = reason
        if self.expansion is not None:
            self.expansion.open()
        self._show_problem()

    def lock(self, locked: bool) -> None:
        """Make the field read-only, or editable again."""
        self.widget.set_enabled(not locked)
        self._mark()

    def take_default(self, value: Any) -> None:
        """Set a new default, and the value to it."""
        self.row = replace(self.row, default=value)
        self.set(value)

    def back(self) -> None:
        """Return to the default."""
        self.set(self.row.default)
        self._touched(self)

    def reveal(self) -> None:
        """Scroll the field into view and focus it."""
        selector = f'[data-field="{self.row.name}"]'
        ui.run_javascript(
            f"setTimeout(() => {{ const box = document.querySelector('{selector}'); if (!box) return;"
            "box.scrollIntoView({block: 'center'});"
            "box.querySelector('input, textarea, [tabindex]')?.focus({preventScroll: true}); }, 350)"
        )

    def _draw(self, value: Any) -> Any:
        row = self.row
        if row.type == "bool":
            return self._draw_switch(bool(value))
        if row.choices:
            widget: Any = ui.select(
                {choice: str(choice) for choice in row.choices},
                label=row.title,
                value=value if value in row.choices else row.default,
                clearable=row.optional,
                on_change=self._changed,
            )
        elif row.name == "notes":
            widget = ui.textarea(row.title, value=value, on_change=self._changed).props("autogrow rows=2")
        elif row.name == SECRET:
            widget = ui.input(row.title, value="", password=True, on_change=self._changed)
            widget.props('autocomplete="new-password" spellcheck=false')
        else:
            widget = ui.input(row.title, value=value, on_change=self._changed)
            widget.props(f"debounce={DEBOUNCE_MS} autocomplete=off spellcheck=false inputmode={_keyboard(row)}")
        widget.props("outlined dense hide-bottom-space").classes("w-full")
        widget.props["hint"] = _hint(row)
        with widget.add_slot("append"):
            self._reset = _reset_button(self)
        return widget

    def _draw_switch(self, value: bool) -> Any:
        with ui.row().classes("items-center no-wrap gap-1"):
            widget = ui.switch(self.row.title, value=value, on_change=self._changed)
            self._reset = _reset_button(self)
        self._help = ui.label(_hint(self.row)).classes(f"{_SMALL} opacity-70 pl-1")
        self._error = ui.label("").classes(f"{_SMALL} text-negative pl-1").props("role=alert")
        self._error.set_visibility(False)
        return widget

    def _validated(self, value: Any) -> str | None:
        return self.problem or None

    def _changed(self) -> None:
        if self._quiet:
            return
        self._refused = ""
        self._show_problem()
        self._mark()
        self._touched(self)

    def _show_problem(self) -> None:
        problem = self.problem
        if self.row.type == "bool":
            self._error.text = problem
            self._error.set_visibility(bool(problem))
        else:
            self.widget.error = problem or None

    def _mark(self) -> None:
        """Mark a non-default value, and show the reset button."""
        different = not self.is_default
        self._reset.set_visibility(different and self.widget.enabled)
        self.box.props(f"data-changed={'true' if different else 'false'}")
        self.box.classes(add="mosaic-changed") if different else self.box.classes(remove="mosaic-changed")


def draw_rows(
    rows: Iterable[Row], given: Mapping[str, Any], touched: Callable[[FormField], None], *, grid: str = GRID
) -> dict[str, FormField]:
    """Draw several fields in a grid."""
    with ui.element("div").classes(grid):
        return {row.name: FormField(row, given.get(row.name), touched) for row in rows}


def _keyboard(row: Row) -> str:
    return {"int": "numeric", "float": "decimal"}.get(row.type, "text")


def _hint(row: Row) -> str:
    if row.label or row.default in (None, "") or row.type == "bool":  # the forms' help names important defaults
        return row.help
    return f"{row.help} (default {row.default})" if row.help else f"default {row.default}"


def _reset_button(field: FormField) -> ui.button:
    label = f"{field.row.title}: back to the default"
    button = ui.button(icon="restart_alt", on_click=field.back)
    button.props("flat round dense size=sm").props["aria-label"] = label
    return button.tooltip("Back to the default")
