"""pause, continue, cancel, delete: they wait until it has happened."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mosaic.commands.run.control import folder_bytes


def test_a_run_pauses_goes_on_and_is_cancelled(mosaic: Callable[..., Any], start: Callable[..., Any]) -> None:
    run = start(until="EXECUTING", episodes=100000, pause=0.02)
    assert f"{run.run_id} is PAUSED" in mosaic("pause", run.run_id).out
    assert json.loads(mosaic("continue", run.run_id[-8:], "--json").out)["state"] == "EXECUTING"
    told = mosaic("cancel", run.run_id, "--grace", "20")
    assert told.code == 0 and "is CANCELLED" in told.out
    assert mosaic("cancel", run.run_id).code == 0
    refused = mosaic("pause", run.run_id)
    assert refused.code == 2 and "only a run that is EXECUTING can pause" in refused.err


def test_several_runs_are_cancelled_at_once(mosaic: Callable[..., Any], start: Callable[..., Any]) -> None:
    names = [start(until="EXECUTING", episodes=100000, pause=0.02).run_id for _ in range(2)]
    asked = json.loads(mosaic("cancel", *names, "--no-wait", "--json").out)["runs"]
    assert [run["run_id"] for run in asked] == names
    found = json.loads(mosaic("cancel", *names, "--json").out)["runs"]
    assert [run["state"] for run in found] == ["CANCELLED", "CANCELLED"]


def test_run_that_has_ended_cannot_be_cancelled(mosaic: Callable[..., Any], start: Callable[..., Any]) -> None:
    told = mosaic("cancel", start().run_id)
    assert told.code == 2 and "it has ended" in told.err


def test_delete_frees_the_folder_of_an_ended_run_only(mosaic: Callable[..., Any], start: Callable[..., Any]) -> None:
    run, going = start(), start(until="EXECUTING", episodes=100000, pause=0.02)
    assert mosaic("delete", going.run_id, "--yes").code == 2
    told = mosaic("delete", run.run_id)
    assert told.code == 0 and "freed" in told.out and not Path(run.folder).exists()
    assert mosaic("show", run.run_id).code == 2
    mosaic("cancel", going.run_id, "--grace", "0")
    found = json.loads(mosaic("delete", going.run_id, "--json").out)
    assert found["deleted"] == [going.run_id] and found["bytes"] > 0


def test_bytes_of_a_folder_are_those_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"12345")
    (tmp_path / "c").symlink_to("/nowhere")
    assert folder_bytes(tmp_path) == 5 + len("/nowhere")
