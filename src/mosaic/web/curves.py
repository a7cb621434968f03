"""Curves of pages: smoothing, ECharts data, incremental growth, CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mosaic.trainer.rpc.client import Series

# A chart is some 400 pixels wide: more points would not change it.
MAX_POINTS = 400
# A live curve may grow to this size before it is fetched again, thinned out.
MOST_POINTS = 2 * MAX_POINTS
# Okabe and Ito's colour-blind safe colours, those with contrast on white and on black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
QUIET = "#7a7a7a"

# Tuples, which NiceGUI sends unchanged: it would wrap every list, to watch it for changes.
Point = tuple[float, float | None]
Line = tuple[Point, ...]


@dataclass(frozen=True)
class CurveView:
    """The view of curves: smoothing from 0 to below 1, a logarithmic axis, x by step or by time, the window."""

    smoothing: float = 0.0
    log: bool = False
    axis: str = "step"
    window: tuple[float, float] = (0.0, 100.0)
    """in percent of the x axis"""


@dataclass
class Curve:
    """One metric of one run, as fetched so far; `cursor` continues the fetch."""

    key: str
    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    cursor: int = 0
    total: int = 0

    @classmethod
    def of(cls, series: Series) -> Curve:
        curve = cls(series.key)
        curve.grow(series)
        return curve

    def grow(self, series: Series) -> int:
        """Append the new points; return the index of the first one, 0 if the run was reset and all are new."""
        if series.reset:
            self.steps, self.times, self.values = [], [], []
        first = len(self.values)
        self.steps += series.steps.tolist()
        self.times += series.times.tolist()
        self.values += series.values.tolist()
        self.cursor, self.total = series.cursor, series.total
        return first

    @property
    def is_long(self) -> bool:
        return len(self.values) > MOST_POINTS

    @property
    def last(self) -> float | None:
        return self.values[-1] if self.values else None


def smoothed(values: Iterable[float], weight: float) -> list[float]:
    """Return the exponential mean without bias to the start; non-finite values are skipped, and kept."""
    result, mean, share = [], 0.0, 0.0
    for value in values:
        if math.isfinite(value):
            mean = weight * mean + (1.0 - weight) * value
            share = weight * share + (1.0 - weight)
            result.append(mean / share)
        else:
            result.append(value)
    return result


def points(curve: Curve, view: CurveView, begun: float, first: int = 0) -> list[Line]:
    """Return the drawn lines from point `first` on: one line, or with smoothing the raw and the smooth one."""
    xs = curve.steps if view.axis == "step" else [round(time - begun, 2) for time in curve.times]
    lines = [curve.values]
    if view.smoothing > 0.0:
        lines.append(smoothed(curve.values, view.smoothing))
    return [tuple((x, _drawable(y, view.log)) for x, y in zip(xs[first:], line[first:], strict=True)) for line in lines]


def chart_options(curve: Curve, view: CurveView, begun: float, colour: str = COLOURS[0]) -> dict[str, Any]:
    """Return the complete chart. No text of a run becomes a key: NiceGUI would run one that begins with a colon."""
    lines = points(curve, view, begun)
    series = [_line(data, colour, faint=len(lines) > number + 1) for number, data in enumerate(lines)]
    axis_text = {"color": QUIET, "fontSize": 11, "hideOverlap": True}
    # the first and the last step are rarely round numbers
    x_text = {**axis_text, "showMinLabel": False, "showMaxLabel": False}
    grid_line = {"lineStyle": {"color": QUIET, "opacity": 0.22}}
    by_step = view.axis == "step"
    return {
        "animation": False,
        "grid": {"left": 8, "right": 18, "top": 12, "bottom": 6, "containLabel": True},
        "tooltip": {"trigger": "axis", "confine": True, "axisPointer": {"type": "line"}},
        "xAxis": {
            "type": "value",
            "min": "dataMin",
            "max": "dataMax",
            "axisLabel": {**x_text, ":formatter": _STEP_LABEL if by_step else _TIME_LABEL},
            "axisPointer": {"label": {"show": False}},
            "splitLine": {"show": False},
        },
        "yAxis": {
            "type": "log" if view.log else "value",
            "scale": True,
            "axisLabel": {**axis_text, ":formatter": _VALUE_LABEL},
            "splitLine": grid_line,
        },
        "dataZoom": [
            {
                "type": "inside",
                "start": view.window[0],
                "end": view.window[1],
                "zoomOnMouseWheel": "ctrl",
                "moveOnMouseMove": True,
                "filterMode": "none",
            }
        ],
        "series": series,
    }


def _line(data: Line, colour: str, *, faint: bool) -> dict[str, Any]:
    return {
        "type": "line",
        "name": "raw" if faint else "value",
        "data": data,
        "showSymbol": len(data) < 2,
        "symbolSize": 5,
        "silent": faint,
        "lineStyle": {"width": 1 if faint else 1.8, "opacity": 0.35 if faint else 1.0},
        "color": colour,
    }


_VALUE_LABEL = (
    "v => v === 0 ? '0' : Math.abs(v) >= 1e5 || Math.abs(v) < 1e-3 "
    "? String(+v.toPrecision(3)).replace('e+', 'e') : String(+v.toPrecision(4))"
)
_STEP_LABEL = "v => v >= 1e6 ? +(v / 1e6).toPrecision(4) + 'M' : v >= 1e4 ? +(v / 1e3).toPrecision(4) + 'k' : v"
_TIME_LABEL = (
    "v => v >= 7200 ? +(v / 3600).toPrecision(3) + ' h' : v >= 120 ? +(v / 60).toPrecision(3) + ' min' "
    ": +v.toPrecision(3) + ' s'"
)


def _drawable(value: float, log: bool) -> float | None:
    """Return a drawable number with readable digits; None leaves a gap."""
    return float(f"{value:.6g}") if math.isfinite(value) and not (log and value <= 0.0) else None


def colour_of(key: str) -> str:
    """Return the colour of the part before the slash: one kind of number has one colour on every page."""
    kinds = {"charts": 0, "losses": 1, "eval": 2, "perf": 3, "time": 3, "curriculum": 4}
    return COLOURS[kinds.get(key.split("/")[0], 0)]


def sort_key(key: str) -> tuple[int, str]:
    """Sort returns first, then throughput, losses, and the rest."""
    order = ("charts/episodic_return", "eval/", "charts/", "curriculum/", "losses/", "time/", "perf/")
    return next((place for place, start in enumerate(order) if key.startswith(start)), len(order)), key


def csv_text(series: Iterable[Series]) -> Iterator[str]:
    """Yield a CSV with a header and a line per point (metric, step, time, value), a few thousand lines at a time."""
    yield "metric,step,time,value\r\n"
    for one in series:
        for start in range(0, len(one), 5000):
            part = slice(start, start + 5000)
            buffer = io.StringIO()
            writer = csv.writer(buffer)
            name = _plain_cell(one.key)
            columns = (one.steps[part].tolist(), one.times[part].tolist(), one.values[part].tolist())
            writer.writerows((name, *row) for row in zip(*columns, strict=True))
            yield buffer.getvalue()


def _plain_cell(text: str) -> str:
    """Return a text that no spreadsheet reads as a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
