"""The chart of a comparison for ECharts: a line and a band per group, thin lines for seeds. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mosaic.web.analytics import Band, Numbers, Trace, on_axis
from mosaic.web.layout import PALETTE

# Once the colours are used up, dashes distinguish the lines.
DASHES = ("solid", "dashed", "dotted")
INK, FAINT = "#444", "rgba(128,128,128,0.25)"


@dataclass(frozen=True)
class Look:
    """The display options that a user chose."""

    metric: str = "charts/episodic_return"
    axis: str = "step"
    statistic: str = "iqm"
    smoothing: float = 0.0
    seeds: bool = False
    log: bool = False

    @property
    def place(self) -> str:
        return "hours" if self.axis == "time" else "step"


def style_of(number: int) -> tuple[str, str]:
    """Return colour and dash of a group, the same in chart and table."""
    return PALETTE[number % len(PALETTE)], DASHES[number // len(PALETTE) % len(DASHES)]


def options(bands: Sequence[Band | None], traces: Mapping[str, Trace], look: Look) -> dict[str, Any]:
    """Return the complete chart; a band that is None keeps its colour reserved."""
    series: list[dict[str, Any]] = []
    named: list[str] = []
    for number, band in enumerate(bands):
        if band is None:
            continue
        colour, dash = style_of(number)
        named.append(band.group.label)
        if look.seeds and len(band.group.runs) > 1:
            series += _seed_lines(band, traces, look, colour)
        series += _band_lines(band, look, colour, dash)
    return {
        "animation": False,
        "aria": {"enabled": True},
        "grid": {"left": 8, "right": 24, "top": 48, "bottom": 56, "containLabel": True},
        "legend": {"data": named, "type": "scroll", "top": 4, "textStyle": {"color": INK, "fontSize": 13}},
        "tooltip": {"trigger": "axis", "confine": True, "order": "valueDesc"},
        "dataZoom": [{"type": "inside"}, {"type": "slider", "height": 18, "bottom": 6}],
        "xAxis": {
            "type": "value",
            "name": {"step": "environment steps", "time": "hours"}[look.axis],
            "nameLocation": "middle",
            "nameGap": 28,
            "min": "dataMin",
            "max": "dataMax",
            "nameTextStyle": {"color": INK},
            "axisLabel": {"color": INK, "hideOverlap": True},
            "splitLine": {"show": False},
        },
        "yAxis": {
            "type": "log" if look.log else "value",
            "scale": True,
            "axisLabel": {"color": INK},
            "splitLine": {"lineStyle": {"color": FAINT}},
        },
        "series": series,
    }


def _band_lines(band: Band, look: Look, colour: str, dash: str) -> list[dict[str, Any]]:
    middle, low, high = band.line(look.statistic)
    label = band.group.label
    line = {
        "name": label,
        "type": "line",
        "data": _points(band.places, middle, look.log),
        "showSymbol": int(np.isfinite(middle).sum()) == 1,
        "lineStyle": {"color": colour, "width": 2, "type": dash},
        "itemStyle": {"color": colour},
        "z": 3,
    }
    # A band is an invisible line with another stacked on it; a logarithm cannot be stacked.
    if len(band.group.runs) == 1 or look.log:
        return [line]
    edge = {
        "type": "line",
        "stack": f"band {label}",
        "stackStrategy": "all",
        "symbol": "none",
        "lineStyle": {"opacity": 0},
        "silent": True,
        "tooltip": {"show": False},
        "itemStyle": {"color": colour},
    }
    lower = {**edge, "name": f"{label} low", "data": _points(band.places, low)}
    upper = {
        **edge,
        "name": f"{label} 95 %",
        "data": _points(band.places, high - low),
        "areaStyle": {"color": colour, "opacity": 0.18},
    }
    return [lower, upper, line]


def _seed_lines(band: Band, traces: Mapping[str, Trace], look: Look, colour: str) -> list[dict[str, Any]]:
    lines = []
    for run in band.group.runs:
        if (trace := traces.get(run.run_id)) is None:
            continue
        lines.append(
            {
                "name": f"{band.group.label} · seed {run.seed}",
                "type": "line",
                "data": _points(band.places, on_axis(trace, band.places, look.smoothing), look.log),
                "symbol": "none",
                "lineStyle": {"color": colour, "width": 1, "opacity": 0.4},
                "tooltip": {"show": False},
                "silent": True,
                "z": 2,
            }
        )
    return lines


def _points(places: Numbers, values: Numbers, log: bool = False) -> list[list[float | None]]:
    """Return pairs with the digits that a screen can show; undrawable values become gaps."""
    return [[float(f"{place:.6g}"), _drawn(float(value), log)] for place, value in zip(places, values, strict=True)]


def _drawn(value: float, log: bool) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) and not (log and value <= 0) else None
