"""Curves: smoothing, what is drawn, growth by deltas, CSV."""

import csv
import io
import math

import numpy as np
import pytest

from mosaic.trainer.rpc.client import Series
from mosaic.web import curves
from mosaic.web.curves import Curve, CurveView


def series(values: list[float], *, key: str = "charts/x", first: int = 0, reset: bool = False) -> Series:
    steps = np.arange(first, first + len(values)) * 10
    return Series(key, steps, steps / 2 + 1000.0, np.array(values), first + len(values), reset, first + len(values))


def test_smoothing_has_no_bias_to_the_start_and_passes_over_what_is_no_number() -> None:
    assert curves.smoothed([5.0, 5.0, 5.0], 0.9) == pytest.approx([5.0, 5.0, 5.0])
    assert curves.smoothed([1.0, 2.0], 0.0) == [1.0, 2.0]
    first, missing, last = curves.smoothed([1.0, math.nan, 3.0], 0.5)
    assert first == 1.0 and math.isnan(missing) and last == pytest.approx(7 / 3)


def test_a_curve_grows_by_what_came_and_starts_over_after_a_resumption() -> None:
    curve = Curve.of(series([1.0, 2.0]))
    assert curve.grow(series([3.0], first=2)) == 2 and curve.values == [1.0, 2.0, 3.0] and curve.cursor == 3
    assert curve.grow(series([9.0], reset=True)) == 0 and curve.values == [9.0]
    assert curve.last == 9.0 and not curve.is_long


def test_points_are_drawn_over_steps_or_over_time_and_only_from_where_they_are_new() -> None:
    curve = Curve.of(series([1.0, 2.0, 4.0]))
    assert curves.points(curve, CurveView(), 1000.0) == [((0, 1.0), (10, 2.0), (20, 4.0))]
    assert curves.points(curve, CurveView(axis="time"), 1000.0, 2) == [((10.0, 4.0),)]
    raw, smooth = curves.points(curve, CurveView(smoothing=0.5), 0.0, 1)
    assert raw == ((10, 2.0), (20, 4.0)) and [x for x, _ in smooth] == [10, 20] and smooth[1][1] < 4.0


def test_what_cannot_be_drawn_is_a_gap() -> None:
    curve = Curve.of(series([math.nan, math.inf, -1.0, 1.0]))
    assert [y for _, y in curves.points(curve, CurveView(), 0.0)[0]] == [None, None, -1.0, 1.0]
    assert [y for _, y in curves.points(curve, CurveView(log=True), 0.0)[0]] == [None, None, None, 1.0]


def test_no_text_of_a_run_becomes_a_key_of_the_chart() -> None:
    hostile = ":</script>alert(1)"
    options = curves.chart_options(Curve.of(series([1.0], key=hostile)), CurveView(log=True, window=(10.0, 50.0)), 0.0)
    keys: list[str] = []

    def walk(value: object) -> None:
        if isinstance(value, dict):
            keys.extend(value)
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(options)
    assert hostile not in keys and hostile not in str(options)
    assert options["yAxis"]["type"] == "log" and options["dataZoom"][0]["end"] == 50.0


def test_returns_come_first_and_a_kind_has_one_colour() -> None:
    keys = ["losses/a", "zzz", "charts/SPS", "charts/episodic_return", "curriculum/stage"]
    assert (
        sorted(keys, key=curves.sort_key)[0] == "charts/episodic_return"
        and sorted(keys, key=curves.sort_key)[-1] == "zzz"
    )
    assert curves.colour_of("losses/a") == curves.colour_of("losses/b") != curves.colour_of("charts/a")


def test_csv_has_every_point_and_no_formula() -> None:
    text = "".join(curves.csv_text([series([1.5, math.nan]), series([2.0], key='=cmd("x"),1')]))
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[0] == ["metric", "step", "time", "value"]
    assert rows[1] == ["charts/x", "0", "1000.0", "1.5"] and rows[2][3] == "nan"
    assert rows[3][0] == '\'=cmd("x"),1' and len(rows) == 4
