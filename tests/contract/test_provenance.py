"""provenance.json at its border: what is refused, how attempts are kept, what people and comparisons see."""

import json
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract.fields import ATTEMPTS, PROVENANCE_BYTES
from mosaic.contract.kinds import FieldError
from mosaic.contract.paths import RunPaths
from mosaic.contract.provenance import add_attempt, copy_script, differences, facts, read_provenance

GIT = {"root": "/r", "commit": "a" * 40, "dirty": True, "diff": "d" * 64, "cut": False}


def entry(**more: Any) -> dict[str, Any]:
    return {"started_at": 1.0, "command": ["python", "-m", "x"], "config": {"seed": 1}, **more}


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths("run-1", tmp_path)
    found.create()
    return found


def test_a_run_without_the_file_has_none(paths: RunPaths) -> None:
    assert read_provenance(paths) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "a JSON object is needed"),
        ('{"format": 1}', "attempts: missing"),
        ('{"format": 1, "attempts": []}', "one or more"),
        ('{"format": 2, "attempts": [{"started_at": 1}]}', "newer than 1"),
        ('{"format": 1, "attempts": [{"started_at": 1, "command": "x"}]}', "command: a list"),
        ('{"format": 1, "attempts": [{"started_at": 1, "config": {"seed": -1}}]}', "seed: a whole number"),
        ('{"format": 1, "attempts": [{"started_at": 1, "machine": {"gpus": [7]}}]}', "gpus[0]: a text"),
        (" " * (PROVENANCE_BYTES + 1), "at most 16,777,216"),
    ],
)
def test_a_file_beyond_its_border_is_refused_with_one_line(paths: RunPaths, text: str, words: str) -> None:
    paths.provenance.write_text(text)
    with pytest.raises(FieldError) as refused:
        read_provenance(paths)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_attempts_are_appended_and_changes_kept_once(paths: RunPaths) -> None:
    for number in (1, 2):
        part = {"module": "mosaic", "git": GIT}
        assert add_attempt(paths, entry(mosaic=part, started_at=float(number)), {"d" * 64: "+x"}) == ""
    found = read_provenance(paths)
    assert found is not None
    assert [one["started_at"] for one in found["attempts"]] == [1.0, 2.0] and found["diffs"] == {"d" * 64: "+x"}


def test_of_many_attempts_the_first_and_the_newest_stay(paths: RunPaths) -> None:
    attempts = [entry(started_at=float(number)) for number in range(ATTEMPTS)]
    paths.provenance.write_text(json.dumps({"format": 1, "attempts": attempts, "diffs": {}}))
    add_attempt(paths, entry(started_at=1000.0), {})
    found = read_provenance(paths)
    assert found is not None and len(found["attempts"]) == ATTEMPTS
    assert [found["attempts"][place]["started_at"] for place in (0, 1, -1)] == [0.0, 2.0, 1000.0]


def test_a_script_is_copied_unless_no_person_could_have_written_it(paths: RunPaths, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    about = copy_script(script, paths)
    assert (paths.folder / about["copy"]).read_text() == "print(1)\n" and len(about["sha256"]) == 64
    script.write_text("x = 1\n" * 200_000)
    assert copy_script(script, paths) == {"path": str(script)}


def test_facts_name_commit_changes_and_main_packages() -> None:
    machine = {"host": "h", "cpu": "C", "cores": 2, "gpus": ["H200"], "driver": "570"}
    one = entry(mosaic={"module": "mosaic", "version": "0.1", "git": GIT}, packages={"torch": "2", "zzz": "1"})
    lines = dict(facts({"attempts": [entry(), one | {"machine": machine}]}))
    assert lines["mosaic"] == "mosaic · 0.1 · commit aaaaaaaaaaaa (changed, diff dddddddddddd)"
    assert lines["packages"] == "torch 2, 1 more" and lines["machine"] == "h · C × 2 · H200 · driver 570"
    assert lines["attempts"] == "2, this is the last"


def test_differences_name_versions_commits_and_machine() -> None:
    before = entry(mosaic={"version": "0.1", "git": GIT}, packages={"torch": "2", "a": "1"}, python={"version": "3.11"})
    now = entry(mosaic={"version": "0.2"}, packages={"torch": "3", "b": "1"}, python={"version": "3.12"})
    before["machine"], now["machine"] = {"cpu": "A", "gpus": ["H200"]}, {"cpu": "B", "gpus": []}
    assert differences(before, before) == []
    assert differences(before, now) == [
        "mosaic: 0.1 commit aaaaaaaaaaaa with changes dddddddddddd → 0.2",
        "python: 3.11 → 3.12",
        "packages: torch 2 → 3, a 1 → none, b none → 1",
        "cpu: A → B",
        "gpus: H200 → none",
    ]
