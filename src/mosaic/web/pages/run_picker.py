"""A dialog to choose runs, by group, with search by the daemon."""

from __future__ import annotations

from collections.abc import Sequence

from nicegui import ui

from mosaic.trainer.rpc.client import Run
from mosaic.web import analytics, words
from mosaic.web.context import Web

OFFERED = 100


async def choose_runs(web: Web, chosen: Sequence[str]) -> list[str] | None:
    """Show a dialog with the newest runs by group, searched by the daemon; return None if it was dismissed."""
    picked = dict.fromkeys(chosen)
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-2xl"):
        search = ui.input("Search").props("dense outlined debounce=300 clearable autofocus").classes("w-full")
        found = ui.column().classes("w-full gap-0 max-h-96 overflow-y-auto flex-nowrap")
        with ui.row().classes("w-full justify-end items-center"):
            count = ui.label().classes("text-sm opacity-80")
            ui.space()
            ui.button("Leave it", on_click=lambda: dialog.submit(None)).props("flat")
            ui.button("Compare", on_click=lambda: dialog.submit(list(picked)))

    def tick(runs: Sequence[Run], on: bool) -> None:
        for run in runs:
            picked[run.run_id] = None
            if not on:
                picked.pop(run.run_id)
        count.text = f"{len(picked)} chosen"

    async def offer() -> None:
        page = await web.ask(lambda client: client.list_runs(text=(search.value or "").strip(), page_size=OFFERED))
        found.clear()
        with found:
            for group in analytics.grouped(page.runs):
                told = f"{group.label} · {words.age(group.runs[0].created_at)}"
                on = all(run.run_id in picked for run in group.runs)
                ui.checkbox(told, value=on, on_change=lambda e, runs=group.runs: tick(runs, bool(e.value))).props(
                    "dense"
                )
            if not page.runs:
                ui.label("No run matches.")

    search.on_value_change(offer)
    tick((), True)
    await offer()
    answer = await dialog
    dialog.delete()
    return answer if answer else None
