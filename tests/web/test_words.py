"""Numbers and times as people read them."""

import pytest

from mosaic.web import words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (90, "2 min"), (3600, "1 h"), (7500, "2 h 5 min"), (90_000, "1 day"), (None, "–")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


def test_ages_and_moments_of_what_never_happened_are_dashes() -> None:
    assert words.age(0.0) == words.moment(0.0) == "–"
    assert words.age(100.0, now=160.0) == "1 min ago" and words.age(100.0, now=90.0) == "0 s ago"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (1234567, "1,234,567"), (21.456, "21.46"), (3.21e-5, "3.21e-05"), (float("nan"), "NaN"),
     (float("-inf"), "−∞"), (12345.6, "12,346"), (500.0, "500")],
)  # fmt: skip
def test_numbers(value: float | None, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("count", "text"), [(512, "512 B"), (3400, "3.4 kB"), (123_000_000, "123 MB"), (2e13, "20.0 TB")]
)
def test_sizes(count: float, text: str) -> None:
    assert words.size(count) == text


def test_ids_that_people_chose_stay_whole() -> None:
    assert words.short_id("01M7GGGYGNVE7938CG8DPQY71D") == "…8DPQY71D"
    assert words.short_id("my-run") == "my-run"
