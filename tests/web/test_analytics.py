"""What Compare says of several runs, without a page."""

import csv
import io
from typing import Any

import numpy as np
import pytest

from mosaic.contract.errors import ConfigError, RunIdError
from mosaic.trainer.rpc.client import Run, Series, State
from mosaic.web import analytics


def run(run_id: str, **more: Any) -> Run:
    told = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "started_at": 1000.0, "ended_at": 4600.0, **more}
    return Run(run_id, State.COMPLETED, **told)


def series(steps: list[int], values: list[float], highest: float | None = None) -> Series:
    times = np.array(steps, float) * 36 + 1000
    return Series("x", np.array(steps, np.int64), times, np.array(values), 0, False, len(steps), highest)


def trace(one: Run, steps: list[int], values: list[float], axis: str = "step") -> analytics.Trace:
    return analytics.trace_of(one, series(steps, values), axis)


def given(**params: Any) -> dict[str, Any]:
    return {"metadata": {"worker": {"config": {"total_timesteps": 100, "extras": {"algo_params": params}}}}}


def test_groups_of_one_name_are_told_apart_by_what_they_differ_in() -> None:
    fast, slow = given(learning_rate=0.1, gamma=0.9), given(gamma=0.9)
    labels = [one.label for one in analytics.grouped([run("a", payload=fast), run("b", payload=slow)])]
    assert labels == [
        "ppo CartPole-v1 · seed 1 · learning_rate=0.1",
        "ppo CartPole-v1 · seed 1 · learning_rate default",
    ]
    same = [one.label for one in analytics.grouped([run("a", payload=slow), run("b", payload=slow)])]
    assert same == ["ppo CartPole-v1 · seed 1 (1)", "ppo CartPole-v1 · seed 1 (2)"]


def test_seeds_of_one_configuration_are_a_group_and_others_stand_alone() -> None:
    runs = [run("a", group="#1"), run("b", group="#2"), run("c", group="#1", seed=2), run("d"), run("e")]
    groups = analytics.grouped(runs)
    assert [[one.run_id for one in group.runs] for group in groups] == [["a", "c"], ["b"], ["d"], ["e"]]
    assert groups[0].label == "ppo CartPole-v1 × 2"
    assert [group.label for group in groups[1:]] == [f"ppo CartPole-v1 · seed 1 ({n})" for n in (1, 2, 3)]
    assert analytics.grouped([run("a", group="night"), run("b", group="night")])[0].label == "night × 2"
    assert len(analytics.alone(runs)) == 5


def test_parts_of_a_benchmark_are_called_by_what_they_are_first() -> None:
    (one,) = analytics.grouped([run(f"a{n}", group="benchmark:night/ppo ALE/Pong-v5", seed=n) for n in (1, 2)])
    assert one.label == "ppo ALE/Pong-v5 (night) × 2"


def test_group_of_an_address_has_each_seed_once_and_as_it_ended_best() -> None:
    failed = Run("a", State.FAILED, seed=1, group="g/x", created_at=1.0)
    runs = [run("c", group="g/y", created_at=3.0), run("b", group="g/x", created_at=2.0), failed]
    assert analytics.of_group(runs, "g") == ["b", "c"]
    with pytest.raises(ConfigError, match="&env="):
        analytics.of_group([run(f"r{n}", group="g", seed=n) for n in range(100)], "g")


def test_run_ids_of_an_address_are_checked_and_counted() -> None:
    assert analytics.run_ids_of(" a,b,,a ") == ["a", "b"]
    with pytest.raises(RunIdError):
        analytics.run_ids_of("a,../b")
    with pytest.raises(ConfigError, match="too many"):
        analytics.run_ids_of(",".join(f"r{n}" for n in range(100)))


def test_a_curve_on_the_common_axis_averages_fills_gaps_and_ends_where_it_ends() -> None:
    axis = np.linspace(0, 10, 11)
    one = trace(run("a"), [1, 1, 3, 6], [2.0, 4.0, 5.0, 8.0])
    found = analytics.on_axis(one, axis)
    assert found[1:7].tolist() == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert np.isnan(found[[0, 7, 8, 9, 10]]).all()
    empty = analytics.on_axis(trace(run("a"), [1], [float("nan")]), axis)
    assert np.isnan(empty).all()


def test_the_axis_spans_all_runs_by_step_or_by_hours() -> None:
    first, second = trace(run("a"), [0, 100], [0.0, 1.0]), trace(run("b"), [50, 200], [0.0, 1.0])
    axis = analytics.common_axis([first, second], 3)
    assert axis.tolist() == [0.0, 100.0, 200.0]
    assert trace(run("a"), [0, 100], [0.0, 1.0], "time").places.tolist() == [0.0, 1.0]
    assert len(analytics.common_axis([])) == 0


def test_smoothing_is_unbiased_at_the_start_and_leaves_gaps() -> None:
    values = np.array([np.nan, 10.0, 10.0, 0.0])
    found = analytics.smoothed(values, 0.5)
    assert np.isnan(found[0]) and found[1] == found[2] == 10.0 and 0 < found[3] < 10


