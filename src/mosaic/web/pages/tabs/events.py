"""The Events tab: the events of a run's worker, newest first."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from nicegui import ui

from mosaic.contract.events import EVENT_KINDS, Event
from mosaic.web.log_files import EventTail
from mosaic.web.pages.run_header import BUTTON

if TYPE_CHECKING:
    from mosaic.web.pages.run import RunPage

# These come by the thousand and are curves elsewhere; the rest describes the run's course.
MANY = frozenset(("episode", "step", "metrics", "heartbeat"))
# Fields that every event of a run repeats.
SAME = ("algo", "env_id", "agent_id", "worker_id", "config_digest")
MOST, LONGEST = 500, 200
COLUMNS: list[dict[str, Any]] = [
    {"name": "seq", "label": "No.", "field": "seq", "align": "right", "sortable": True},
    {"name": "time", "label": "Time", "field": "time", "align": "left"},
    {"name": "event", "label": "Event", "field": "event", "align": "left", "sortable": True},
    {"name": "text", "label": "What it says", "field": "text", "align": "left"},
]
# Vue escapes text in double braces; no text of a run is ever used as HTML.
BODY = """
<q-tr :props="props" @click="props.expand = !props.expand" class="cursor-pointer">
  <q-td key="seq" :props="props">{{ props.row.seq }}</q-td>
  <q-td key="time" :props="props" style="white-space: nowrap">{{ props.row.time }}</q-td>
  <q-td key="event" :props="props" class="font-medium">{{ props.row.event }}</q-td>
  <q-td key="text" :props="props" style="white-space: normal; word-break: break-word; min-width: 16rem">
    <button :aria-expanded="props.expand" aria-label="Show all of it" style="all: unset; cursor: pointer"
      tabindex="0" @keydown.enter.stop="props.expand = !props.expand">{{ props.expand ? "▾" : "▸" }}</button>
    {{ props.row.text }}
  </q-td>
</q-tr>
<q-tr v-if="props.expand" :props="props"><q-td colspan="100%" style="white-space: normal">
  <pre class="mosaic-mono text-xs" style="white-space: pre-wrap; word-break: break-all">{{ props.row.whole }}</pre>
</q-td></q-tr>
"""


async def show(page: RunPage) -> None:
    """Draw the tab with the events that describe the run's course."""
    await EventView(page).draw()


class EventView:
    """The newest events of the chosen kinds."""

    def __init__(self, page: RunPage) -> None:
        self._page = page
        self._kinds = set(EVENT_KINDS - MANY)
        self._rows: list[dict[str, Any]] = []

    async def draw(self) -> None:
        with ui.row().classes("w-full items-center gap-4"):
            chosen = sorted(self._kinds)
            self._select = ui.select(
                sorted(EVENT_KINDS), value=chosen, multiple=True, label="Kinds", on_change=self._choose
            )
            self._select.props("dense options-dense use-chips").classes("w-full md:w-2/3")
            ui.button("All", on_click=lambda: self._select.set_value(sorted(EVENT_KINDS))).props("flat dense no-caps")
            ui.space()
            whole = ui.button("worker.jsonl", icon="download").props(BUTTON)
            whole.props["href"] = f"/files/{self._page.run_id}/logs/worker.jsonl?download=1"
        self._said = ui.label().classes("text-sm opacity-80")
        self._table = ui.table(rows=[], columns=COLUMNS, row_key="seq", pagination=50).props("dense flat wrap-cells")
        self._table.classes("w-full").add_slot("body", BODY)
        await self._open()
        self._page.hear(self._read)

    async def _open(self) -> None:
        self._tail = EventTail(self._page.paths.events, self._kinds, MOST)
        self._rows = []
        await self._read()

    async def _read(self) -> None:
        tail = self._tail
        found = await self._page.web.do(tail.read)
        if tail is not self._tail:
            return
        if found or not self._rows:
            self._rows = [*(_row(event) for event in reversed(found)), *self._rows][:MOST]
            self._table.rows = self._rows
            self._table.update()
        told = ", ".join(f"{count:,} {kind}" for kind, count in sorted(tail.counts.items()))
        self._said.set_text(f"All events: {told}" if told else "No events yet: its worker has not said anything.")

    async def _choose(self, event: Any) -> None:
        self._kinds = set(event.value or ())
        await self._open()


def _row(event: Event) -> dict[str, Any]:
    carried = {key: value for key, value in event.payload.items() if key not in SAME and value is not None}
    text = "  ".join(f"{key} {_short(value)}" for key, value in carried.items())
    return {
        "seq": event.seq,
        "time": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.timestamp)),
        "event": event.event,
        "text": text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…",
        "whole": json.dumps(event.payload, indent=2, ensure_ascii=False)[:20_000],
    }


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return " ".join((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).split())
