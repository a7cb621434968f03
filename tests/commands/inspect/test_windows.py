"""Which windows of a run can be verified, as its events and checkpoints tell."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mosaic.commands.inspect.windows import RunRecord, Window, difference, windows_of
from mosaic.contract.checkpoints import write_checkpoint
from mosaic.contract.errors import ConfigError
from mosaic.contract.events import EventLog
from mosaic.contract.metrics import encode_row
from mosaic.contract.paths import RunPaths

Write = Callable[..., RunPaths]


def weights(step: int) -> str:
    return f"{step:064d}"


def saved(step: int, *, exact: bool = True) -> tuple[str, dict[str, Any]]:
    told = {"step": step, "exact": exact, "weights": weights(step), "metrics_bytes": step, "device": "cpu"}
    return "checkpoint", told


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a run's events, and keep some checkpoints of it."""

    def written(*told: tuple[str, dict[str, Any]], kept: tuple[int, ...] = (), exact: bool = True) -> RunPaths:
        paths = RunPaths("run-1", tmp_path)
        paths.create()
        with EventLog(paths.events, "run-1") as log:
            log.append("run_started", {"total_timesteps": 1000})
            for kind, payload in told:
                log.append(kind, payload)
        for step in kept:
            state = {"exact": exact, "weights": weights(step), "args": {"total_timesteps": 1000, "rate": 1}}
            write_checkpoint(paths.checkpoints, step, state, {})
        return paths

    return written


def spans(paths: RunPaths) -> list[tuple[int, int, bool]]:
    return [(one.start, one.end.step, one.checkpoint is not None) for one in windows_of(paths)]


def test_windows_go_from_kept_checkpoints_and_step_0_to_the_next_record_newest_first(write: Write) -> None:
    paths = write(*map(saved, (200, 400, 600, 800)), kept=(600, 400, 800))
    assert spans(paths) == [(600, 800, True), (400, 600, True), (0, 200, False)]


def test_an_inexact_record_ends_a_window_only_at_the_end_of_the_training(write: Write) -> None:
    assert spans(write(saved(200), saved(1000, exact=False), kept=(200,))) == [(200, 1000, True), (0, 200, False)]


def test_no_window_ends_or_begins_where_a_stopped_run_saved_in_haste(write: Write) -> None:
    paths = write(saved(200), saved(300, exact=False), ("resumed", {"step": 300, "changed": {}}), saved(400))
    write_checkpoint(paths.checkpoints, 300, {"exact": False, "weights": weights(300)}, {})
    write_checkpoint(paths.checkpoints, 200, {"exact": True, "weights": weights(200), "args": {}}, {})
    assert spans(paths) == [(0, 200, False)]


def test_what_a_resumption_left_behind_does_not_count_and_its_changes_do(write: Write) -> None:
    changed = ("resumed", {"step": 200, "changed": {"rate": [1, 2], "total_timesteps": [1000, 2000]}})
    paths = write(saved(200), saved(400), changed, saved(300), saved(1000, exact=False), kept=(200,))
    found = windows_of(paths)
    assert [(one.start, one.end.step) for one in found] == [(200, 300), (0, 200)]
    assert found[0].changed == {"rate": 2, "total_timesteps": 2000} and found[1].changed == {}


@pytest.mark.parametrize("payload", [{"step": 200, "changed": {}}, {"step": 0, "warm_start": True}])
def test_a_run_that_began_from_elsewhere_has_no_window_from_step_0(write: Write, payload: dict[str, Any]) -> None:
    assert spans(write(("resumed", payload), saved(400), saved(600), kept=(400,))) == [(400, 600, True)]


def test_a_kept_checkpoint_of_other_weights_than_recorded_begins_no_window(write: Write) -> None:
    paths = write(saved(200), saved(400))
    write_checkpoint(paths.checkpoints, 200, {"exact": True, "weights": weights(7), "args": {}}, {})
    assert spans(paths) == [(0, 200, False)]


def test_a_run_without_hashes_or_without_a_beginning_is_refused_in_one_line(write: Write) -> None:
    with pytest.raises(ConfigError, match="none of its checkpoint events has a weight hash"):
        windows_of(write(("checkpoint", {"step": 200, "exact": True})))
    with pytest.raises(ConfigError, match="no exact checkpoint is kept"):
        windows_of(write(("resumed", {"step": 100, "changed": {}}), saved(200)))


def test_the_first_row_that_differs_is_named(tmp_path: Path) -> None:
    then, now = tmp_path / "then.jsonl", tmp_path / "now.jsonl"
    rows = [{"a": 1.0}, {"a": float("nan"), "charts/SPS": 5.0, "perf/env": 0.1}, {"b": 3.0}]

    def differ(*changed: dict[str, float], same: bool = True) -> str:
        then.write_bytes(b"".join(encode_row(step, 1.0, row) for step, row in enumerate(rows, 5)))
        now.write_bytes(b"".join(encode_row(step, 2.0, row) for step, row in enumerate(changed, 5)))
        ends = [RunRecord(7, weights(7), path.stat().st_size, True, "cpu") for path in (then, now)]
        end = ends[1] if same else RunRecord(7, weights(8), ends[1].metrics_bytes, True, "cpu")
        return difference(Window(5, ends[0], None), then, now, end)

    timed = {"a": float("nan"), "charts/SPS": 7.0, "perf/env": 0.2}
    assert differ({"a": 99.0}, timed, {"b": 3.0}) == ""
    assert differ({"a": 1.0}, timed, {"b": 4.0}) == "step 7: b 3.0 recorded, 4.0 now"
    assert differ({"a": 1.0}, {"a": 0.5}, {"b": 4.0}) == "step 6: a NaN recorded, 0.5 now"
    assert differ({"a": 1.0}, timed).startswith("step 7: this row exists only recorded")
    assert differ({"a": 1.0}, timed, {"b": 3.0}, same=False).startswith("step 7: weights 000000000000 recorded")
    assert json.loads(now.read_bytes().splitlines()[0])["step"] == 5


def test_of_a_thinned_file_only_the_rows_that_it_holds_are_compared(tmp_path: Path) -> None:
    then, now = tmp_path / "then.jsonl", tmp_path / "now.jsonl"
    rows = [(step, {"loss": step / 7}) for step in range(10, 110, 10)]
    now.write_bytes(b"".join(encode_row(step, 0.0, values) for step, values in rows))
    end = RunRecord(100, weights(1), now.stat().st_size, True, "cpu")
    window = Window(0, RunRecord(100, weights(1), 10**6, True, "cpu"), None)

    def compared(*kept: tuple[int, dict[str, float]]) -> str:
        then.write_bytes(b"".join(encode_row(step, 1.0, values) for step, values in kept))
        return difference(window, then, now, end, thinned=True)

    assert compared(rows[0], rows[4]) == "" and compared() == ""
    assert compared(rows[0], (50, {"loss": 0.5})).startswith("step 50: loss 0.5 recorded, 7.14")
    assert compared((55, {"loss": 0.5}), rows[6]).startswith("step 55: ")
    assert compared(rows[0], (100, {"loss": 0.5})) == "", "rows of the last step may follow the checkpoint"
