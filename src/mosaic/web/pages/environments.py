"""Environments: the catalog by family, required packages and their presence, links to train and play."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from mosaic import catalog
from mosaic.catalog import Environment, Family
from mosaic.web.context import Web
from mosaic.web.layout import code_box, page_at

AGENT_ONLY = "agent only: no human control"
MOST_FOUND = 200
PER_PAGE = 20
OBSERVATIONS = {"vector": "numbers", "grid": "grid and mission", "tuple": "tuple of numbers", "dict": "named parts"}


@dataclass(frozen=True)
class Section:
    """A family, or a group of one with its own requirements."""

    family: Family
    part: Family
    environments: tuple[Environment, ...]

    @property
    def key(self) -> str:
        return f"{self.family.name}/{self.part.name}"

    @property
    def agent_only(self) -> bool:
        return self.family.name == "mujoco"


def add(web: Web) -> None:
    """Register the page."""

    @page_at(web, "/environments", "Environments")
    async def environments(text: str = "") -> None:
        told = await web.do(lambda: [(one, lacking(one)) for one in sections()])
        EnvironmentsPage(told, text).draw()


class EnvironmentsPage:
    """The catalog as one user searches it."""

    def __init__(self, told: Sequence[tuple[Section, str]], text: str) -> None:
        self.told, self.text = told, text
        self.ready_only = False

    def draw(self) -> None:
        with ui.row().classes("w-full items-center gap-3"):
            search = ui.input("Search", value=self.text, on_change=lambda e: self._search(e.value))
            search.props('debounce=250 clearable dense outlined type=search placeholder="id, or what it is about"')
            search.classes("grow min-w-[14rem] max-w-xl")
            with search.add_slot("prepend"):
                ui.icon("search").props("aria-hidden=true")
            ui.switch("Installed only", on_change=lambda e: self._only(bool(e.value))).props(
                'dense aria-label="Installed only"'
            )
        self.place = ui.column().classes("w-full gap-3")
        self.show()

    def _search(self, text: str | None) -> None:
        self.text = (text or "").strip()
        self.show()

    def _only(self, ready: bool) -> None:
        self.ready_only = ready
        self.show()

    def show(self) -> None:
        """Show the sections, or the search results from all of them."""
        self.place.clear()
        with self.place:
            if self.text:
                self._draw_found()
                return
            for section, missing in self.told:
                if not (self.ready_only and missing):
                    _draw_section(section, missing)

    def _draw_found(self) -> None:
        found = search_for(self.text, [one for one, _ in self.told])
        rows = [row_of(section, one) for section, one in found]
        rows = [row for row in rows if not self.ready_only or row["ready"]]
        if not rows:
            ui.label("No environment of the catalog matches.")
            ui.label("Your own are trained too: give their id, or module:Id, in the form.").classes("opacity-80")
            return
        ui.label(f"{len(rows)} found" + (f", {MOST_FOUND} shown" if len(rows) > MOST_FOUND else "")).classes("text-sm")
        _draw_table(rows[:MOST_FOUND])


def _draw_section(section: Section, missing: str) -> None:
    part = section.part
    count = len(section.environments)
    with ui.expansion().classes("w-full border border-gray-500/20 rounded-lg").props("dense") as box:
        with box.add_slot("header"), ui.column().classes("w-full gap-1 py-1"):
            with ui.row().classes("w-full items-center gap-x-3 gap-y-1"):
                ui.label(part.label).classes("text-base font-medium")
                ui.label(f"{count} environments").classes("text-sm opacity-80")
                if section.agent_only:
                    ui.badge(AGENT_ONLY, color="secondary")
                ui.space()
                _draw_readiness(missing)
            ui.label(part.doc).classes("text-sm opacity-90")
        with ui.column().classes("w-full gap-3 p-1"):
            if missing:
                words, by_pip, _ = missing.partition("; run: ")
                ui.label(f"{words}. Install it:" if by_pip else missing)
            if missing or part.extra:
                code_box(part.pip_line)
            if part.system and part.system not in missing:
                ui.label(part.system).classes("text-sm")
            if section.agent_only:
                ui.label(
                    f"{AGENT_ONLY.capitalize()}: joints take many numbers at a time, 20 times a second and more."
                ).classes("text-sm")
            table = ui.column().classes("w-full")

    def opened() -> None:
        # Atari alone has 270 rows: they are sent when a user opens the section.
        if box.value and not table.default_slot.children:
            with table:
                _draw_table([row_of(section, one) for one in section.environments])

    box.on_value_change(opened)


def _draw_readiness(missing: str) -> None:
    icon, colour, word = ("download", "#6b7280", "not installed") if missing else ("check", "#00704F", "installed")
    with ui.row().classes("items-center gap-1 no-wrap rounded-full px-2 py-0.5 text-white text-sm shrink-0") as badge:
        badge.style(f"background: {colour}")
        ui.icon(icon).props("aria-hidden=true")
        ui.label(word)


def _draw_table(rows: list[dict[str, Any]]) -> None:
    titles = {"id": "Environment", "actions": "Actions", "observation": "Observation", "solved": "Solved at"}
    titles |= {"doc": "What it is", "go": ""}
    columns = [{"name": name, "label": label, "field": name, "align": "left"} for name, label in titles.items()]
    table = ui.table(columns=columns, rows=rows, row_key="id", pagination=PER_PAGE).classes("w-full")
    if len(rows) <= PER_PAGE:
        table.props("hide-pagination")
    table.props('flat dense wrap-cells :grid="Quasar.Screen.lt.md" aria-label="Environments"')
    links = (
        '<a class="underline mr-3" :href="props.row.train">train</a>'
        '<a v-if="props.row.play" class="underline" :href="props.row.play">play</a>'
    )
    missing = '<div v-if="props.row.install" class="text-xs opacity-80 mosaic-mono">{{ props.row.install }}</div>'
    table.add_slot("body-cell-go", f'<q-td :props="props" class="whitespace-nowrap">{links}</q-td>')
    table.add_slot(
        "body-cell-id", '<q-td :props="props" class="whitespace-nowrap font-medium">{{ props.row.id }}</q-td>'
    )
    table.add_slot("body-cell-doc", f'<q-td :props="props">{{{{ props.row.doc }}}}{missing}</q-td>')
    card = (
        '<div class="w-full p-1"><q-card flat bordered class="p-3 flex flex-col gap-1">'
        '<div class="font-medium break-all">{{ props.row.id }}</div>'
        '<div class="text-sm opacity-80">{{ props.row.actions }} actions, {{ props.row.observation }}</div>'
        f"<div>{{{{ props.row.doc }}}}</div>{missing}<div>{links}</div></q-card></div>"
    )
    table.add_slot("item", card)


@cache
def sections() -> tuple[Section, ...]:
    """Return the catalog in its own order; an environment of a group appears only there."""
    found: list[Section] = []
    for family in catalog.FAMILIES.values():
        grouped = {group.name for group in family.groups}
        for part in (family, *family.groups):
            ids = catalog.ids(family.name) if part is family else catalog.ids(family.name, part.name)
            of_part = [one for env_id in ids if (one := catalog.find(env_id)) is not None]
            if part is family:
                of_part = [one for one in of_part if one.group not in grouped]
            if of_part:
                found.append(Section(family, part, tuple(of_part)))
    return tuple(found)


def lacking(section: Section) -> str:
    """Return what a section's first environment needs installed, with the command; "" for nothing."""
    return catalog.missing_to_train(section.environments[0]) or ""


def search_for(text: str, among: Sequence[Section]) -> list[tuple[Section, Environment]]:
    """Return the environments whose id, description, family name or spaces contain every word."""
    wanted = text.lower().split()

    def told(section: Section, one: Environment) -> str:
        return f"{one.env_id} {one.doc} {section.part.label} {one.action_space} {one.observation_space}".lower()

    return [
        (section, one)
        for section in among
        for one in section.environments
        if all(word in told(section, one) for word in wanted)
    ]


def row_of(section: Section, one: Environment) -> dict[str, Any]:
    missing = catalog.missing_to_train(one)
    plays = catalog.missing_package(one) is None and not section.agent_only
    return {
        "id": one.env_id,
        "actions": (one.action_space or "unknown").replace("_", " "),
        "observation": OBSERVATIONS.get(one.observation_space, one.observation_space),
        "solved": "" if one.reward_threshold is None else f"{one.reward_threshold:g}",
        "doc": one.doc,
        "ready": missing is None,
        "install": (missing or "").rpartition("run: ")[2],
        "train": f"/train?{urlencode({'env': one.env_id})}",
        "play": f"/play?{urlencode({'env': one.env_id})}" if plays else "",
    }
