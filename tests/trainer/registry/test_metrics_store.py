"""Curves in the registry: packed parts, digests, take-backs, cursors; against a plain list."""

import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mosaic.trainer.registry import metrics_store
from mosaic.trainer.registry.database import Database


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    database = Database(tmp_path / "m.db")
    yield database._writer
    database.close()


def row(step: int, **values: float) -> dict[str, Any]:
    return {"step": step, "time": step / 2, **values}


def curve(connection: sqlite3.Connection, key: str = "x", **options: Any) -> Any:
    (found,) = metrics_store.read_series(connection, 1, 0, keys=[key], **options)
    return found


ACTIONS = st.lists(
    st.tuples(st.just("add"), st.integers(1, 3000)) | st.tuples(st.just("back"), st.integers(0, 6000)), max_size=12
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(actions=ACTIONS)
def test_it_holds_what_a_plain_list_would(tmp_path: Path, actions: list[tuple[str, int]]) -> None:
    database = Database(tmp_path / f"{abs(hash(str(actions)))}.db")
    expected: list[int] = []
    try:
        for action, number in actions:
            if action == "add":
                first = expected[-1] + 1 if expected else 0
                rows = [row(step, x=float(step) * 2) for step in range(first, first + number)]
                expected += range(first, first + number)
            else:
                rows = [{"resumed_from": number}]
                expected = [step for step in expected if step <= number]
            with database.write() as connection:
                metrics_store.append_rows(connection, 1, rows)
        with database.read() as connection:
            found = metrics_store.read_series(connection, 1, 0)
            steps = found[0].steps.tolist() if found else []
            assert steps == expected and (not found or found[0].values.tolist() == [2.0 * step for step in expected])
            assert metrics_store.last_values(connection, 1) == ({"x": 2.0 * expected[-1]} if expected else {})
            for skip in {0, len(expected) // 3, len(expected)}:
                for series in metrics_store.read_series(connection, 1, 0, since={"x": skip}):
                    assert series.steps.tolist() == expected[skip:] and not series.reset
    finally:
        database.close()


def test_points_one_by_one_make_few_parts(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    for step in range(5000):
        metrics_store.append_rows(connection, 1, [row(step, x=1.0)])
    counts = [found[0] for found in connection.execute("SELECT count FROM points ORDER BY part")]
    assert sum(counts) == 5000 and max(counts) <= metrics_store.POINTS_PER_PART
    assert len(counts) <= 1 + 12 + 12, counts


def test_a_long_curve_is_downsampled_from_extremes_that_are_its_own(connection: sqlite3.Connection) -> None:
    values = np.sin(np.arange(200_000) / 500.0)
    values[123_456], values[77_777], values[5] = 50.0, -50.0, np.nan
    rows = [row(step, x=value) for step, value in enumerate(values.tolist())]
    metrics_store.append_rows(connection, 1, rows)
    small = curve(connection, max_points=500)
    assert len(small) <= 500 and small.total == 200_000
    assert np.nanmax(small.values) == 50.0 and np.nanmin(small.values) == -50.0, "peaks are never lost"
    assert (small.steps[0], small.steps[-1]) == (0, 199_999)
    assert (np.diff(small.steps) > 0).all()
    for step, time, value in zip(small.steps, small.times, small.values, strict=True):
        assert time == step / 2 and (value == values[step] or math.isnan(value))


@pytest.mark.parametrize("max_points", [1, 2, 3, 4, 5, 100, 4999, 5000, 6000])
def test_any_number_of_points_can_be_asked_for(connection: sqlite3.Connection, max_points: int) -> None:
    metrics_store.append_rows(connection, 1, [row(step, x=float(step % 7)) for step in range(5000)])
    assert 0 < len(curve(connection, max_points=max_points)) <= max_points


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_curves_of_nothing_but_odd_numbers_are_downsampled_too(connection: sqlite3.Connection, value: float) -> None:
    metrics_store.append_rows(connection, 1, [row(step, x=value) for step in range(60_000)])
    assert 0 < len(curve(connection, max_points=300)) <= 300


def test_a_cursor_of_another_epoch_or_of_more_points_starts_over(connection: sqlite3.Connection) -> None:
    metrics_store.append_rows(connection, 1, [row(step, x=1.0) for step in range(10)])
    cursor = curve(connection).cursor
    (after,) = metrics_store.read_series(connection, 1, 1, since={"x": cursor})
    assert after.reset and len(after) == 10
    assert curve(connection, since={"x": cursor + 5}).reset


def test_runs_do_not_see_each_other(connection: sqlite3.Connection) -> None:
    metrics_store.append_rows(connection, 1, [row(1, x=1.0)])
    metrics_store.append_rows(connection, 2, [row(1, x=2.0), {"resumed_from": 0}])
    assert curve(connection).values.tolist() == [1.0]
    metrics_store.forget(connection, 1)
    assert metrics_store.read_series(connection, 1, 0) == []


def test_gaps_between_growths_of_the_step_are_those_of_the_newest_rows(connection: sqlite3.Connection) -> None:
    assert metrics_store.step_gaps(connection, 1, 20) == []
    times = [(1, 0.0), (1, 1.0), (2, 5.0), (2, 6.0), (3, 7.0), (5, 17.0)]
    metrics_store.append_rows(connection, 1, [{"step": step, "time": at, "x": 1.0} for step, at in times])
    assert metrics_store.step_gaps(connection, 1, 20) == [2.0, 10.0]  # step 1 may have begun before its first row
    assert metrics_store.step_gaps(connection, 1, 1) == [10.0]
    metrics_store.append_rows(connection, 1, [row(step, x=1.0) for step in range(10, 10_000)])
    assert metrics_store.step_gaps(connection, 1, 20) == [0.5] * 20
