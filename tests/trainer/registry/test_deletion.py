"""Deletion: files first, links not followed, and a disk that refuses leaves a run that can be deleted again."""

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract.errors import StorageError, UnknownRunError
from mosaic.trainer.registry.registry import NewRun, Registry
from mosaic.trainer.states import State


@pytest.fixture
def registry(tmp_path: Path) -> Any:
    found = Registry(tmp_path)
    found.add_run(NewRun("a", {"metadata": {}}))
    found.cancel_run("a")
    found.paths("a").create()
    found.paths("a").metrics.write_text("{}\n")
    found.paths("a").configs_folder.mkdir()
    found.paths("a").config_file.write_text("{}")
    yield found
    found.close()


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """A disk that keeps the folder of a run, as one does that is mounted there."""
    real = os.rmdir

    def rmdir(path: Any, **more: Any) -> None:
        if os.fspath(path).endswith(("/runs/a", "logs")) or path in ("a", "logs"):
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        real(path, **more)

    def switch(on: bool) -> None:
        monkeypatch.setattr(os, "rmdir", rmdir if on else real)

    return switch


def test_a_folder_that_is_a_link_goes_without_what_it_leads_to(registry: Registry, tmp_path: Path) -> None:
    folder, elsewhere = registry.paths("a").folder, tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    registry.delete_run("a")
    assert not folder.is_symlink() and (elsewhere / "metrics.jsonl").read_text() == "{}\n"
    assert not registry.paths("a").config_file.exists()
    with pytest.raises(UnknownRunError):
        registry.get_run("a")


def test_a_refused_deletion_names_what_stays_and_can_be_tried_again(
    registry: Registry, busy: Callable[[bool], None]
) -> None:
    busy(True)
    with pytest.raises(StorageError, match=r"run a cannot be deleted: the disk keeps .*busy.*then delete again"):
        registry.delete_run("a")
    assert registry.get_run("a").state == State.CANCELLED and registry.list_runs().total == 1
    busy(False)
    registry.delete_run("a")
    assert registry.list_runs().total == 0 and not registry.paths("a").folder.exists()


def test_a_start_finishes_deletions_and_clears_the_mark_where_the_disk_refuses(
    registry: Registry, busy: Callable[[bool], None], tmp_path: Path
) -> None:
    with sqlite3.connect(registry.database.path) as connection:
        connection.execute("UPDATE runs SET deleting = 1")
    busy(True)
    second = Registry(tmp_path)
    ((run_id, reason),) = second.left
    assert run_id == "a" and "the disk keeps" in reason and second.get_run("a").state == State.CANCELLED
    second.close()
    with sqlite3.connect(registry.database.path) as connection:
        connection.execute("UPDATE runs SET deleting = 1")
    busy(False)
    third = Registry(tmp_path)
    assert third.left == [] and third.list_runs().total == 0 and not third.paths("a").folder.exists()
    third.close()


def test_a_daemon_that_starts_finishes_the_deletion_of_a_linked_folder(daemon: Any) -> None:
    run = daemon.submit({"episodes": 1})
    daemon.client.wait_run(run.run_id, 180)
    daemon.stop()
    with sqlite3.connect(daemon.home / "var/trainer/mosaic.db") as connection:
        connection.execute("UPDATE runs SET deleting = 1")
    folder = daemon.paths(run.run_id).folder
    outside = daemon.home / "outside"
    folder.rename(outside)
    folder.symlink_to(outside)
    daemon.start()
    assert daemon.client.list_runs().total == 0 and outside.is_dir() and not folder.is_symlink()
    assert "Traceback" not in daemon.log()
