"""Sweeps: the list of all, and for each its trials, the importance of its parameters, and its best trial."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from mosaic.contract.errors import ConfigError, MosaicError
from mosaic.contract.groups import SWEEP, group_of
from mosaic.contract.sweeps import Summary, Trial, list_sweeps, read_summary
from mosaic.trainer.rpc.client import Change, Client, Run, State
from mosaic.web import sweep_chart, words
from mosaic.web.context import Web
from mosaic.web.layout import STATES, code_box, on_changes, page_at, trouble

REFRESH_SECONDS = 2.0
PAGE = 1000
# More trials make the page slow without more insight: the newest and the best are shown.
MOST_ROWS = 300
# With fewer completed trials, chance looks like a cause.
SURE = 20
# The seeds of so many trials fit into one comparison.
COMPARED = 5
LOOK = {
    "running": ("play_arrow", "running"),
    "complete": ("check", "complete"),
    "pruned": ("content_cut", "pruned"),
    "failed": ("error", "failed"),
}
STYLE = """
.mosaic-sweep-chart { width: 100%; height: 17rem; }
.mosaic-sweep-parallel { width: 100%; height: 22rem; }
.mosaic-trials td, .mosaic-trials th { padding: 4px 10px; white-space: nowrap; }
.mosaic-trials tbody tr:hover { background: rgba(128,128,128,0.08); }
.mosaic-best-row { background: rgba(0,158,115,0.14); }
"""
BEGIN = "mosaic sweep ppo CartPole-v1 --trials 30 --seeds 1-3"


def add(web: Web) -> None:
    """Register both pages."""

    @page_at(web, "/sweeps", "Sweeps")
    async def sweeps() -> None:
        await draw_list(web)

    @page_at(web, "/sweeps/{name}", "Sweep")
    async def sweep(name: str) -> None:
        page = SweepPage(web, name)
        await page.load()
        page.draw()


async def draw_list(web: Web) -> None:
    """Draw a row for each sweep of this home."""
    found: list[Summary] = []
    broken: list[str] = []

    def read() -> None:
        for name in list_sweeps(web.home):
            try:
                found.append(read_summary(web.home, name))
            except ConfigError as error:
                broken.append(str(error))

    await web.do(read)
    ui.add_css(STYLE)
    for text in broken:
        trouble(text)
    if not found:
        with ui.column().classes("w-full items-center py-8 gap-3"):
            ui.icon("tune").classes("text-5xl opacity-40").props("aria-hidden=true")
            ui.label("No sweep yet. A sweep tries parameters and finds good ones; begin one in a terminal:")
            code_box(BEGIN)
        return
    titles = ("Sweep", "Algorithm", "Environment", "Trials", "Best", "Moved")
    with ui.element("div").classes("w-full overflow-x-auto").props("tabindex=0"), _table(titles, right=("Best",)):
        for one in found:
            best = one.best_trial()
            with ui.element("tr").classes("border-t border-gray-500/20"):
                with ui.element("td"):
                    ui.link(one.name, f"/sweeps/{one.name}").classes("text-inherit font-medium")
                _cell(one.algo)
                _cell(one.env_id)
                _cell(told_count(one))
                _cell(words.number(best.value if best else None), right=True)
                _cell(words.age(one.updated_at))
    ui.label("Begin another in a terminal:").classes("text-sm opacity-80")
    code_box(BEGIN)


def told_count(one: Summary) -> str:
    """Return the number of trials out of the total, with the count per state."""
    counts = Counter(trial.state for trial in one.trials)
    parts = ", ".join(f"{count} {LOOK[state][1]}" for state, count in counts.most_common() if count)
    return f"{len(one.trials)} of {one.wanted}" + (f" ({parts})" if parts else "")


class SweepPage:
    """One user's view of a sweep: the summary file of its command, and the daemon's current runs."""

    def __init__(self, web: Web, name: str) -> None:
        self.web, self.name = web, name
        self.runs: dict[str, Run] = {}
        self._stamp = 0.0
        self._changed = True
        self.by_value = False

    async def load(self) -> None:
        """Read the file and fetch the runs; a missing daemon leaves the states unchanged."""
        self.summary = await self.web.do(lambda: read_summary(self.web.home, self.name))
        group = group_of(SWEEP, self.name)
        try:
            runs = await self.web.ask(lambda client: _all_runs(client, group))
        except MosaicError as error:
            self.web.page_trouble(error)
            return
        self.runs = {run.run_id: run for run in runs}

    def draw(self) -> None:
        ui.add_css(STYLE)
        self.head = ui.column().classes("w-full gap-2")
        with ui.element("div").classes("grid grid-cols-1 lg:grid-cols-2 gap-4 w-full"):
            with _card("Values"):
                self.history = _chart(sweep_chart.history(self.summary), "mosaic-sweep-chart", "Values of the trials")
            with _card("Which parameter matters"):
                self.importance = _chart(
                    sweep_chart.importance(self.summary), "mosaic-sweep-chart", "Importance of the parameters"
                )
                self.importance_note = ui.label().classes("text-sm opacity-80")
        with _card("Parameters of every completed trial, up to its value"):
            ui.label("Draw along an axis to see only the trials that pass there; green lines are the best.").classes(
                "text-sm opacity-80"
            )
            with ui.element("div").classes("w-full overflow-x-auto").props("tabindex=0"):
                options = sweep_chart.parallel(self.summary)
                self.parallel = _chart(options, "mosaic-sweep-parallel", "Parallel coordinates of the trials")
                # An axis needs room for its name; a chart wider than the window scrolls.
                self.parallel.style(f"min-width: {6 * (len(self.summary.space) + 1)}rem")
        with ui.row().classes("w-full items-center gap-3"):
            ui.label("Trials").classes("text-base font-medium")
            ui.space()
            ui.switch("Best first", value=False, on_change=lambda event: self._sort(bool(event.value)))
        self.table = ui.element("div").classes("w-full overflow-x-auto").props("tabindex=0 data-testid=trials")
        self.show()
        on_changes(self.web, self.heard)
        ui.timer(REFRESH_SECONDS, self.refresh)

    def heard(self, changes: list[Change]) -> None:
        known = set(self.runs)
        self._changed = self._changed or not changes or any(change.run_id in known for change in changes)

    async def refresh(self) -> None:
        """Reload if the file or a run has changed."""
        stamp = await self.web.do(self._moved)
        if not self._changed and stamp == self._stamp:
            return
        self._changed, self._stamp = False, stamp
        try:
            await self.load()
        except ConfigError as error:  # deleted while it is viewed
            self.web.page_trouble(error)
            return
        for chart, make in (
            (self.history, sweep_chart.history),
            (self.importance, sweep_chart.importance),
            (self.parallel, sweep_chart.parallel),
        ):
            chart.options.clear()
            chart.options.update(make(self.summary))
            chart.update()
        self.show()

    def _moved(self) -> float:
        from mosaic.contract.sweeps import summary_file

        try:
            return os.stat(summary_file(self.web.home, self.name)).st_mtime
        except OSError:
            return 0.0

    def _sort(self, by_value: bool) -> None:
        self.by_value = by_value
        self.show()

    def show(self) -> None:
        """Update header and table from the data."""
        one = self.summary
        few = f" With fewer than {SURE} completed trials it is a hint." if one.count("complete") < SURE else ""
        told = f"The share of the spread that each parameter alone explains.{few}"
        self.importance_note.set_text(told if one.importance else "Four completed trials are needed to tell.")
        self.importance.set_visibility(bool(one.importance))
        self.head.clear()
        with self.head:
            self._draw_head()
        self.table.clear()
        with self.table:
            self._draw_trials()

    def _draw_head(self) -> None:
        one = self.summary
        with ui.row().classes("w-full items-baseline gap-3"):
            ui.label(one.name).classes("text-xl font-bold break-words")
            ui.label(f"{one.algo} on {one.env_id}").classes("break-words")
            ui.space()
            top = self._best(COMPARED)
            if top:
                runs = ",".join(run_id for trial in top for run_id in trial.runs)
                ui.link(f"Compare the best {len(top)}", f"/compare?{urlencode({'runs': runs}, safe=',')}")
            ui.link("All its runs", f"/runs?{urlencode({'text': f'{SWEEP}:{one.name}/'})}")
        seeds = f"{len(one.seeds)} seed" + ("s" if len(one.seeds) > 1 else "")
        ui.label(
            f"{told_count(one)} · {seeds} each · {one.direction} the mean of the last {one.last} values of "
            f"{one.metric} · {one.total_timesteps:,} steps a run · moved {words.age(one.updated_at)}"
        ).classes("text-sm opacity-80 break-words").props("data-testid=counts")
        best = one.best_trial()
        if best is not None:
            first = one.default_trial()
            beside = f" (the defaults, trial {first.number}: {words.number(first.value)})" if first else ""
            told = f"trial {best.number} with {words.number(best.value)}{beside if first != best else ''}"
            ui.label(f"Best: {told}. Train with its parameters:").props("data-testid=best")
            code_box(one.command)
        going = any(not run.ended for run in self.runs.values())
        if len(one.trials) < one.wanted or one.count("running"):
            doing = "Runs of it are going." if going else "Nothing of it runs."
            ui.label(f"{doing} If its command has ended, go on with: mosaic sweep --name {one.name}").classes("text-sm")

    def _best(self, count: int) -> list[Trial]:
        sign = -1.0 if self.summary.direction == "maximize" else 1.0
        complete = [trial for trial in self.summary.trials if trial.state == "complete" and trial.value is not None]
        return sorted(complete, key=lambda trial: sign * (trial.value or 0.0))[:count]

    def _draw_trials(self) -> None:
        one = self.summary
        trials = list(reversed(one.trials))
        if self.by_value:
            best = self._best(len(one.trials))
            trials = [*best, *(trial for trial in trials if trial not in best)]
        names = [dimension.name for dimension in one.space]
        with _table(("Trial", "State", "Value", "Runs", *names), right=("Value", *names)):
            for trial in trials[:MOST_ROWS]:
                self._draw_trial(trial, names)
        if len(trials) > MOST_ROWS:
            ui.label(f"{len(trials) - MOST_ROWS} more are not shown.").classes("text-sm opacity-80")

    def _draw_trial(self, trial: Trial, names: list[str]) -> None:
        best = " mosaic-best-row" if trial.number == self.summary.best else ""
        icon, word = LOOK[trial.state]
        with ui.element("tr").classes(f"border-t border-gray-500/20{best}").props(f"data-trial={trial.number}"):
            _cell(str(trial.number))
            with ui.element("td"), ui.row().classes("items-center gap-1 no-wrap"):
                ui.icon(icon).props("aria-hidden=true")
                ui.label(word)
                if trial.reason:
                    ui.icon("info").props(f"tabindex=0 aria-label={_quoted(trial.reason)}").tooltip(trial.reason)
            _cell(words.number(trial.value), right=True)
            with ui.element("td"), ui.row().classes("gap-2 no-wrap"):
                for seed, run_id in zip(self.summary.seeds, trial.runs, strict=False):
                    run = self.runs.get(run_id)
                    state = STATES[run.state][2] if run is not None else "gone"
                    share = f" {run.progress:.0%}" if run and run.state == State.EXECUTING and run.progress else ""
                    link = ui.link(f"seed {seed}", f"/run/{run_id}").classes("text-inherit")
                    link.tooltip(f"{state}{share}")
            for name in names:
                _cell(_told(trial.params.get(name)), right=True)


def _all_runs(client: Client, group: str) -> list[Run]:
    found: list[Run] = []
    page = ""
    while True:
        answer = client.list_runs(group=group, page_size=PAGE, page=page)
        found += answer.runs
        page = answer.next_page
        if not page:
            return found


def _told(value: Any) -> str:
    return words.number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _quoted(text: str) -> str:
    """Quote a text for use in props, whatever it contains."""
    return '"' + text.replace("\\", "").replace('"', "'").replace("\n", " ") + '"'


def _chart(options: dict[str, Any], name: str, label: str) -> ui.echart:
    return ui.echart(options, renderer="svg").classes(name).props(f'role=img aria-label="{label}"')


def _card(title: str) -> ui.card:
    card = ui.card().classes("w-full").props("flat bordered")
    with card:
        ui.label(title).classes("text-base font-medium")
    return card


def _table(titles: tuple[str, ...], right: tuple[str, ...] = ()) -> ui.element:
    """Draw a table with its head; return its body."""
    table = ui.element("table").classes("mosaic-trials w-full text-sm")
    with table:
        with ui.element("thead"), ui.element("tr"):
            for title in titles:
                side = "text-right" if title in right else "text-left"
                with ui.element("th").classes(side).props("scope=col"):
                    ui.label(title)
        return ui.element("tbody")


def _cell(text: str, *, right: bool = False) -> None:
    with ui.element("td").classes("text-right" if right else ""):
        ui.label(text)
