"""Limits of parameters: what they take, and how they say no."""

from __future__ import annotations

import math

import pytest

from mosaic.contract.limits import Limits, number_of

OTHERS = {"num_envs": 4, "num_steps": 8, "one": 1, "unknown": None}


@pytest.mark.parametrize(
    ("limits", "value", "why"),
    [
        (Limits(1), 1, None),
        (Limits(1), 0, "1 or more is needed, not 0"),
        (Limits(0), math.inf, None),
        (Limits(0), math.nan, "0 or more is needed, not nan"),
        (Limits(0, 1), 1.0, None),
        (Limits(0, 1), 1.5, "a number between 0 and 1 is needed, not 1.5"),
        (Limits(1, "num_envs * num_steps"), 32, None),
        (Limits(1, "num_envs * num_steps"), 33, "a number between 1 and 32 (num_envs * num_steps) is needed, not 33"),
        (Limits(1, "num_envs * unknown"), 33, None),
        (Limits(1, "num_envs * unknown"), 0, "1 or more is needed, not 0"),
        (Limits("8 * num_envs"), 32, None),
        (Limits("8 * num_envs"), 31, "32 (8 * num_envs) or more is needed, not 31"),
        (Limits(above=0), 0.1, None),
        (Limits(above=0), 0, "more than 0 is needed, not 0"),
        (Limits(most=1e38, above="num_envs"), 4, "more than 4 (num_envs) is needed, not 4"),
        (Limits(most=1e38, above="num_envs"), math.inf, "1e+38 or less is needed, not inf"),
        (Limits(0, below="num_steps"), 7, None),
        (Limits(0, below="num_steps"), 8, "less than 8 (num_steps) is needed, not 8"),
        (Limits(0, below="unknown"), 8, None),
        (Limits(1, "num_steps", divides="num_steps"), 4, None),
        (Limits(1, "num_steps", divides="num_steps"), 3, "a divisor of 8 (num_steps) is needed, not 3"),
        (Limits(1, "num_steps", divides="num_steps"), 9, "a number between 1 and 8 (num_steps) is needed, not 9"),
        (Limits(1, "one"), 4, "a number between 1 and 1 (one) is needed, not 4"),
        (Limits(0, 0), 0, None),
        (Limits(0, 0), 7, "the run computes it from other parameters; leave it out (given: 7)"),
    ],
)
def test_a_value_is_taken_or_refused_with_what_is_allowed(limits: Limits, value: float, why: str | None) -> None:
    assert limits.refusal(value, OTHERS.__getitem__) == why


@pytest.mark.parametrize(
    ("bound", "number"),
    [
        *((None, None), (0.5, 0.5), ("num_envs", 4), ("8 * num_envs", 32), ("num_envs*2* num_steps", 64)),
        *(("3", 3), ("2 * unknown", None)),
    ],
)
def test_a_bound_is_a_number_a_parameter_or_a_product(bound: float | str | None, number: float | None) -> None:
    assert number_of(bound, OTHERS.__getitem__) == number
