"""The charts of a sweep for ECharts: history, importance, parallel coordinates. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mosaic.contract.sweeps import Dimension, Summary, Trial, Value
from mosaic.web.curves import QUIET
from mosaic.web.layout import BLUE, ORANGE

# From bad to good, colour-blind safe, readable on white and on black.
SCALE = ("#CC79A7", "#E69F00", "#009E73")
TEXT = {"color": QUIET, "fontSize": 12}


def history(summary: Summary) -> dict[str, Any]:
    """Return the chart of each trial's value, with the best so far as steps."""
    complete = [trial for trial in summary.trials if trial.state == "complete" and trial.value is not None]
    pruned = [trial for trial in summary.trials if trial.state == "pruned" and trial.value is not None]
    best: list[list[float]] = []
    better = max if summary.direction == "maximize" else min
    for trial in complete:
        value = trial.value or 0.0
        best.append([trial.number, value if not best else better(best[-1][1], value)])
    return {
        **_frame(),
        "legend": {
            "data": ["completed", "pruned", "best so far"],
            "top": 0,
            "itemWidth": 14,
            "itemHeight": 10,
            "textStyle": TEXT,
        },
        "xAxis": _axis("trial", minInterval=1),
        "yAxis": _axis("", scale=True),
        "series": [
            _points("completed", complete, BLUE, "circle"),
            _points("pruned", pruned, QUIET, "diamond"),
            {
                "name": "best so far",
                "type": "line",
                "step": "end",
                "data": best,
                "symbol": "none",
                "lineStyle": {"color": ORANGE, "width": 2},
                "itemStyle": {"color": ORANGE},
            },
        ],
    }


def importance(summary: Summary) -> dict[str, Any]:
    """Return a bar for each parameter, the longest at the top."""
    shares = sorted(summary.importance.items(), key=lambda pair: pair[1])
    return {
        **_frame(top=8),
        "grid": {"left": 8, "right": 48, "top": 8, "bottom": 8, "containLabel": True},
        "xAxis": {"type": "value", "show": False, "min": 0},
        "yAxis": {
            "type": "category",
            "data": [name for name, _ in shares],
            "axisLabel": TEXT,
            "axisTick": {"show": False},
        },
        "tooltip": {"show": False},
        "series": [
            {
                "type": "bar",
                "barMaxWidth": 18,
                "itemStyle": {"color": BLUE},
                # Our own text: NiceGUI would run a formatter from elsewhere.
                "data": [
                    {"value": share, "label": {"show": True, "position": "right", "formatter": f"{share:.0%}", **TEXT}}
                    for _, share in shares
                ],
            }
        ],
    }


def parallel(summary: Summary) -> dict[str, Any]:
    """Return a line for each completed trial through its parameters to its value; good ones are green and on top."""
    complete = [trial for trial in summary.trials if trial.state == "complete" and trial.value is not None]
    sign = 1.0 if summary.direction == "maximize" else -1.0
    complete.sort(key=lambda trial: sign * (trial.value or 0.0))
    values = [trial.value or 0.0 for trial in complete]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    axes = [_parallel_axis(place, one) for place, one in enumerate(summary.space)]
    axes.append({"dim": len(axes), "name": "value", "type": "value", "scale": True})
    rows = [[*(_place(trial.params.get(one.name), one) for one in summary.space), trial.value] for trial in complete]
    return {
        "animation": False,
        "parallelAxis": axes,
        "parallel": {
            "left": 48,
            "right": 64,
            "top": 48,
            "bottom": 24,
            "parallelAxisDefault": {
                "nameTextStyle": TEXT,
                "axisLabel": TEXT,
                "axisLine": {"lineStyle": {"color": QUIET}},
                "axisTick": {"lineStyle": {"color": QUIET}},
                "realtime": False,
            },
        },
        "visualMap": {
            "show": False,
            "dimension": len(axes) - 1,
            "min": low,
            "max": high if high > low else low + 1.0,
            "inRange": {"color": list(SCALE if summary.direction == "maximize" else SCALE[::-1])},
        },
        "series": [{"type": "parallel", "lineStyle": {"width": 2, "opacity": 0.7}, "smooth": False, "data": rows}],
    }


def _parallel_axis(place: int, one: Dimension) -> dict[str, Any]:
    # Names alternate between two heights, so that long ones do not overlap.
    axis: dict[str, Any] = {"dim": place, "name": one.name, "nameGap": 12 if place % 2 else 26}
    if one.kind == "choice":
        return {**axis, "type": "category", "data": [str(choice) for choice in one.choices]}
    return {**axis, "type": "log" if one.log else "value", "min": one.low, "max": one.high}


def _place(value: Value, one: Dimension) -> str | float | None:
    if one.kind == "choice":
        return str(value)
    return float(value) if isinstance(value, int | float) else None


def _points(name: str, trials: Sequence[Trial], colour: str, symbol: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "scatter",
        "data": [[trial.number, float(f"{trial.value or 0.0:.6g}")] for trial in trials],
        "symbol": symbol,
        "symbolSize": 9,
        "itemStyle": {"color": colour},
    }


def _axis(name: str, **more: Any) -> dict[str, Any]:
    line = {"lineStyle": {"color": QUIET, "opacity": 0.22}}
    return {
        "type": "value", "name": name, "nameLocation": "middle", "nameGap": 26, "nameTextStyle": TEXT,
        "axisLabel": TEXT, "splitLine": line, **more,
    }  # fmt: skip


def _frame(top: int = 36) -> dict[str, Any]:
    return {
        "animation": False,
        "grid": {"left": 8, "right": 16, "top": top, "bottom": 24, "containLabel": True},
        "tooltip": {"trigger": "item", "confine": True},
    }
