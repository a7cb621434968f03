"""Listing: the found checkpoints or policies, as a table to sort, filter and choose from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nicegui import ui

from mosaic.web.forms.found import Found
from mosaic.web.words import age, short_id, size

# More rows are of no use: the filter searches all of them.
MOST_ROWS = 500
_CHOOSE = """<q-checkbox v-model="props.selected" dense
  :aria-label="'Choose ' + props.row.algorithm + ' on ' + props.row.environment + ', run ' + props.row.run
    + (props.row.step == null ? '' : ', step ' + props.row.step)"></q-checkbox>"""
_NUMBER = "value => value == null ? '–' : Number(value).toLocaleString('en', {maximumFractionDigits: 2})"


class Listing:
    """The table; `chosen` is called with the user's choice."""

    def __init__(self, found: Sequence[Found], empty: str, chosen: Callable[[Found], None], selected: str = "") -> None:
        self._found, self._chosen, self._selected = list(found), chosen, selected
        with ui.row().classes("w-full items-center gap-3"):
            self._filter = ui.input("Filter", on_change=self._show).props("outlined dense clearable debounce=250")
            self._filter.classes("grow max-w-md").props["hint"] = "environment, algorithm, run, seed or step"
            self._count = ui.label("").classes("text-sm opacity-70")
        self._table = ui.table(
            columns=_columns(),
            rows=[],
            row_key="path",
            selection="single",
            pagination={"rowsPerPage": 8, "sortBy": "age", "descending": False},
            on_select=self._picked,
        )
        self._table.classes("w-full").props('flat bordered dense data-listing="true" binary-state-sort')
        self._table.props["no-data-label"] = empty
        self._table.add_slot("header-selection", "")  # a single choice, never all
        self._table.add_slot("body-selection", _CHOOSE)
        self._table.on("rowClick", self._clicked, js_handler="(event, row) => emit(row.path)")
        self._show()

    def replace(self, found: Sequence[Found]) -> None:
        """Replace the list."""
        self._found = list(found)
        self._show()

    def select(self, path: str) -> None:
        """Mark a row as chosen, or none."""
        self._selected = path
        self._table.selected = [row for row in self._table.rows if row["path"] == path]

    def _show(self) -> None:
        words = str(self._filter.value or "").lower().split()
        fitting = [one for one in self._found if all(word in _searched(one) for word in words)]
        self._table.rows = [as_row(one) for one in fitting[:MOST_ROWS]]
        more = f", the newest {MOST_ROWS} shown" if len(fitting) > MOST_ROWS else ""
        self._count.text = f"{len(fitting):,} of {len(self._found):,}{more}"
        self.select(self._selected)

    def _picked(self, event: Any) -> None:
        if event.selection:
            self._choose(str(event.selection[0]["path"]))

    def _clicked(self, event: Any) -> None:
        self._choose(str(event.args))

    def _choose(self, path: str) -> None:
        # Paths come back from the browser: only offered ones are accepted.
        one = next((one for one in self._found if str(one.path) == path), None)
        if one is not None:
            self.select(path)
            self._chosen(one)


def as_row(one: Found) -> dict[str, Any]:
    """Return one row of the table; ages sort by seconds, sizes by bytes."""
    marks = [word for word, on in (("pinned", one.pinned), ("best", one.best), ("inexact", not one.exact)) if on]
    return {
        "path": str(one.path),
        "environment": one.env_id or "–",
        "algorithm": one.algo or "–",
        "seed": one.seed,
        "step": one.step,
        "return": one.mean_return,
        "age": -one.saved_at,
        "age_text": age(one.saved_at),
        "size": one.size,
        "size_text": size(one.size),
        "run": short_id(one.run_id) if one.run_id else "uploaded",
        "marks": ", ".join(marks),
    }


def _columns() -> list[dict[str, Any]]:
    words = [("environment", "Environment"), ("algorithm", "Algorithm")]
    numbers = [("seed", "Seed"), ("step", "Step"), ("return", "Return")]
    columns: list[dict[str, Any]] = [
        {"name": name, "label": label, "field": name, "sortable": True, "align": "left"} for name, label in words
    ]
    columns += [
        {"name": name, "label": label, "field": name, "sortable": True, ":format": _NUMBER} for name, label in numbers
    ]
    columns += [
        {"name": name, "label": label, "field": name, "sortable": True, ":format": f"(value, row) => row.{name}_text"}
        for name, label in (("age", "Age"), ("size", "Size"))
    ]
    columns += [
        {"name": "run", "label": "Run", "field": "run", "sortable": True, "align": "left"},
        {"name": "marks", "label": "", "field": "marks", "align": "left"},
    ]
    return columns


def _searched(one: Found) -> str:
    return f"{one.env_id} {one.algo} {one.run_id} {one.seed} {one.step} {one.path.name}".lower()
