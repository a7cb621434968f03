"""EnvironmentPicker: an environment by family and search, or by any id; its description, and its problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nicegui import ui

from mosaic import catalog
from mosaic.web.forms.fields import FormField
from mosaic.web.forms.fit import describe, families, lacking, look_again, offers, why_not
from mosaic.web.forms.own_rows import TRAIN
from mosaic.web.layout import code_box

if TYPE_CHECKING:
    from mosaic.web.forms.page import JobPage

ALL = "all"


class EnvironmentPicker:
    """Two lists that fill in the id, the id itself, and a description."""

    def __init__(self, page: JobPage, env_id: Any) -> None:
        look_again()
        self._page = page
        self._quiet = False
        known = catalog.find(str(env_id or TRAIN["env_id"].default))
        with ui.element("div").classes("grid w-full grid-cols-1 sm:grid-cols-2 gap-x-5 gap-y-2"):
            self._family = ui.select(
                {ALL: "All families"},
                label="Family",
                value=ALL,
                on_change=self._show_offers,
            ).props("outlined dense behavior=menu")
            self._choice = ui.select({}, label="Search the catalog", with_input=True, on_change=self._chosen)
            self._choice.props("outlined dense clearable hide-bottom-space behavior=menu")
            self._choice.props["hint"] = "what fits the algorithm stands first"
        self._first_family = known.family if known else ALL
        page.fields["env_id"] = self.field = FormField(TRAIN["env_id"], env_id, page.touched)
        self.field.box.classes(add="sm:max-w-md")
        self._place = ui.column().classes("w-full gap-2")

    def refresh(self) -> None:
        """Offer the environments that fit the currently chosen algorithm."""
        self._quiet = True
        self._family.set_options(
            {ALL: "All families", **families(self._page.entry)}, value=self._family.value or self._first_family
        )
        self._quiet = False
        self._show_offers()
        self.describe()

    def follow(self, entry: Mapping[str, Any]) -> None:
        """Replace an environment that does not fit the new algorithm with the algorithm's default."""
        known = catalog.find(str(self.field.value or ""))
        if known is None or not entry or not why_not(entry, known):
            return
        default = next((one.get("default") for one in entry["fields"] if one["name"] == "env_id"), None)
        if default:
            self.field.set(default)
            found = catalog.find(str(default))
            if found is not None and self._family.value != ALL:
                self._first_family = found.family
                self._quiet = True
                self._family.value = found.family
                self._quiet = False

    def describe(self) -> None:
        """Show the environment's description, and the steps needed before training."""
        env_id = str(self.field.value or "").strip()
        if self._choice.value != env_id and env_id in self._choice.options:
            self._quiet = True
            self._choice.value = env_id
            self._quiet = False
        doc, spaces, trouble = describe(self._page.entry, env_id)
        known = catalog.find(env_id)
        missing = lacking(known) if known else ""
        self._place.clear()
        with self._place:
            ui.label(doc).classes("text-sm opacity-80 max-w-3xl")
            if spaces:
                ui.label(spaces[:1].upper() + spaces[1:]).classes("text-xs opacity-60")
            if trouble:
                _warning(f"{env_id} does not fit {self._page.algo}: {trouble}." if known else f"{env_id}: {trouble}")
            if missing:
                words, _, line = missing.partition("; run: ")
                _warning(f"{words}. Install it, then reload this page:" if line else missing)
                if line:
                    code_box(line, label="Copy the line")

    def _show_offers(self) -> None:
        if self._quiet:
            return
        family = "" if self._family.value in (None, ALL) else str(self._family.value)
        found = offers(self._page.entry, family)
        self._quiet = True
        current = self.field.value if any(one.env_id == self.field.value for one in found) else None
        self._choice.set_options({one.env_id: one.label for one in found}, value=current)
        self._quiet = False

    def _chosen(self) -> None:
        if self._quiet or not self._choice.value:
            return
        self.field.set(self._choice.value)
        self._page.touched(self.field)


def _warning(text: str) -> None:
    with ui.row().classes("items-start no-wrap gap-2 text-sm").props("role=alert"):
        ui.icon("warning", color="warning").classes("text-lg").props("aria-hidden=true")
        ui.label(text).classes("break-words min-w-0")
