"""What a run writes down: who hosts it, and who follows its rows."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.run.record import Record
from mosaic.contract import variables


def arguments(run_dir: Path | None, **others: Any) -> dict[str, Any]:
    return {"run_dir": None if run_dir is None else str(run_dir), "tensorboard_dir": None, "track": False, **others}


def test_run_below_a_shell_hands_its_events_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variables.MOSAIC_SHELL_PID, str(os.getppid()))
    (tmp_path / "logs").mkdir()
    record = Record(tmp_path, "run", arguments(tmp_path))
    record.tell("checkpoint", {"step": 1})
    record.close()
    assert json.loads((tmp_path / "logs" / "notes.jsonl").read_text())["event"] == "checkpoint"
    assert not (tmp_path / "tensorboard").exists(), "the shell writes it"


def test_own_script_below_a_shell_is_no_hosted_run_and_keeps_its_records_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variables.MOSAIC_SHELL_PID, str(os.getppid()))
    record = Record(tmp_path, "run", arguments(None))
    record.write(1, {"charts/SPS": 5.0})
    record.tell("checkpoint", {"step": 1})
    record.tell("warning", {"message": "said to the person"})
    record.close()
    assert capsys.readouterr().err == "said to the person\n"
    assert list((tmp_path / "tensorboard").iterdir()), "the shell reads a script's TensorBoard files"
