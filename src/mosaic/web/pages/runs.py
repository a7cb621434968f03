"""Runs: the table of all runs, paged and filtered by the daemon, live, with actions on a selection."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from nicegui import events, ui

from mosaic.contract.errors import ConfigError, MosaicError
from mosaic.trainer.rpc.client import Change, Client, Page, Run, State
from mosaic.web import run_rows
from mosaic.web.context import Web
from mosaic.web.layout import STATES, busy, confirmed, on_changes, on_freshness, page_at, tell
from mosaic.web.pages.runs_table import RunsTable

PAGE_SIZES = (25, 50, 100, 200)
CURVE_POINTS = 32
# A busy daemon's state changes come in bursts: one reload serves all of a second.
RELOAD_SECONDS = 1.0
# Updates the ages, and the sparklines of live runs.
REFRESH_SECONDS = 20.0
MOST_COMPARED = 60
GROUPS = {
    "live": [State.HANDSHAKE, State.READY, State.EXECUTING, State.PAUSED, State.LOST],
    "ended": [State.COMPLETED, State.FAILED, State.CANCELLED, State.BROKEN],
}


def add(web: Web) -> None:
    """Register the page."""

    @page_at(web, "/runs", "Runs")
    async def runs(text: str = "", state: str = "", mode: str = "", algo: str = "", env: str = "") -> None:
        page = RunsPage(web, {"text": text, "state": state, "mode": mode, "algo": algo, "env": env})
        await page.load()
        page.draw()


class RunsPage:
    """One user's view of the table."""

    def __init__(self, web: Web, filters: dict[str, str]) -> None:
        self.web = web
        self.filters = filters
        self.page_size = 50
        self.cursors: list[str] = [""]
        """the cursors of the pages up to this one; the last is this page's own"""
        self.by_group = False
        self.opened: set[str] = set()
        self.page = Page((), "", 0)
        self.selected: set[str] = set()
        self._dirty = False
        self._loading = False

    # Data

    async def load(self) -> None:
        """Fetch this page's runs."""
        chosen, cursor = dict(self.filters), self.cursors[-1]
        states: Sequence[State | str] = GROUPS.get(chosen["state"]) or ([chosen["state"]] if chosen["state"] else [])

        def ask(client: Client) -> Page:
            return client.list_runs(
                states=states,
                algo=chosen["algo"],
                env_id=chosen["env"],
                mode=chosen["mode"],
                text=chosen["text"],
                page_size=self.page_size,
                page=cursor,
                curve_points=CURVE_POINTS,
            )

        self.page = await self.web.ask(ask)

    async def reload(self) -> None:
        """Fetch again and show the changes; the banner reports a daemon's failure."""
        if self._loading:
            self._dirty = True
            return
        self._loading, self._dirty = True, False
        try:
            await self.load()
            self.show()
        finally:
            self._loading = False

    def heard(self, changes: list[Change]) -> None:
        """Update numbers in place; new, moved or deleted runs are fetched soon, together."""
        shown = {run.run_id: place for place, run in enumerate(self.page.runs)}
        fresh = list(self.page.runs)
        for change in changes:
            if change.kind == "progress" and change.run is not None and change.run_id in shown:
                place = shown[change.run_id]
                fresh[place] = _with_curve(change.run, fresh[place])
        moved = not changes or any(change.kind != "progress" for change in changes)
        self._dirty = self._dirty or moved
        if fresh != list(self.page.runs):
            self.page = Page(tuple(fresh), self.page.next_page, self.page.total)
            self.show()

    async def tick(self) -> None:
        if self._dirty:
            await self._quietly(self.reload())

    async def refresh(self) -> None:
        await self._quietly(self.reload())

    async def _quietly(self, work: Any) -> None:
        try:
            await work
        except MosaicError as error:
            self.web.page_trouble(error)

    # Drawing

    def draw(self) -> None:
        self._draw_filters()
        self._draw_selection_bar()
        self.table = RunsTable(self._selection_changed, self._toggle_group)
        self.nothing = ui.column().classes("w-full items-center py-10 gap-3")
        with self.nothing:
            ui.icon("science").classes("text-5xl opacity-40").props("aria-hidden=true")
            self.nothing_label = ui.label().classes("text-lg")
            with ui.row():
                self.first_run = ui.button(
                    "Train an agent", icon="play_circle", on_click=lambda: ui.navigate.to("/train")
                )
                self.no_filters = ui.button("Show all runs", on_click=lambda: ui.navigate.to("/runs")).props("flat")
        self._draw_pager()
        self.show()
        on_changes(self.web, self.heard)
        on_freshness(self.web, self.show)
        ui.timer(RELOAD_SECONDS, self.tick)
        ui.timer(REFRESH_SECONDS, self.refresh)

    def _draw_filters(self) -> None:
        states = {"": "any state", "live": "live", "ended": "ended", **{s.value: STATES[s][2] for s in State}}
        modes = {"": "any mode", **run_rows.MODES}
        algos = {"": "any algorithm", **{name: name for name in sorted(self.web.schema())}}
        with ui.row().classes("w-full items-center gap-2"):
            search = ui.input("Search", value=self.filters["text"], on_change=lambda e: self._filter("text", e.value))
            search.props('debounce=300 clearable dense outlined type=search placeholder="id, name, agent, worker …"')
            search.classes("grow min-w-[12rem] max-w-md")
            with search.add_slot("prepend"):
                ui.icon("search").props("aria-hidden=true")
            self._select("State", states, "state")
            self._select("Mode", modes, "mode")
            self._select("Algorithm", algos, "algo")
            seen = sorted({run.env_id for run in self.page.runs if run.env_id})
            env = ui.input(
                "Environment",
                value=self.filters["env"],
                autocomplete=seen,
                on_change=lambda e: self._filter("env", e.value),
            )
            env.props("debounce=500 clearable dense outlined").classes("w-44 max-sm:grow")
            ui.switch("Group seeds", on_change=self._group).props('dense aria-label="Group seeds"').classes("ml-1")

    def _select(self, label: str, options: dict[str, str], name: str) -> None:
        value = self.filters[name]
        known = options if value in options else {**options, value: value}
        chosen = ui.select(known, label=label, value=value, on_change=lambda e: self._filter(name, e.value))
        chosen.props("dense outlined options-dense").classes("w-36 max-sm:grow")

    def _draw_selection_bar(self) -> None:
        self.bar = ui.row().classes(
            "w-full items-center gap-1 rounded-lg px-3 py-1 bg-blue-50 dark:bg-neutral-800 sticky top-12 z-10"
        )
        self.bar.props('role=toolbar aria-label="Selected runs"')
        self.buttons: dict[str, ui.button] = {}
        with self.bar:
            self.chosen = ui.label().classes("mr-2 font-medium")
            self._act("Pause", "pause", self._pause)
            self._act("Continue", "play_arrow", self._continue)
            self._act("Cancel", "stop", self._cancel, self._ask_cancel)
            self._act("Resume", "restore", self._resume)
            self._act("Evaluate", "fact_check", self._evaluate)
            self._act("Compare", "stacked_line_chart", self._compare)
            self._act("Delete", "delete", self._delete, self._ask_delete).props("color=negative")
            ui.space()
            ui.button("Clear", on_click=self._clear).props("flat dense")

    def _act(
        self,
        word: str,
        icon: str,
        act: Callable[[list[Run]], Awaitable[None]],
        ask: Callable[[list[Run]], Awaitable[bool]] | None = None,
    ) -> ui.button:
        button = ui.button(word, icon=icon).props("flat dense")

        async def pressed() -> None:
            # fixed before the question: a run that ends meanwhile must not be deleted with the others
            runs = self._chosen_runs()
            # not busy during the question: a loading button ignores clicks, also just after the answer
            if ask is not None and not await ask(runs):
                return
            try:
                with busy(button):
                    await act(runs)
            except MosaicError as error:
                tell(error)

        button.on_click(pressed)
        self.buttons[word] = button
        return button

    def _draw_pager(self) -> None:
        with ui.row().classes("w-full items-center justify-end gap-2 text-sm"):
            self.count = ui.label().classes("opacity-80").props("aria-live=polite data-testid=count")
            sizes = ui.select(list(PAGE_SIZES), value=self.page_size, label="per page", on_change=self._resize)
            sizes.props("dense outlined options-dense").classes("w-24")
            self.previous = ui.button(icon="chevron_left", on_click=lambda: self._turn(-1))
            self.next = ui.button(icon="chevron_right", on_click=lambda: self._turn(1))
            self.previous.props('flat round dense aria-label="Newer runs"')
            self.next.props('flat round dense aria-label="Older runs"')

    def show(self) -> None:
        """Update the table from the data."""
        runs = [self.web.seen(run) for run in self.page.runs]
        rows = run_rows.rows_of(runs, STATES, time.time(), by_group=self.by_group, opened=self.opened)
        if rows != self.table.rows:
            self.table.rows = rows
        here = {run.run_id for run in self.page.runs}
        if not self.selected <= here:
            self.selected &= here
            self.table.selected = [row for row in rows if row["id"] in self.selected]
        first = (len(self.cursors) - 1) * self.page_size
        total, filtered = self.page.total, any(self.filters.values())
        self.count.text = f"{first + 1:,}–{first + len(here):,} of {total:,}" if here else ""
        self.previous.set_enabled(len(self.cursors) > 1)
        self.next.set_enabled(bool(self.page.next_page))
        self.table.set_visibility(bool(here))
        self.nothing.set_visibility(not here)
        self.nothing_label.text = "No run matches." if filtered else "No runs yet."
        self.first_run.set_visibility(not filtered)
        self.no_filters.set_visibility(filtered)
        self._show_selection()

    def _show_selection(self) -> None:
        runs = self._chosen_runs()
        self.bar.set_visibility(bool(runs))
        self.chosen.text = f"{len(runs)} selected"
        able = {
            "Pause": any(run.state == State.EXECUTING for run in runs),
            "Continue": any(run.state == State.PAUSED for run in runs),
            "Cancel": any(not run.ended for run in runs),
            "Resume": len(runs) == 1,
            "Evaluate": len(runs) == 1,
            "Compare": 0 < len(runs) <= MOST_COMPARED,
            "Delete": any(run.ended for run in runs),
        }
        for word, button in self.buttons.items():
            button.set_enabled(able[word])

    # Actions of the user

    async def _filter(self, name: str, value: str | None) -> None:
        self.filters[name] = (value or "").strip()
        self.cursors = [""]
        given = {key: text for key, text in self.filters.items() if text}
        ui.navigate.history.replace("/runs" + (f"?{urlencode(given)}" if given else ""))
        await self._reload_or_tell()

    async def _resize(self, event: events.ValueChangeEventArguments) -> None:
        self.page_size, self.cursors = int(event.value), [""]
        await self._reload_or_tell()

    async def _turn(self, way: int) -> None:
        if way > 0 and self.page.next_page:
            self.cursors.append(self.page.next_page)
        elif way < 0 and len(self.cursors) > 1:
            self.cursors.pop()
        await self._reload_or_tell()

    async def _reload_or_tell(self) -> None:
        try:
            await self.reload()
        except MosaicError as error:
            tell(error)

    def _group(self, event: events.ValueChangeEventArguments) -> None:
        self.by_group = bool(event.value)
        self.show()

    def _toggle_group(self, key: str) -> None:
        self.opened ^= {key}
        self.show()

    def _selection_changed(self, rows: Sequence[dict[str, Any]]) -> None:
        chosen: set[str] = set()
        for row in rows:
            chosen |= set(row["members"]) if row["kind"] == "group" else {row["id"]}
        self.selected = chosen & {run.run_id for run in self.page.runs}
        self._show_selection()

    def _chosen_runs(self) -> list[Run]:
        return [run for run in self.page.runs if run.run_id in self.selected]

    def _clear(self) -> None:
        self.selected = set()
        self.table.selected = []
        self._show_selection()

    async def _each(self, word: str, call: Callable[[Client, str], Any], runs: Sequence[Run]) -> None:
        """Apply one action to all these runs, and report the result."""

        def all_of_them(client: Client) -> list[MosaicError]:
            return list(_failures(client, call, runs))

        failed = await self.web.ask(all_of_them)
        done = len(runs) - len(failed)
        if done:
            tell(f"{word} {done} {'run' if done == 1 else 'runs'}", kind="positive")
        if failed:
            rest = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            tell(f"{failed[0]}{rest}")
        await self.reload()

    async def _pause(self, runs: list[Run]) -> None:
        await self._each("Pausing", Client.pause_run, [run for run in runs if run.state == State.EXECUTING])

    async def _continue(self, runs: list[Run]) -> None:
        await self._each("Continuing", Client.continue_run, [run for run in runs if run.state == State.PAUSED])

    async def _ask_cancel(self, runs: list[Run]) -> bool:
        live = [run for run in runs if not run.ended]
        question = f"Cancel {_counted(live)}? They save a checkpoint first where they can."
        return await confirmed(question, "Cancel them" if len(live) > 1 else "Cancel it", detail=_named(live))

    async def _cancel(self, runs: list[Run]) -> None:
        await self._each("Cancelling", Client.cancel_run, [run for run in runs if not run.ended])

    async def _ask_delete(self, runs: list[Run]) -> bool:
        ended = [run for run in runs if run.ended]
        question = f"Delete {_counted(ended)} with all files? This cannot be taken back."
        return await confirmed(question, "Delete", detail=_named(ended))

    async def _delete(self, runs: list[Run]) -> None:
        await self._each("Deleted", Client.delete_run, [run for run in runs if run.ended])

    async def _resume(self, runs: list[Run]) -> None:
        (run,) = runs
        ui.navigate.to(f"/resume?{urlencode({'run': run.run_id})}")

    async def _evaluate(self, runs: list[Run]) -> None:
        (chosen,) = runs
        run = await self.web.ask(lambda client: client.get_run(chosen.run_id))
        saved = [artifact.path for artifact in run.artifacts if artifact.kind == "policy"]
        if not saved:
            raise ConfigError(
                f"run {run.run_id} has saved no policy{'' if run.ended else ' yet'}; "
                "train with save_model on, or resume it with save_model on, to get one"
            )
        path = f"var/trainer/runs/{run.run_id}/{saved[-1]}"
        ui.navigate.to(f"/policy?{urlencode({'policy': path})}")

    async def _compare(self, runs: list[Run]) -> None:
        ui.navigate.to(f"/compare?{urlencode({'runs': ','.join(run.run_id for run in runs)}, safe=',')}")


def _with_curve(run: Run, before: Run) -> Run:
    """Return the run with the known curve, extended by its newest return: a change holds no curve."""
    value = run_rows.shown_return(run)
    known = before.curve
    if value is not None and known and value != run_rows.shown_return(before):
        known = (*known, value)[-2 * CURVE_POINTS :]
    return replace(run, curve=known)


def _failures(client: Client, call: Callable[[Client, str], Any], runs: Iterable[Run]) -> Iterable[MosaicError]:
    for run in runs:
        try:
            call(client, run.run_id)
        except MosaicError as error:
            yield error


def _counted(runs: Sequence[Run]) -> str:
    return "1 run" if len(runs) == 1 else f"{len(runs)} runs"


def _named(runs: Sequence[Run]) -> str:
    few = [f"{run.run_id}  {run.run_name or run.algo} {run.env_id}" for run in runs[:8]]
    return "\n".join([*few, f"and {len(runs) - 8} more"] if len(runs) > 8 else few)
