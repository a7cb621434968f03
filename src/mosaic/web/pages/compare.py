"""Compare: any runs in one chart, seeds as groups with bands, their numbers, and which group performs better."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from nicegui import events, ui

from mosaic.contract.errors import ConfigError, MosaicError, UnknownRunError, shown
from mosaic.contract.returns import EPISODE_RETURNS, MEAN_RETURN
from mosaic.trainer.rpc.client import Change, Run, Series
from mosaic.web import analytics, compare_chart, words
from mosaic.web.analytics import Band, Group, Trace
from mosaic.web.compare_chart import Look
from mosaic.web.context import Web
from mosaic.web.layout import STATES, on_changes, page_at, tell, trouble
from mosaic.web.pages.run_picker import choose_runs

# Means over more points than the axis has, so that its bins can average.
FETCHED_POINTS = 1000
PAGE = 1000
# A comparison is not watched live: its curves are fetched again only this often.
REFRESH_SECONDS = 5.0
STYLE = """
.mosaic-chart { width: 100%; height: 26rem; }
.body--dark .mosaic-chart text { fill: #ddd; }
.mosaic-swatch { width: 1.5rem; height: 0; border-top-width: 3px; flex: none; }
.mosaic-compare td, .mosaic-compare th { padding: 4px 10px; white-space: nowrap; }
.mosaic-compare tbody tr:hover { background: rgba(128,128,128,0.08); }
"""
# On a white background, at twice the screen's size: for papers and slides.
SAVE_PICTURE = """
(async () => {
  const chart = getElement(%d).chart;
  const svg = chart.getDataURL({type: 'svg'});
  const save = (url, name) => { const a = document.createElement('a'); a.href = url; a.download = name; a.click(); };
  if (%s) return save(svg, 'comparison.svg');
  const image = new Image();
  image.src = svg;
  await image.decode();
  const canvas = document.createElement('canvas');
  canvas.width = 2 * chart.getWidth(); canvas.height = 2 * chart.getHeight();
  const pen = canvas.getContext('2d');
  pen.fillStyle = 'white'; pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  save(canvas.toDataURL('image/png'), 'comparison.png');
})()
"""


def add(web: Web) -> None:
    """Register the page."""

    @page_at(web, "/compare", "Compare")
    async def compare(runs: str = "", group: str = "", env: str = "") -> None:
        run_ids = analytics.run_ids_of(runs)
        if group:
            run_ids = list(dict.fromkeys([*run_ids, *await _run_ids_of_group(web, group, env)]))
        page = ComparePage(web, run_ids)
        await page.load()
        page.draw()


async def _run_ids_of_group(web: Web, group: str, env_id: str) -> list[str]:
    """Return the runs of a benchmark or a sweep, or of a part of one; ConfigError if none exist."""
    found = await web.ask(lambda client: client.list_runs(group=group, env_id=env_id, page_size=PAGE).runs)
    if not found:
        where = f" on {env_id}" if env_id else ""
        raise ConfigError(f"no run belongs to {shown(group)}{where}; the groups there are stand at the runs: /runs")
    return analytics.of_group(found, group)


class ComparePage:
    """One user's comparison."""

    def __init__(self, web: Web, run_ids: list[str]) -> None:
        self.web = web
        self.run_ids = run_ids
        self.look = Look()
        self.by_group = True
        self.runs: list[Run] = []
        self.missing: list[str] = []
        self.series: dict[str, Series] = {}
        self.bests: dict[str, float | None] = {}
        self.groups: list[Group] = []
        self.bands: list[Band | None] = []
        self.traces: dict[str, Trace] = {}
        self._changed: set[str] = set()
        self._busy = False
        self._computations = 0

    # Data

    async def load(self, only: Sequence[str] | None = None) -> None:
        """Fetch the runs and their curves concurrently; `missing` names those that are gone."""
        asked = self.run_ids if only is None else only
        found = await asyncio.gather(*(self._one(run_id) for run_id in asked))
        known = {run.run_id: run for run in self.runs if run.run_id not in asked}
        known |= {run.run_id: run for run, _ in found if run is not None}
        self.runs = [known[run_id] for run_id in self.run_ids if run_id in known]
        self.missing = [run_id for run_id in self.run_ids if run_id not in known]
        if only is None and self.runs and not any(one for _, one in found):
            # No run has returns: perhaps they share another metric.
            keys = self.metrics()
            if keys and self.look.metric not in keys:
                self.look = replace(self.look, metric=keys[0])
                return await self.load()
        for run, series in found:
            if run is not None:
                self.series.pop(run.run_id, None)
                if series is not None:
                    self.series[run.run_id] = series
        await self.compute()

    async def _one(self, run_id: str) -> tuple[Run | None, Series | None]:
        asked = self.look.metric
        keys = list(EPISODE_RETURNS) if asked in EPISODE_RETURNS else [asked]
        try:
            run = await self.web.ask(lambda client: client.get_run(run_id))
            found = await self.web.ask(
                lambda client: client.get_metrics(run_id, [*keys, MEAN_RETURN], max_points=FETCHED_POINTS, average=True)
            )
        except UnknownRunError:
            return None, None
        self.bests[run_id] = next((one.highest for one in found if one.key == MEAN_RETURN), None)
        return run, max((one for one in found if len(one) and one.key in keys), key=len, default=None)

    async def compute(self) -> None:
        """Compute all drawn data; the bootstrap's resampling runs in a thread."""
        look, runs, series = self.look, list(self.runs), dict(self.series)
        groups = analytics.grouped(runs) if self.by_group else analytics.alone(runs)

        def work() -> tuple[dict[str, Trace], list[Band | None]]:
            traces = {
                run.run_id: analytics.trace_of(run, series[run.run_id], look.axis)
                for run in runs
                if run.run_id in series
            }
            axis = analytics.common_axis(traces.values())
            return traces, [analytics.band_of(group, traces, axis, look.smoothing) for group in groups]

        self._computations += 1
        number = self._computations
        traces, bands = await self.web.do(work)
        if number == self._computations:  # else a newer look is being computed, and this one must not overwrite it
            self.traces, self.bands, self.groups = traces, bands, groups

    def metrics(self) -> list[str]:
        """Return the keys that any of the runs has, the returns first."""
        keys = {key for run in self.runs for key in run.last_values}
        keys -= {EPISODE_RETURNS[1]} if EPISODE_RETURNS[0] in keys else set()
        return sorted(keys, key=lambda key: (key not in EPISODE_RETURNS, key != MEAN_RETURN, key))

    def headlines(self) -> list[tuple[str, str, analytics.Headline, int]]:
        """Return kind, run id, numbers and the group's number, in the order of the table."""
        rows: list[tuple[str, str, analytics.Headline, int]] = []
        for number, group in enumerate(self.groups):
            of_runs = [analytics.headline(run, self.bests.get(run.run_id)) for run in group.runs]
            if len(of_runs) > 1:
                counted = {run.run_id for run in group.counted}
                counting = [one for run, one in zip(group.runs, of_runs, strict=True) if run.run_id in counted]
                rows.append(("group", "", analytics.group_headline(group, counting), number))
            rows += [("run", run.run_id, one, number) for run, one in zip(group.runs, of_runs, strict=True)]
        return rows

    # Drawing

    def draw(self) -> None:
        ui.add_css(STYLE)
        self.gone = ui.column().classes("w-full")
        self._show_gone()
        if not self.runs:
            self._draw_start()
            return
        self._draw_controls()
        self.chart = ui.echart({"series": []}, renderer="svg").classes("mosaic-chart")
        self.chart.props('role=img aria-label="Curves of the compared runs"')
        self._draw_downloads()
        self.table = ui.element("div").classes("w-full overflow-x-auto").props("tabindex=0 data-testid=table")
        self.verdict = ui.card().classes("w-full").props("flat bordered")
        self.sides: tuple[str, str] = ("", "")
        self.show()
        on_changes(self.web, self.heard)
        ui.timer(REFRESH_SECONDS, self.refresh)

    def _draw_start(self) -> None:
        with ui.column().classes("w-full items-center py-8 gap-3"):
            ui.icon("stacked_line_chart").classes("text-5xl opacity-40").props("aria-hidden=true")
            ui.label("Choose the runs to compare. Seeds of one configuration become one curve with a band.")
            ui.button("Choose runs", icon="add", on_click=self._choose)

    def _draw_controls(self) -> None:
        with ui.row().classes("w-full items-center gap-3"):
            metric = ui.select(
                self.metrics() or [self.look.metric], label="Metric", value=self.look.metric, on_change=self._metric
            )
            metric.props("dense outlined options-dense").classes("w-60 max-sm:w-full")
            self._toggle("Middle", {"iqm": "IQM", "mean": "mean"}, "statistic")
            self._toggle("Across", {"step": "steps", "time": "hours"}, "axis")
            with ui.row().classes("items-center gap-2 no-wrap max-sm:w-full"):
                ui.label("Smoothing").classes("text-sm")
                smooth = ui.slider(min=0, max=0.95, step=0.05, value=0).props('label aria-label="Smoothing"')
                smooth.classes("w-28 max-sm:grow mx-2")
                smooth.on("change", lambda event: self._change(smoothing=float(event.args)), throttle=0.3)
            self._switch("Group seeds", self.by_group, self._group)
            self._switch("Each seed", False, lambda e: self._change(seeds=bool(e.value)))
            self._switch("Log", False, lambda e: self._change(log=bool(e.value)))
            ui.space()
            ui.button("Runs", icon="add", on_click=self._choose).props("outline dense").classes("px-2")

    def _toggle(self, label: str, options: dict[str, str], name: str) -> None:
        chosen = ui.toggle(options, value=getattr(self.look, name), on_change=lambda e: self._change(**{name: e.value}))
        chosen.props(f'dense no-caps unelevated toggle-color=primary padding="4px 10px" aria-label="{label}"')

    def _switch(self, label: str, value: bool, act: Any) -> None:
        ui.switch(label, value=value, on_change=act).props(f'dense aria-label="{label}"')

    def _draw_downloads(self) -> None:
        with ui.row().classes("w-full gap-1 justify-end"):
            for word, icon, act in (
                ("PNG", "image", lambda: self._save_picture(svg=False)),
                ("SVG", "image", lambda: self._save_picture(svg=True)),
                ("Curves (CSV)", "download", self._save_curves),
                ("Table (CSV)", "download", self._save_table),
            ):
                ui.button(word, icon=icon, on_click=act).props("flat dense no-caps")

    def _show_gone(self) -> None:
        self.gone.clear()
        self.gone.set_visibility(bool(self.missing))
        if self.missing:
            with self.gone:
                trouble(f"Not there any more, or never were: {', '.join(self.missing)}. The others are compared.")

    def show(self) -> None:
        """Update chart, table and verdict from the data."""
        self._show_gone()
        self.chart.options.clear()
        self.chart.options.update(compare_chart.options(self.bands, self.traces, self.look))
        self.chart.update()
        self.table.clear()
        with self.table:
            self._draw_table()
        self.verdict.clear()
        with self.verdict:
            self._draw_verdict()

    def _draw_table(self) -> None:
        titles = ("", "Return", "Best", "Steps/s", "Hours", "State")
        with ui.element("table").classes("mosaic-compare w-full text-sm"):
            with ui.element("thead"), ui.element("tr"):
                for place, title in enumerate(titles):
                    with ui.element("th").classes("text-left" if place in (0, 5) else "text-right").props("scope=col"):
                        ui.label(title)
            with ui.element("tbody"):
                states = {run.run_id: _state(run) for run in self.runs}
                for kind, run_id, one, number in self.headlines():
                    self._draw_row(kind, run_id, one, number, states.get(run_id, ""))

    def _draw_row(self, kind: str, run_id: str, one: analytics.Headline, number: int, state: str) -> None:
        alone = len(self.groups[number].runs) == 1
        colour, dash = compare_chart.style_of(number)
        with ui.element("tr").classes("border-t border-gray-500/20"):
            inside = kind == "run" and not alone
            with ui.element("td"), ui.row().classes("items-center gap-2 no-wrap" + (" pl-8" if inside else "")):
                if not inside:
                    swatch = ui.element("span").classes("mosaic-swatch")
                    swatch.style(f"border-top-style: {dash}; border-top-color: {colour}")
                if run_id:
                    ui.link(one.label, f"/run/{run_id}").classes("text-inherit").props(f'title="{run_id}"')
                else:
                    ui.label(one.label).classes("font-medium")
            hours = None if one.hours is None else round(one.hours, 3)
            speed = None if one.sps is None else round(one.sps)
            for value in (one.final, one.best, speed, hours):
                with ui.element("td").classes("text-right" + ("" if run_id else " font-medium")):
                    ui.label(words.number(value))
            with ui.element("td"):
                ui.label(state)

    def _draw_verdict(self) -> None:
        labels = {group.key: group.label for group in self.groups}
        ui.label("Which is better?").classes("text-base font-medium")
        if len(labels) < 2:
            ui.label("Add runs of another configuration to compare two groups.").classes("text-sm opacity-80")
            return
        keys = list(labels)
        ours = self.sides[0] if self.sides[0] in labels else keys[0]
        theirs = self.sides[1] if self.sides[1] in labels else keys[1]
        self.sides = (ours, theirs)
        with ui.row().classes("w-full items-center gap-2"):
            for place, value in enumerate(self.sides):
                chosen = ui.select(
                    labels,
                    value=value,
                    label=("One", "Other")[place],
                    on_change=lambda e, p=place: self._side(p, e.value),
                )
                chosen.props("dense outlined options-dense").classes("w-64 max-sm:w-full")
        by_key = {group.key: group for group in self.groups}
        try:
            found = analytics.improvement(by_key[ours], by_key[theirs])
        except ConfigError as error:
            ui.label(str(error)).classes("text-sm")
            return
        chance, span = f"{found.probability:.0%}", f"{found.low:.0%} to {found.high:.0%}"
        ui.label(
            f"A run of “{found.ours}” beats one of “{found.theirs}” with a probability of {chance} "
            f"(95 % interval {span}), by their returns."
        ).props("data-testid=improvement")
        ui.linear_progress(found.probability, show_value=False, size="10px").props(
            'rounded aria-label="probability of improvement"'
        )
        seeds = min(len(by_key[ours].counted), len(by_key[theirs].counted))
        if seeds < 5:
            ui.label(
                f"With {seeds} on one side this is a hint, not a proof: five seeds and more tell something."
            ).classes("text-sm opacity-80")

    # Actions of the user

    async def _change(self, **chosen: Any) -> None:
        self.look = replace(self.look, **chosen)
        await self.compute()
        self.show()

    async def _metric(self, event: events.ValueChangeEventArguments) -> None:
        self.look = replace(self.look, metric=str(event.value))
        try:
            await self._again(self.run_ids)
        except MosaicError as error:
            tell(error)

    async def _group(self, event: events.ValueChangeEventArguments) -> None:
        self.by_group = bool(event.value)
        await self.compute()
        self.show()

    def _side(self, place: int, key: str) -> None:
        self.sides = (key, self.sides[1]) if place == 0 else (self.sides[0], key)
        self.verdict.clear()
        with self.verdict:
            self._draw_verdict()

    def heard(self, changes: list[Change]) -> None:
        """Mark changed runs for the next refresh; [] marks all."""
        ids = set(self.run_ids)
        self._changed |= {change.run_id for change in changes} & ids if changes else ids

    async def refresh(self) -> None:
        if self._changed and not self._busy:
            changed, self._changed = sorted(self._changed), set()
            try:
                await self._again(changed)
            except MosaicError as error:  # the banner reports the missing daemon; it is asked again once it is back
                self.web.page_trouble(error)

    async def _again(self, run_ids: Sequence[str]) -> None:
        self._busy = True
        try:
            await self.load(run_ids)
            self.show()
        finally:
            self._busy = False

    def _save_picture(self, *, svg: bool) -> None:
        ui.run_javascript(SAVE_PICTURE % (self.chart.id, "true" if svg else "false"))

    async def _save_curves(self) -> None:
        bands = [band for band in self.bands if band is not None]
        text = await self.web.do(lambda: analytics.curves_csv(self.look.metric, self.look.place, bands, self.traces))
        ui.download.content(text.encode(), "curves.csv", "text/csv")

    def _save_table(self) -> None:
        text = analytics.headlines_csv([(run_id, one) for _, run_id, one, _ in self.headlines()])
        ui.download.content(text.encode(), "comparison.csv", "text/csv")

    async def _choose(self) -> None:
        chosen = await choose_runs(self.web, self.run_ids)
        if chosen is not None:
            ui.navigate.to(f"/compare?{urlencode({'runs': ','.join(chosen)}, safe=',')}")


def _state(run: Run) -> str:
    return ", ".join(filter(None, (STATES[run.state][2], words.stall_mark(run.stalled_since))))
