"""Sweeps: the values of a parameter that varies."""

from __future__ import annotations

import pytest

from mosaic.contract.sweeps import Dimension


def test_last_value_of_a_parameter_in_steps_is_its_end() -> None:
    tenths = Dimension(name="tau", kind="float", high=1.0, step=0.1)
    assert [tenths.at(share) for share in (0, 0.3, 0.5, 1)] == [0.0, 0.3, 0.5, 1.0]  # in floats 1 // 0.1 is 9
    assert tenths.values(11) == tuple(count / 10 for count in range(11)) and tenths.values(10) is None


def test_steps_that_miss_the_end_stay_below_it() -> None:
    assert Dimension(name="clip", kind="float", low=0.1, high=0.45, step=0.1).values(9) == (0.1, 0.2, 0.3, 0.4)
    thirds = Dimension(name="num_steps", kind="int", low=1, high=9, step=3)
    assert thirds.values(9) == (1, 4, 7) and thirds.at(1) == 7 and isinstance(thirds.at(1), int)


def test_whole_numbers_and_choices_are_listed_and_others_are_not() -> None:
    assert Dimension(name="n", kind="int", low=1, high=5, log=True).values(5) == (1, 2, 3, 4, 5)
    assert Dimension(name="n", kind="int", low=1, high=10**30).values(5) is None
    assert Dimension(name="n", kind="choice", choices=("a", "b")).values(2) == ("a", "b")
    assert Dimension(name="n", kind="choice", choices=("a", "b")).values(1) is None
    assert Dimension(name="rate", kind="float", low=0.1, high=0.2).values(99) is None


@pytest.mark.parametrize(("low", "high"), [(1e-5, 1e-2), (0.099, 0.102), (0.049, 0.802)])
def test_factors_lead_from_one_end_to_the_other_and_not_beyond(low: float, high: float) -> None:
    one = Dimension(name="rate", kind="float", low=low, high=high, log=True)
    assert one.at(0) == low and one.at(1) == pytest.approx(high) and one.at(1) <= high
