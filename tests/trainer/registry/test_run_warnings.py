"""Warnings of a run: each and all within a cap, one for each kind of trouble that repeats itself."""

from mosaic.contract.fields import WARNING_BYTES, WARNINGS_BYTES
from mosaic.contract.lines import ROW_DROPPED
from mosaic.trainer.registry.run_warnings import ONCE, added, bounded, cut


def size(texts: list[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def test_a_warning_is_cut_at_its_cap_with_its_length() -> None:
    assert cut("short") == "short"
    for letter in "xé\ud800":
        found = cut(letter * 20_000_000)
        assert len(found.encode()) <= WARNING_BYTES and found.endswith("bytes)")
    assert "20,000,000 bytes" in cut("x" * 20_000_000)


def test_all_warnings_of_a_run_stay_within_their_cap_and_the_last_reports_missing_ones() -> None:
    kept: list[str] = []
    for number in range(100):
        kept = added(kept, [f"{number} " + "x" * 20_000])
    assert size(kept) <= WARNINGS_BYTES and len(kept) > 10
    assert kept[-1].startswith("further warnings were dropped") and added(kept, ["y" * 5000]) == kept


def test_an_equal_warning_and_a_second_one_of_a_repeated_kind_are_not_added() -> None:
    kept = added([], ["a", "a", "", f"{ROW_DROPPED}: one"])
    assert added(kept, ["a", f"{ROW_DROPPED}: two"]) == kept == ["a", f"{ROW_DROPPED}: one"]


def test_what_was_dropped_is_warned_of_even_where_a_run_has_warned_too_much() -> None:
    kept: list[str] = []
    for number in range(100):
        kept = added(kept, [f"{number} " + "x" * 20_000])
    kept = added(kept, [f"{start}: " + "y" * 20_000 for start in ONCE])
    assert [text.partition(":")[0] for text in kept[-len(ONCE) :]] == list(ONCE) and size(kept) <= WARNINGS_BYTES


def test_of_too_many_kept_warnings_the_newest_are_shown() -> None:
    found = bounded(["x" * 20_000_000, *(f"{n} " + "y" * 3000 for n in range(40))], 10_000)
    assert [text.partition(" ")[0] for text in found] == ["37", "38", "39"]
