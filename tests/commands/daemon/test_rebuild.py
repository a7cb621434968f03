"""rebuild through a daemon, how BROKEN runs are shown, and who names folders without a row."""

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mosaic import doctor
from mosaic.contract.events import EventLog
from mosaic.contract.paths import RunPaths, new_run_id


@pytest.fixture
def orphan(place: Any, client: Any) -> Iterator[str]:
    """A folder that a worker started by hand left."""
    run_id = new_run_id()
    paths = RunPaths(run_id, place.home)
    paths.create()
    with EventLog(paths.events, run_id) as log:
        log.append("run_started", {"algo": "dqn", "env_id": "Acrobot-v1"})
        log.append("run_completed", {})
    yield run_id
    if run_id in [run.run_id for run in client.list_runs().runs]:
        client.delete_run(run_id)


def test_folders_without_a_row_are_named_and_get_one(
    mosaic: Callable[..., Any], place: Any, orphan: str, client: Any
) -> None:
    for folder in (place.home / "var" / "trainer" / "runs").iterdir():  # what other tests have left
        if folder.name != orphan and not client.list_runs(text=folder.name).runs:
            shutil.rmtree(folder)
    told = mosaic("gc")
    assert f"1 run folder has no row in the registry ({orphan}); recreate from" in told.err
    assert json.loads(mosaic("gc", "--json").out)["without_row"] == [orphan]
    (finding,) = doctor.registry(place.home)
    assert (finding.state, finding.advice) == ("note", "mosaic rebuild") and orphan in finding.text
    told = mosaic("rebuild")
    assert told.code == 0 and told.out.startswith(f"rebuilt {orphan}\n") and "1 rebuilt, 0 skipped" in told.out
    run = client.get_run(orphan)
    assert (run.state, run.algo, run.imported) == ("COMPLETED", "dqn", True)
    assert mosaic("gc").err == ""
    (finding,) = doctor.registry(place.home)
    assert finding.state == "ok"
    assert json.loads(mosaic("rebuild", "--json").out)["rebuilt"] == []


def test_a_broken_run_is_listed_shown_and_deleted_by_commands(
    mosaic: Callable[..., Any], place: Any, start: Callable[..., Any]
) -> None:
    good, run = start(), start()
    with sqlite3.connect(place.home / "var/trainer/mosaic.db") as connection:
        connection.execute("UPDATE runs SET max_restarts = 2147483648 WHERE run_id = ?", (run.run_id,))
    listed = {one["run_id"]: one for one in json.loads(mosaic("runs", "--json").out)["runs"]}
    assert listed[run.run_id]["state"] == "BROKEN" and listed[good.run_id]["state"] == "COMPLETED"
    assert run.run_id in mosaic("runs", "--state", "broken").out
    assert run.run_id not in mosaic("runs", "--state", "completed").out
    shown = mosaic("show", "latest")
    assert "BROKEN" in shown.out and "max_restarts: a whole number from 0 to 2147483647 is needed" in shown.out
    for verb in ("cancel", "pause", "continue"):
        told = mosaic(verb, run.run_id)
        assert told.code == 2 and told.err.startswith(f"mosaic: run {run.run_id} is BROKEN: max_restarts")
        assert told.err.count("\n") == 1
    assert mosaic("delete", run.run_id).code == 0
    assert "BROKEN" not in mosaic("runs").out and not Path(run.folder).exists()


def test_a_deletion_of_a_linked_folder_leaves_its_target(
    mosaic: Callable[..., Any], place: Any, start: Callable[..., Any], tmp_path: Path
) -> None:
    run = start()
    folder, outside = Path(run.folder), tmp_path / "outside"
    folder.rename(outside)
    folder.symlink_to(outside)
    told = mosaic("delete", run.run_id)
    assert told.code == 0 and ": 0 B freed" in told.out and (outside / "metrics.jsonl").exists()
