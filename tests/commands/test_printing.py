"""How things are written for people and for programs."""

import json
import math
from pathlib import Path

import pytest

from mosaic.commands import printing


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    printing.print_json({"a": [math.nan, {"b": math.inf}], "c": -math.inf, "d": 1.5})
    text = capsys.readouterr().out
    assert json.loads(text) == {"a": ["NaN", {"b": "Infinity"}], "c": "-Infinity", "d": 1.5}


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1234, "1.2 kB"), (532341, "532 kB"), (4.25e6, "4.2 MB"), (2e12, "2000 GB")],
)
def test_sizes_read_well(count: float, text: str) -> None:
    assert printing.size(count) == text


@pytest.mark.parametrize(("age", "text"), [(3, "3 s ago"), (90, "2 min ago"), (7200, "2 h ago"), (864000, "10 d ago")])
def test_ages_are_in_one_unit(age: float, text: str) -> None:
    assert printing.ago(1000.0, 1000.0 + age) == text


def test_ulid_is_named_by_its_end_and_a_chosen_name_whole() -> None:
    assert printing.short_id("01JCV4M0Z1S2R4Q8E5W9T7Y6U3") == "W9T7Y6U3"
    assert printing.short_id("my-first-run") == "my-first-run"


def test_paths_below_the_current_folder_are_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert printing.shortest(tmp_path / "var/x") == "var/x" and printing.shortest("/etc/x") == "/etc/x"
