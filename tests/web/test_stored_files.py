"""A run whose files only its store has, in the GUI: listed, downloaded, shown in TensorBoard and as logs."""

import json
import shutil
from pathlib import Path

import pytest

from mosaic.contract.checkpoints import write_checkpoint
from mosaic.contract.errors import MosaicError
from mosaic.contract.paths import RunPaths
from mosaic.store.storage import Storage
from mosaic.store.upload import Upload
from mosaic.web import run_files
from mosaic.web.files import file_response
from mosaic.web.log_files import fetch_logs, logs_of
from mosaic.web.tensorboard_server import log_folder

POLICY = "runs/a/ppo.cleanrl_model"


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run that ran elsewhere: here are its config and what the daemon wrote down of its events."""
    monkeypatch.delenv("MOSAIC_STORAGE_URL", raising=False)
    there, url = RunPaths("run-1", tmp_path / "there"), f"file://{tmp_path}/store"
    there.create()
    for name in (
        POLICY,
        f"{POLICY}.json",
        "tensorboard/events.out.tfevents.1",
        "logs/cleanrl.stdout.log",
        "videos/0.mp4",
    ):
        file = there.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"the content of {name}")
    there.events.write_text("theirs\n")
    write_checkpoint(there.checkpoints, 100, {"exact": False, "score": 7.5}, {"a": b"x" * 1000})
    Upload(there, Storage(url)).sync(last=True)
    paths = RunPaths("run-1", tmp_path / "home")
    paths.create()
    paths.events.write_text("ours\n")
    paths.config_file.parent.mkdir(parents=True)
    config = {"metadata": {"worker": {"config": {"extras": {"storage_url": url}}}}}
    paths.config_file.write_text(json.dumps(config))
    return paths


def test_what_only_the_store_has_is_listed_and_fetched_when_it_is_asked_for(paths: RunPaths) -> None:
    found = run_files.list_elsewhere(paths)
    assert found is not None and found.trouble == "" and found.size > 1000
    (saved,) = found.saved
    assert (saved.path, saved.step, saved.score, saved.exact, saved.here) == ("checkpoints/100", 100, 7.5, False, False)
    assert POLICY in [one.path for one in found.files] and "logs/worker.jsonl" not in [one.path for one in found.files]
    answer = file_response(paths.home, "run-1", POLICY, download=True)
    assert answer.status_code == 200 and (paths.folder / POLICY).read_text() == f"the content of {POLICY}"
    assert file_response(paths.home, "run-1", "runs/a/none.cleanrl_model").status_code == 404
    run_files.fetch_all(paths, "checkpoints/100")
    assert [one.step for one in run_files.list_checkpoints(paths)] == [100]
    assert log_folder(paths) == paths.tensorboard and any(paths.tensorboard.glob("*tfevents*"))
    assert fetch_logs(paths) == "" and "Output" in logs_of(paths)
    run_files.fetch_all(paths)
    left = run_files.list_elsewhere(paths)
    assert left is not None and not left.files and not left.saved
    assert paths.events.read_text() == "ours\n"


def test_a_store_that_is_away_is_told_and_hides_nothing_that_is_here(paths: RunPaths, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("in the way")
    found = run_files.list_elsewhere(paths)
    assert found is not None and "cannot read" in found.trouble and not found.files
    assert file_response(paths.home, "run-1", "logs/worker.jsonl").status_code == 200
    answer = file_response(paths.home, "run-1", POLICY)
    assert answer.status_code == 502 and b"cannot be fetched" in bytes(answer.body)
    assert "cannot read" in fetch_logs(paths)
    with pytest.raises(MosaicError, match="cannot read"):
        log_folder(paths)


def test_a_run_that_keeps_no_copy_asks_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOSAIC_STORAGE_URL", raising=False)
    assert run_files.list_elsewhere(RunPaths("run-1", tmp_path)) is None
