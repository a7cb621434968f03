"""mosaic.stats: what is said about a handful of seeds."""

import numpy as np
import pytest

from mosaic.stats import (
    bootstrap_band,
    bootstrap_interval,
    importance,
    improvement_interval,
    iqm,
    probability_of_improvement,
    verdict,
)


def test_iqm_ignores_the_best_and_the_worst_quarter() -> None:
    assert iqm([0, 10, 11, 12, 1000]) == 11
    assert iqm([0, 0, 1, 2, 3, 4, 900, 1000]) == 2.5


def test_iqm_of_fewer_than_four_scores_is_their_mean() -> None:
    assert iqm([1, 2, 6]) == 3
    assert iqm([7]) == 7


def test_iqm_does_not_depend_on_the_order_and_leaves_its_input_alone() -> None:
    scores = np.array([5.0, 1.0, 3.0, 2.0, 4.0])
    assert iqm(scores) == iqm(scores[::-1]) == 3
    assert scores.tolist() == [5, 1, 3, 2, 4]


def test_interval_holds_the_statistic_and_repeats_exactly() -> None:
    scores = [[480.0, 490, 495, 500, 470]]
    low, high = bootstrap_interval(scores)
    assert low <= iqm(scores[0]) <= high
    assert (low, high) == bootstrap_interval(scores)
    assert 470 <= low < high <= 500


def test_interval_of_equal_scores_is_a_point() -> None:
    assert bootstrap_interval([[500.0] * 5]) == (500, 500)


def test_interval_covers_the_true_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        low, high = bootstrap_interval([rng.normal(3, 1, 30)], lambda row: float(row.mean()), 0.9, 300, seed=trial)
        covered += low <= 3 <= high
    assert 160 <= covered <= 196


def test_strata_are_drawn_apart_so_the_gap_between_tasks_adds_no_spread() -> None:
    tasks = [[0.0, 0.0, 0.0], [1000.0, 1000.0, 1000.0]]
    assert bootstrap_interval(tasks, lambda row: float(row.mean())) == (500, 500)


def test_tasks_may_have_different_numbers_of_seeds() -> None:
    low, high = bootstrap_interval([[1.0, 2.0], [3.0, 4.0, 5.0]], samples=200)
    assert 1 <= low <= high <= 5


def test_wider_confidence_gives_a_wider_interval() -> None:
    scores = [np.arange(20.0)]
    narrow, wide = bootstrap_interval(scores, confidence=0.5), bootstrap_interval(scores, confidence=0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([[2.0, 3.0]], [[0.0, 1.0]], 1.0),
        ([[1.0]], [[1.0]], 0.5),
        ([[2.0], [0.0]], [[1.0], [1.0]], 0.5),
        ([[0.0, 2.0]], [[1.0, 1.0, 1.0]], 0.5),
    ],
)
def test_probability_of_improvement_counts_pairs_per_task(
    ours: list[list[float]], theirs: list[list[float]], expected: float
) -> None:
    assert probability_of_improvement(ours, theirs) == expected


@pytest.mark.parametrize("scores", [[], [[1.0, 2.0]], 3.0])
def test_what_is_no_list_of_numbers_is_refused(scores: object) -> None:
    with pytest.raises(ValueError, match="at least one number"):
        iqm(scores)  # type: ignore[arg-type]


def test_empty_or_unequal_tasks_and_bad_confidence_are_refused() -> None:
    with pytest.raises(ValueError, match="no task"):
        bootstrap_interval([])
    with pytest.raises(ValueError, match="between 0 and 1"):
        bootstrap_interval([[1.0]], confidence=95)
    with pytest.raises(ValueError, match="same tasks"):
        probability_of_improvement([[1.0]], [])


def test_a_band_is_at_each_point_what_the_interval_says_there() -> None:
    rng = np.random.default_rng(3)
    curves = rng.normal(size=(8, 200)).cumsum(axis=1)
    middle, low, high = bootstrap_band([curves], samples=4000)
    for point in (0, 70, 199):
        assert middle[point] == pytest.approx(iqm(curves[:, point]))
        expected = bootstrap_interval([curves[:, point]], samples=4000)
        spread = np.ptp(curves[:, point])
        assert low[point] == pytest.approx(expected[0], abs=0.08 * spread)
        assert high[point] == pytest.approx(expected[1], abs=0.08 * spread)
    assert (low <= middle).all() and (middle <= high).all()


