"""The bar that shows where a run's time goes."""

import pytest

from cleanrl_worker.run.split import TAGS
from mosaic.web.pages.split_bar import PARTS, shares_of


def test_the_parts_are_those_that_runs_tell():
    assert tuple(PARTS) == TAGS


def test_shares_add_up_to_one_whatever_was_rounded_away():
    shares = shares_of({"perf/env": 0.333, "perf/inference": 0.333, "perf/update": 0.333, "charts/SPS": 900.0})
    assert sum(shares.values()) == pytest.approx(1.0) and shares["perf/other"] == 0.0


@pytest.mark.parametrize("values", [{}, {"charts/SPS": 5.0}, dict.fromkeys(TAGS, 0.0)])
def test_a_run_that_has_told_nothing_shows_nothing(values):
    assert shares_of(values) == {}
