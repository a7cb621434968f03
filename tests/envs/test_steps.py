"""Steps as telemetry: batches of lines, nothing where nobody asked."""

import json
from pathlib import Path

import numpy as np
import pytest

from cleanrl_worker.envs import steps


@pytest.fixture(autouse=True)
def no_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_logs", [])


def lines(path: Path) -> list[list[list[float]]]:
    return [json.loads(line)["payload"]["steps"] for line in path.read_text().splitlines()]


def test_nothing_is_logged_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOSAIC_STEP_LOG", raising=False)
    assert isinstance(steps.step_log(4), steps.NoLog)


def test_steps_come_in_batches_with_their_environment_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_STEP_LOG", str(tmp_path / "notes.jsonl"))
    monkeypatch.setattr(steps, "BATCH_SECONDS", 3600.0)
    log = steps.step_log(2)
    assert isinstance(log, steps.StepLog)
    assert isinstance(steps.step_log(3), steps.NoLog), "an evaluation's environments are not those it trains in"
    steps.count_from(100)
    log.flush()
    log.add(np.array([1.0, np.nan]), None)
    log.add(np.array([0.5, 2.0]), np.array([False, True]))
    assert not (tmp_path / "notes.jsonl").exists()
    log.flush()
    assert lines(tmp_path / "notes.jsonl") == [
        [[102, 0, 1.0, 0], [102, 1, "NaN", 0], [104, 0, 0.5, 0], [104, 1, 2.0, 1]]
    ]


def test_a_batch_is_handed_over_when_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_STEP_LOG", str(tmp_path / "notes.jsonl"))
    monkeypatch.setattr(steps, "BATCH_SECONDS", 3600.0)
    log = steps.step_log(1)
    assert isinstance(log, steps.StepLog)
    for _ in range(steps.BATCH_STEPS + 10):
        log.add(np.ones(1), None)
    log.flush()
    sizes = [len(batch) for batch in lines(tmp_path / "notes.jsonl")]
    assert sum(sizes) == steps.BATCH_STEPS + 10 and max(sizes) == steps.BATCH_STEPS


def test_a_disk_that_takes_nothing_costs_only_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_STEP_LOG", str(tmp_path / "missing" / "notes.jsonl"))
    log = steps.step_log(1)
    assert isinstance(log, steps.StepLog)
    log.add(np.ones(1), None)
    log.flush()


def test_the_environments_of_the_next_stage_go_on_with_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_STEP_LOG", str(tmp_path / "notes.jsonl"))
    log = steps.step_log(2)
    steps.hand_on()
    assert steps.step_log(2) is log
    assert isinstance(steps.step_log(2), steps.NoLog)