def test_a_band_counts_the_runs_that_have_a_value_and_repeats_exactly() -> None:
    nan = np.nan
    curves = [[1.0, 2.0, 3.0, nan], [3.0, 4.0, nan, nan]]
    middle, low, high = bootstrap_band([curves], "mean")
    assert middle.tolist()[:3] == [2.0, 3.0, 3.0] and np.isnan([middle[3], low[3], high[3]]).all()
    assert (low[0], high[0]) == (1.0, 3.0) and (low[2], high[2]) == (3.0, 3.0)
    assert np.array_equal(np.array([middle, low, high]), np.array(bootstrap_band([curves], "mean")), equal_nan=True)


def test_a_band_draws_tasks_apart() -> None:
    middle, low, high = bootstrap_band([[[0.0], [0.0]], [[100.0], [100.0]]], "mean")
    assert middle.tolist() == low.tolist() == high.tolist() == [50.0]


def test_a_band_of_nothing_or_of_an_unknown_statistic_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one task"):
        bootstrap_band([])
    with pytest.raises(ValueError, match="as many points"):
        bootstrap_band([[[1.0]], [[1.0, 2.0]]])
    with pytest.raises(ValueError, match="mean, iqm"):
        bootstrap_band([[[1.0]]], "median")
    with pytest.raises(ValueError, match="between 0 and 1"):
        bootstrap_band([[[1.0]]], confidence=2)


def test_the_interval_of_an_improvement_holds_it() -> None:
    ours, theirs = [[3.0, 5.0, 4.0, 2.5]], [[1.0, 2.0, 3.5, 2.0]]
    low, high = improvement_interval(ours, theirs)
    assert 0 <= low <= probability_of_improvement(ours, theirs) <= high <= 1 and low < high
    assert improvement_interval([[2.0, 3.0]], [[0.0, 1.0]]) == (1.0, 1.0)
    with pytest.raises(ValueError, match="same tasks"):
        improvement_interval(ours, [])


def test_importance_finds_the_parameter_that_moves_the_values() -> None:
    rng = np.random.default_rng(0)
    rate, noise = rng.uniform(0, 1, 60), rng.uniform(0, 1, 60)
    kind = rng.choice(["a", "b"], 60)
    values = 10 * rate + 2 * (kind == "a") + rng.normal(0, 0.5, 60)
    found = importance({"noise": noise.tolist(), "kind": kind.tolist(), "rate": rate.tolist()}, values)
    assert next(iter(found)) == "rate" and found["rate"] > 0.6 and found["noise"] < 0.1
    assert all(0 <= share <= 1 for share in found.values())


def test_importance_says_nothing_where_there_is_nothing_to_say() -> None:
    assert importance({"a": [1, 2, 3]}, [1.0, 2.0, 3.0]) == {}
    assert importance({"a": [1, 2, 3, 4]}, [1.0] * 4) == {}
    assert importance({"a": [1, 1, 1, 1]}, [1.0, 2.0, 3.0, 4.0]) == {"a": 0.0}


def test_a_published_mean_is_reached_not_reached_or_undecided() -> None:
    assert verdict([490.0, 495.0, 500.0], 500.0, 10.0) == "reached"
    assert verdict([300.0, 310.0, 320.0], 500.0, 10.0) == "not reached"
    assert verdict([300.0, 400.0, 700.0], 500.0, 10.0) == "undecided"


def test_a_wider_spread_never_makes_a_goal_easier_to_reach() -> None:
    assert verdict([440.0, 441.0, 442.0], 500.0, 10.0) == "not reached"
    assert verdict([240.0, 441.0, 642.0], 500.0, 10.0) == "undecided"


def test_the_margin_is_the_published_spread_or_five_percent() -> None:
    ours = [96.0, 96.0, 96.0]
    assert verdict(ours, 100.0) == "reached" and verdict(ours, 100.0, 1.0) == "not reached"
    assert verdict([-104.0] * 3, -100.0) == "reached"
    assert verdict([-106.0] * 3, -100.0) == "not reached"
    assert verdict([-200.0] * 3, -200.0, 0.0) == "reached"


def test_one_seed_decides_nothing() -> None:
    assert verdict([1000.0], 10.0) == "undecided"
