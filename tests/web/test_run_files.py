"""What lies in a run's folder: checkpoints and their pins, policies, videos; notes that several people write."""

from pathlib import Path

import pytest

from mosaic.contract import checkpoints
from mosaic.contract.errors import ConfigError
from mosaic.contract.files import ANALYTICS, read_note
from mosaic.contract.paths import RunPaths
from mosaic.web import run_files


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths("run-1", tmp_path)
    paths.create()
    return paths


def test_a_pinned_checkpoint_outlives_the_others(paths: RunPaths) -> None:
    for step in (100, 200, 300):
        checkpoints.write_checkpoint(paths.checkpoints, step, {"exact": step != 300}, {"state.safetensors": b"x" * 10})
    found = run_files.list_checkpoints(paths)
    assert [one.step for one in found] == [300, 200, 100] and [one.exact for one in found] == [False, True, True]
    assert found[0].path == "checkpoints/300" and found[0].size > 10 and not any(one.pinned for one in found)
    run_files.pin(paths, "checkpoints/100", True)
    checkpoints.prune(paths.checkpoints, None)
    assert [one.step for one in run_files.list_checkpoints(paths) if one.pinned] == [100]
    run_files.pin(paths, "checkpoints/100", False)
    assert not any(one.pinned for one in run_files.list_checkpoints(paths))
    for bad in ("checkpoints/900", "../../../x", "logs"):
        with pytest.raises(ConfigError):
            run_files.pin(paths, bad, True)


def test_policies_videos_and_all_files_are_listed_without_what_is_being_written(paths: RunPaths) -> None:
    for name in ("runs/a/ppo.cleanrl_model", "runs/a/ppo.cleanrl_model.json", "videos/run-1-eval/0.mp4", "logs/.x.tmp"):
        file = paths.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    (paths.folder / "loop").symlink_to(paths.folder)
    assert [one.path for one in run_files.list_policies(paths)] == ["runs/a/ppo.cleanrl_model"]
    assert [one.path for one in run_files.list_videos(paths)] == ["videos/run-1-eval/0.mp4"]
    everything = [one.path for one in run_files.list_files(paths)]
    assert everything == ["runs/a/ppo.cleanrl_model", "runs/a/ppo.cleanrl_model.json", "videos/run-1-eval/0.mp4"]


def test_notes_begin_with_the_configs_and_are_kept_whole(paths: RunPaths, tmp_path: Path) -> None:
    paths.analytics.write_text('{"notes": "from the form"}')
    assert run_files.read_notes(paths) == ("from the form", 0.0)
    changed_at = run_files.write_notes(paths, "mine\n<b>")
    assert run_files.read_notes(paths) == ("mine\n<b>", changed_at) and changed_at > 0
    with pytest.raises(ConfigError, match="shorten"):
        run_files.write_notes(paths, "x" * 300_000)
    with pytest.raises(ConfigError, match="deleted"):
        run_files.write_notes(RunPaths("run-2", tmp_path), "x")


def test_what_a_worker_wrote_badly_is_as_if_it_were_not_there(paths: RunPaths) -> None:
    for text in ("", "[1]", "{", "\xff"):
        paths.analytics.write_bytes(text.encode("latin-1"))
        assert read_note(paths.analytics, ANALYTICS) == {}
