"""The daemon's log: one line a happening, nothing secret, rotated."""

from pathlib import Path

import pytest

from mosaic.contract import happenings
from mosaic.contract.errors import StorageError
from mosaic.contract.happenings import Happenings


def test_a_happening_is_one_line_with_its_run_and_values(tmp_path: Path) -> None:
    log = Happenings(tmp_path / "logs" / "x.log")
    log.note("run.submitted", "01J", algo="ppo", nothing=None, reason="two\nlines")
    log.warn("daemon.trouble", error="x" * 1000)
    first, second = (tmp_path / "logs" / "x.log").read_text().splitlines()
    assert first.split(" ", 2)[2] == 'run.submitted run=01J algo=ppo reason="two lines"'
    assert first.split()[1] == "INFO" and second.split()[1] == "WARNING" and len(second) < 600


def test_hidden_values_and_logins_are_never_written(tmp_path: Path) -> None:
    log = Happenings(tmp_path / "x.log")
    log.hide("secret-value", "x")
    log.note("run.failed", reason="it said secret-value to http://me:word@host")
    text = (tmp_path / "x.log").read_text()
    assert "secret" not in text and "me:word" not in text and "it said *** to http://***@host" in text


def test_the_log_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(happenings, "FILE_BYTES", 1000)
    monkeypatch.setattr(happenings, "FILES", 2)
    log = Happenings(tmp_path / "x.log")
    for number in range(100):
        log.note("run.warning", message=f"number {number}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.log", "x.log.1", "x.log.2"]


def test_a_folder_that_cannot_be_written_is_said_clearly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        Happenings(tmp_path / "file" / "x.log")
