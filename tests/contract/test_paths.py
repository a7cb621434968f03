"""Run ids, the paths of a run, and the atomic write."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic.contract.errors import ConfigError, RunIdError, StorageError
from mosaic.contract.paths import RunPaths, check_run_id, make_var, new_run_id, resolve_home, write_atomic


def test_new_run_ids_are_ulids_that_differ_and_pass_the_check() -> None:
    ids = [new_run_id() for _ in range(100)]
    assert len(set(ids)) == 100
    assert all(len(check_run_id(run_id)) == 26 for run_id in ids)


@pytest.mark.parametrize("run_id", ["a", "A-b_9", "x" * 128, "-", "01JCQ2M6W4H9Y1Z0T8V7R5S3KX"])
def test_a_plain_run_id_is_taken(run_id: str) -> None:
    assert check_run_id(run_id) == run_id


@pytest.mark.parametrize(
    "run_id",
    [
        *("../x", "..", ".", "/etc/passwd", "a/b", "a\\b", "~", "", "x" * 129, "x" * 300),
        *("a\n", "\n", "a\nb", "a b", "a\0", "é", "٣"),
        *(None, 7, b"abc", ["a"], True, Path("abc")),
    ],
)
def test_a_run_id_that_could_leave_its_folder_is_refused(run_id: Any) -> None:
    with pytest.raises(RunIdError, match=r"run id .* is refused") as refused:
        check_run_id(run_id)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300
    with pytest.raises(RunIdError):
        RunPaths(run_id, "/home")


@settings(deadline=None)  # a busy machine is no failure
@given(st.text(max_size=150))
def test_whatever_run_id_is_taken_names_a_folder_just_below_runs(run_id: str) -> None:
    try:
        paths = RunPaths(run_id, "/h")
    except RunIdError:
        return
    assert Path(os.path.normpath(paths.folder)).parent == Path("/h/var/trainer/runs")


def test_the_layout_is_the_contract() -> None:
    paths = RunPaths("R1", "/h")
    below_home = {
        "var": "var",
        "folder": "var/trainer/runs/R1",
        "logs": "var/trainer/runs/R1/logs",
        "stdout_log": "var/trainer/runs/R1/logs/cleanrl.stdout.log",
        "stderr_log": "var/trainer/runs/R1/logs/cleanrl.stderr.log",
        "events": "var/trainer/runs/R1/logs/worker.jsonl",
        "lock": "var/trainer/runs/R1/logs/worker.lock",
        "pause_file": "var/trainer/runs/R1/logs/paused_seconds",
        "metrics": "var/trainer/runs/R1/metrics.jsonl",
        "tensorboard": "var/trainer/runs/R1/tensorboard",
        "tensorboard_eval": "var/trainer/runs/R1/tensorboard_eval",
        "checkpoints": "var/trainer/runs/R1/checkpoints",
        "policies": "var/trainer/runs/R1/runs",
        "videos": "var/trainer/runs/R1/videos",
        "eval_summary": "var/trainer/runs/R1/eval_summary.json",
        "analytics": "var/trainer/runs/R1/analytics.json",
        "fastlane": "var/trainer/runs/R1/fastlane.json",
        "wandb_status": "var/trainer/runs/R1/wandb.json",
        "configs_folder": "var/trainer/configs",
        "config_file": "var/trainer/configs/config-R1.json",
    }
    assert {name: getattr(paths, name).relative_to("/h").as_posix() for name in below_home} == below_home
    assert paths.worker_config(3) == Path("/h/var/trainer/configs/worker-R1-3.json")
    assert paths == RunPaths("R1", Path("/h")) and hash(paths) == hash(RunPaths("R1", "/h"))


def test_home_is_the_variable_else_the_current_directory_and_always_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOSAIC_HOME", raising=False)
    assert resolve_home() == tmp_path
    monkeypatch.setenv("MOSAIC_HOME", "")
    assert resolve_home() == tmp_path
    monkeypatch.setenv("MOSAIC_HOME", "not/there/yet")
    assert resolve_home() == tmp_path / "not/there/yet"
    assert RunPaths("R1").home == tmp_path / "not/there/yet"
    assert RunPaths("R1", "other").home == tmp_path / "other"


def test_a_path_inside_the_run_folder_is_resolved_also_before_the_folder_exists(tmp_path: Path) -> None:
    paths = RunPaths("R1", tmp_path / "later")
    assert paths.inside("tensorboard") == paths.folder / "tensorboard"
    assert paths.inside("a/../b/./c") == paths.folder / "b/c"
    assert paths.inside(paths.folder / "x") == paths.folder / "x"
    assert paths.inside(".") == paths.folder
    assert not paths.home.exists()


@pytest.mark.parametrize("path", ["..", "../R2/x", "a/../../x", "/etc/passwd", "/", "../R1x", "a\0b", "../../../.."])
def test_a_path_that_leads_out_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=r"path .*(leads out of the run folder|is refused)"):
        RunPaths("R1", tmp_path).inside(path)


def test_a_symlink_that_leads_out_is_refused_and_one_that_stays_is_followed(tmp_path: Path) -> None:
    paths = RunPaths("R1", tmp_path)
    paths.create()
    (tmp_path / "elsewhere").mkdir()
    (paths.folder / "out").symlink_to(tmp_path / "elsewhere")
    (paths.folder / "logs2").symlink_to("logs")
    (paths.folder / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match="leads out"):
        paths.inside("out/file")
    with pytest.raises(ConfigError):
        paths.inside("logs2/../../R2")
    assert paths.inside("logs2/file") == paths.logs / "file"


def test_a_home_behind_a_symlink_still_contains_its_runs(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to("disk")
    paths = RunPaths("R1", tmp_path / "home")
    paths.create()
    assert paths.inside(paths.metrics).name == "metrics.jsonl"
    assert paths.relative(paths.stdout_log) == "logs/cleanrl.stdout.log"


def test_a_relative_path_is_relative_to_the_run_folder(tmp_path: Path) -> None:
    paths = RunPaths("R1", tmp_path)
    assert paths.relative(paths.checkpoints / "100") == "checkpoints/100"
    assert paths.relative("videos/a.mp4") == "videos/a.mp4"
    with pytest.raises(ConfigError):
        paths.relative(paths.config_file)


def test_create_makes_folder_and_logs_and_may_be_repeated(tmp_path: Path) -> None:
    paths = RunPaths("R1", tmp_path / "new")
    paths.create()
    paths.create()
    assert paths.logs.is_dir()


def test_a_folder_that_cannot_be_made_gives_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "var").write_text("a file stands in the way")
    with pytest.raises(StorageError, match=r"cannot write .*var: Not a directory; .*MOSAIC_HOME") as refused:
        RunPaths("R1", tmp_path).create()
    assert "\n" not in str(refused.value)


def test_an_atomic_write_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file.json"
    write_atomic(path, "é")
    write_atomic(path, b"second")
    assert path.read_bytes() == b"second"
    assert os.listdir(path.parent) == ["file.json"]


def test_a_write_that_fails_keeps_the_old_content_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "x").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*taken: "):
        write_atomic(tmp_path / "taken", "data")
    assert sorted(os.listdir(tmp_path)) == ["taken"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.open", lambda path, mode: os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb"))
    with pytest.raises(StorageError, match="No space left on device; free some space"):
        write_atomic(tmp_path / "file", b"x" * 100_000)


def test_readers_never_see_half_a_file_while_it_is_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([letter]) * 200_000 for letter in b"abcd"]
    write_atomic(path, contents[0])
    done = threading.Event()

    def rewrite() -> None:
        for turn in range(40):
            write_atomic(path, contents[turn % 4])
        done.set()

    writers = [threading.Thread(target=rewrite) for _ in range(2)]
    for writer in writers:
        writer.start()
    while not done.is_set():
        assert path.read_bytes() in contents
    for writer in writers:
        writer.join()
    assert os.listdir(tmp_path) == ["file"]


def test_the_light_modules_import_neither_pydantic_nor_numpy_nor_ulid() -> None:
    code = (
        "import sys, mosaic.contract.errors, mosaic.contract.variables, mosaic.contract.paths, mosaic.contract.events, "
        "mosaic.contract.metrics, mosaic.contract.tensorboard, mosaic.contract.workers, mosaic.contract.secrets\n"
        "mosaic.contract.metrics.encode_row(1, 2.0, {'a': float('nan')})\n"
        "heavy = {'pydantic', 'numpy', 'torch', 'ulid', 'grpc', 'google.protobuf', 'importlib.metadata', 'difflib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_a_relative_checkpoint_folder_lies_where_the_algorithm_works(tmp_path: Path) -> None:
    paths = RunPaths("run-1", tmp_path)
    assert paths.checkpoints_in({}) == paths.checkpoints_in({"MOSAIC_CHECKPOINT_DIR": ""}) == paths.checkpoints
    assert paths.checkpoints_in({"MOSAIC_CHECKPOINT_DIR": "mine"}) == paths.folder / "mine"
    assert paths.checkpoints_in({"MOSAIC_CHECKPOINT_DIR": "/else/where"}) == Path("/else/where")


def test_var_is_for_its_owner_only_whoever_makes_it_first(tmp_path: Path) -> None:
    def mode() -> int:
        return stat.S_IMODE((tmp_path / "home/var").stat().st_mode)

    RunPaths("R1", tmp_path / "home").create()
    assert mode() == 0o700
    (tmp_path / "home/var").chmod(0o755)  # as an earlier version left it
    make_var(tmp_path / "home")
    assert mode() == 0o700


def test_a_file_for_its_owner_only_is_never_open_to_others(tmp_path: Path) -> None:
    write_atomic(tmp_path / "card", "x", mode=0o600)
    assert stat.S_IMODE((tmp_path / "card").stat().st_mode) == 0o600