def test_a_band_holds_the_mean_and_the_iqm_of_the_seeds_that_go_so_far() -> None:
    runs = [run(name, group="#1", seed=n) for n, name in enumerate("abcd")]
    traces = {one.run_id: trace(one, [0, 10], [float(n), float(n) * 10]) for n, one in enumerate(runs)}
    traces["d"] = trace(runs[3], [0, 5], [3.0, 3.0])
    axis = analytics.common_axis(traces.values(), 11)
    (group,) = analytics.grouped(runs)
    band = analytics.band_of(group, traces, axis)
    assert band is not None
    assert band.mean[0] == 1.5 and band.iqm[0] == 1.5 and band.mean[-1] == 10.0
    assert (band.seeds[0], band.seeds[-1]) == (4, 3)
    middle, low, high = band.line("iqm")
    assert (low <= middle).all() and (middle <= high).all() and high[0] > low[0]
    assert analytics.band_of(group, {}, axis) is None


def test_headlines_hold_return_best_speed_and_hours() -> None:
    one = run("a", mean_return=90.0, last_return=100.0, sps=1000.0)
    other = run("b", seed=2, mean_return=70.0, last_return=20.0)
    rows = [analytics.headline(one, 120.0), analytics.headline(other, None)]
    assert rows[0] == analytics.Headline("ppo CartPole-v1 · seed 1", 1, 90.0, 120.0, 1000.0, 1.0)
    both = analytics.group_headline(analytics.Group("#", "both", (one, other)), rows)
    assert (both.runs, both.final, both.best, both.sps, both.hours) == (2, 80.0, 120.0, 1000.0, 1.0)
    assert analytics.hours(run("c", ended_at=0.0), now=8200.0) == 2.0
    assert analytics.hours(run("c", started_at=0.0)) is None


def test_improvement_compares_groups_on_the_environments_of_both() -> None:
    good = analytics.Group("g", "good", tuple(run(f"g{n}", mean_return=100.0 + n) for n in range(3)))
    bad = analytics.Group("b", "bad", tuple(run(f"b{n}", mean_return=50.0 + n) for n in range(3)))
    found = analytics.improvement(good, bad)
    assert (found.probability, found.low, found.high) == (1.0, 1.0, 1.0)
    assert analytics.improvement(bad, good).probability == 0.0
    elsewhere = analytics.Group("e", "elsewhere", (run("e", env_id="Acrobot-v1", mean_return=1.0),))
    with pytest.raises(ConfigError, match="no environment in common"):
        analytics.improvement(good, elsewhere)


def test_numbers_read_back_from_csv_and_formulas_are_made_harmless() -> None:
    runs = [run("a", group="=HYPERLINK(1)", seed=1), run("b", group="=HYPERLINK(1)", seed=2)]
    traces = {one.run_id: trace(one, [0, 10], [0.1, 0.2]) for one in runs}
    (group,) = analytics.grouped(runs)
    band = analytics.band_of(group, traces, analytics.common_axis(traces.values(), 2))
    assert band is not None
    rows = list(csv.DictReader(io.StringIO(analytics.curves_csv("return", "step", [band], traces))))
    assert [row["kind"] for row in rows] == ["group"] * 2 + ["run"] * 4
    assert float(rows[0]["mean"]) == 0.1 and rows[0]["seeds"] == "2" and rows[2]["value"] == "0.1"
    assert rows[0]["group"].startswith("'=")
    table = list(csv.DictReader(io.StringIO(analytics.headlines_csv([("a", analytics.headline(runs[0]))]))))
    assert table[0]["hours"] == "1.0" and table[0]["return"] == ""


def test_a_run_alone_is_its_own_band() -> None:
    one = run("a")
    traces = {"a": trace(one, [0, 10], [1.0, 3.0])}
    band = analytics.band_of(analytics.alone([one])[0], traces, analytics.common_axis(traces.values(), 3))
    assert band is not None and band.iqm.tolist() == band.mean_low.tolist() == [1.0, 2.0, 3.0]


def payload(version: str = "1.0", **params: Any) -> dict[str, Any]:
    config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "extras": {"algo_params": params, "notes": "mine"}}
    return {"metadata": {"worker": {"config": config}, "ui": {"version": version}}}


def test_runs_of_one_seed_count_once_and_the_label_shows_it() -> None:
    runs = [run(f"r{n}", group="#1", payload=payload(), mean_return=float(n), created_at=float(n)) for n in (1, 2, 3)]
    (group,) = analytics.grouped(runs)
    assert group.label == "ppo CartPole-v1 × 1 (3 runs, 1 seed counted)" and group.counted == (runs[2],)
    traces = {one.run_id: trace(one, [0, 10], [float(place)] * 2) for place, one in enumerate(runs)}
    band = analytics.band_of(group, traces, np.array([0.0, 10.0]))
    assert band is not None and band.seeds.tolist() == [1, 1] and band.mean.tolist() == [2.0, 2.0]
    other = analytics.Group("o", "other", (run("o", group="#2", payload=payload(gamma=0.5), mean_return=2.5),))
    assert analytics.improvement(group, other).probability == 1.0  # by the newest alone


def test_runs_of_another_seed_parameter_or_version_count_apart() -> None:
    made = [payload(), payload(gamma=0.9), payload("1.1")]
    runs = [run(f"r{n}", group="g", payload=one) for n, one in enumerate(made)]
    runs += [run("s", group="g", seed=2, payload=payload()), run("t", group="g"), run("u", group="g")]
    (group,) = analytics.grouped(runs)
    assert len(group.counted) == 6 and group.label == "g × 6"
