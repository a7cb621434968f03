"""The Metrics tab: a chart per metric, growing with the run, and its display options."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from nicegui import ui

from mosaic.trainer.rpc.client import Client, Series
from mosaic.web import curves, words
from mosaic.web.curves import Curve
from mosaic.web.pages.run_header import BUTTON

if TYPE_CHECKING:
    from mosaic.web.pages.run import RunPage

# So many charts draw without a noticeable delay; the rest are one click, or a few letters, away.
FIRST_CHARTS = 24
GROW_SECONDS = 1.0


async def show(page: RunPage) -> None:
    """Draw the tab with its first curves."""
    bar = ui.row().classes("w-full items-center gap-x-6 gap-y-2")
    wall = Wall(page, columns=3, most=FIRST_CHARTS)
    await wall.draw(lambda key: True)

    async def search(event: Any) -> None:
        text = str(event.value or "").lower()
        await wall.draw(lambda key: text in key.lower())

    with bar:
        _draw_controls(page, wall)
        ui.input("Find a metric", on_change=search).props("dense clearable debounce=300").classes("w-44")
        whole = ui.button("CSV", icon="download").props(BUTTON)
        whole.props["href"] = f"/metrics/{page.run_id}.csv"
        whole.props["aria-label"] = "Download all curves as CSV"
        whole.tooltip("every point of every curve")


def _draw_controls(page: RunPage, wall: Wall) -> None:
    def change(**values: Any) -> None:
        page.view = replace(page.view, **values)
        wall.redraw()

    with ui.column().classes("gap-0 w-40"):
        shown = ui.label(f"Smoothing {page.view.smoothing:.2f}").classes("text-xs opacity-70")

        def smooth(event: Any) -> None:
            shown.set_text(f"Smoothing {event.value:.2f}")
            change(smoothing=float(event.value))

        slider = ui.slider(min=0.0, max=0.99, step=0.01, value=page.view.smoothing, on_change=smooth)
        slider.props('dense aria-label="Smoothing"')
    with ui.column().classes("gap-0 w-40"):
        ui.label("Zoom").classes("text-xs opacity-70")

        def zoom(event: Any) -> None:
            wall.zoom(float(event.value["min"]), float(event.value["max"]))

        ends = {"min": page.view.window[0], "max": page.view.window[1]}
        ui.range(min=0, max=100, value=ends, on_change=zoom).props('dense aria-label="Part of the axis that is shown"')
    axis = {"step": "by step", "time": "by time"}
    ui.toggle(axis, value=page.view.axis, on_change=lambda event: change(axis=event.value)).props(
        'dense no-caps aria-label="Axis"'
    )
    ui.switch("Log scale", value=page.view.log, on_change=lambda event: change(log=bool(event.value))).props("dense")


class CurveChart(ui.echart, component="curve_chart.js"):
    """One chart, drawn by our own component."""


class Wall:
    """A grid of charts, each with its curve; new points are appended to the drawn ones."""

    def __init__(self, page: RunPage, *, columns: int, most: int) -> None:
        self._page, self._most = page, most
        self._matches: Callable[[str], bool] = lambda key: True
        self._charts: dict[str, tuple[Curve, CurveChart, ui.label]] = {}
        self._last_grown, self._growing, self._missed = 0.0, False, False
        wide = {1: "", 2: "md:grid-cols-2", 3: "md:grid-cols-2 xl:grid-cols-3"}[columns]
        self._grid = ui.element("div").classes(f"w-full grid grid-cols-1 {wide} gap-4")
        self._said = ui.label().classes("opacity-80")
        self._said.set_visibility(False)
        page.hear(self._heard)

    @property
    def is_empty(self) -> bool:
        return not self._charts

    def say(self, text: str) -> None:
        """Show a line in place of charts, or below them."""
        self._said.set_text(text)
        self._said.set_visibility(bool(text))

    async def draw(self, matches: Callable[[str], bool]) -> None:
        """Draw the curves of the matching keys, with the points so far."""
        self._matches = matches
        keys = self._keys()
        found = await self._page.web.ask(lambda client: self._read(client, keys[: self._most])) if keys else []
        self._charts.clear()
        self._grid.clear()
        with self._grid:
            for one in sorted(found, key=lambda series: curves.sort_key(series.key)):
                self._add(Curve.of(one))
        self._say_what_is_missing(keys)

    def redraw(self) -> None:
        """Redraw the curves with the current view."""
        for curve, chart, _ in self._charts.values():
            chart.options.clear()
            chart.options.update(self._options(curve))
            chart.update()

    def zoom(self, start: float, end: float) -> None:
        """Show this part of the axis, in percent, on every chart."""
        self._page.view = replace(self._page.view, window=(start, end))
        for _, chart, _ in self._charts.values():
            chart.options["dataZoom"][0].update(start=start, end=end)
        ids = [chart.id for _, chart, _ in self._charts.values()]
        ui.run_javascript(f"mosaicCharts.window({ids}, {start}, {end})")

    def _keys(self) -> list[str]:
        return sorted(filter(self._matches, self._page.run.last_values), key=curves.sort_key)

    def _read(self, client: Client, keys: list[str], since: dict[str, int] | None = None) -> list[Series]:
        return client.get_metrics(self._page.run_id, keys, max_points=curves.MAX_POINTS, since=since)

    def _add(self, curve: Curve) -> None:
        key = curve.key
        with ui.card().classes("w-full gap-1 p-3 min-w-0"):
            with ui.row().classes("w-full items-center no-wrap gap-1"):
                ui.label(key).classes("text-sm font-medium break-all min-w-0 grow")
                last = ui.label(words.number(curve.last)).classes("text-sm opacity-80 whitespace-nowrap")
                save = ui.button(icon="image").props("flat round dense size=sm")
                save.props["aria-label"] = f"Download the chart of {key} as PNG"
                load = ui.button(icon="download").props("flat round dense size=sm")
                load.props["href"] = f"/metrics/{self._page.run_id}.csv?key={quote(key, safe='')}"
                load.props["aria-label"] = f"Download {key} as CSV"
            chart = CurveChart(self._options(curve)).classes("w-full h-52")
            chart.props["role"] = "img"
            chart.props["aria-label"] = f"Curve of {key}"
            save.on("click", js_handler=f"() => mosaicCharts.save({chart.id}, {_script_text(key)})")
        self._charts[key] = (curve, chart, last)

    def _options(self, curve: Curve) -> dict[str, Any]:
        return curves.chart_options(curve, self._page.view, self._begun, curves.colour_of(curve.key))

    @property
    def _begun(self) -> float:
        run = self._page.run
        return run.started_at or run.created_at

    def _heard(self) -> Any:
        """Fetch new points when the run changes, at most once a second, and once more at its end."""
        if self._growing:
            self._missed = self._page.run.ended
            return None
        due = self._page.run.ended or time.monotonic() - self._last_grown >= GROW_SECONDS
        return self._grow() if due else None

    async def _grow(self) -> None:
        self._growing, self._missed, self._last_grown = True, False, time.monotonic()
        try:
            since = {key: curve.cursor for key, (curve, _, _) in self._charts.items()}
            found = await self._page.web.ask(lambda client: self._read(client, list(since), since))
            drawn = {key: curve.cursor for key, (curve, _, _) in self._charts.items()}
            # a chart redrawn meanwhile already has its points
            self._take({one.key: one for one in found if since.get(one.key) == drawn.get(one.key)})
            if long := [key for key, (curve, _, _) in self._charts.items() if curve.is_long]:
                fresh = await self._page.web.ask(lambda client: self._read(client, long))
                self._take({one.key: replace(one, reset=True) for one in fresh})
            self._page.run.last_values.update({one.key: 0.0 for one in found if one.key not in self._charts})
            if any(key not in self._charts for key in self._keys()[: self._most]):  # new metrics
                await self.draw(self._matches)
        finally:
            self._growing = False
        if self._missed:
            await self._grow()

    def _take(self, news: dict[str, Series]) -> None:
        changes = []
        for key, (curve, chart, last) in self._charts.items():
            one = news.get(key)
            if one is None or (not len(one) and not one.reset):
                continue
            first = curve.grow(one)
            lines = curves.points(curve, self._page.view, self._begun, first)
            for series, line in zip(chart.options["series"], lines, strict=True):
                series["data"] = series["data"][:first] + line
            last.set_text(words.number(curve.last))
            changes.append([chart.id, first, lines])
        if changes:
            with self._grid:
                ui.run_javascript(f"mosaicCharts.grow({json.dumps(changes, allow_nan=False)})")

    def _say_what_is_missing(self, keys: list[str]) -> None:
        if not keys and not self._page.run.last_values:
            self.say(
                "No metrics were logged." if self._page.run.ended else "The first metrics appear as soon as they come."
            )
        elif not keys:
            self.say("No metric has this in its name.")
        else:
            self.say("")
        if 1 < self._most < len(keys):
            with self._grid:
                ui.button(f"Show all {len(keys)} metrics", on_click=self._show_all).props("flat no-caps")

    async def _show_all(self) -> None:
        self._most = 10_000
        await self.draw(self._matches)


def _script_text(text: str) -> str:
    """Return a text as a script literal, safe inside a page."""
    return json.dumps(text).replace("<", "\\u003c")
