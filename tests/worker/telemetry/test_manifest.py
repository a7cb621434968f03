"""The manifest: what it names, how it is written."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.config.config import CleanRLWorkerConfig
from cleanrl_worker.telemetry.manifest import build_manifest, identity, write_manifest
from mosaic.contract.errors import StorageError
from mosaic.contract.paths import RunPaths


@pytest.fixture
def paths(home: Path) -> RunPaths:
    paths = RunPaths("run-1234567890", home)
    paths.create()
    return paths


def config(**extras: Any) -> CleanRLWorkerConfig:
    return CleanRLWorkerConfig("run-1234567890", "ppo", "CartPole-v1", 100, 1, extras)


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


def test_empty_run_names_nothing(paths: RunPaths) -> None:
    assert build_manifest(config(), paths) == {
        "run_id": "run-1234567890",
        "artifacts": {
            "tensorboard": {"enabled": False, "relative_path": None},
            "wandb": {"enabled": False, "run_path": None, "entity": None, "project": None},
            "checkpoints": {"relative_path": None, "steps": [], "latest": None},
            "videos": [],
            "policy": None,
        },
        "agent_id": None,
        "worker_id": "cleanrl-worker-run-1234",
        "optuna_db_path": None,
        "checkpoints_dir": None,
        "notes": None,
        "provenance": None,
        "summary": {"final_return": None, "best_return": None, "steps": None, "seconds": None, "sps": None},
    }


def test_what_lies_in_the_folder_is_named_relative_to_it(paths: RunPaths) -> None:
    for step in ("200", "1000", "warm-up/50", "not-a-step"):
        (paths.checkpoints / step).mkdir(parents=True)
    touch(paths.videos / "run-eval" / "b.mp4")
    touch(paths.videos / "a.mp4")
    old = touch(paths.policies / "one" / "ppo.cleanrl_model")
    touch(paths.policies / "two" / "ppo.cleanrl_model")
    touch(paths.policies / "two" / "ppo.best.cleanrl_model")
    os.utime(old, (1, 1))
    artifacts = build_manifest(config(), paths, tensorboard=paths.tensorboard_eval)["artifacts"]
    assert artifacts["checkpoints"] == {
        "relative_path": "checkpoints",
        "steps": ["warm-up/50", 200, 1000],
        "latest": "checkpoints/1000",
    }
    assert artifacts["videos"] == ["videos/a.mp4", "videos/run-eval/b.mp4"]
    assert artifacts["policy"] == "runs/two/ppo.cleanrl_model"
    assert artifacts["tensorboard"] == {"enabled": True, "relative_path": "tensorboard_eval"}


def test_checkpoints_of_a_script_are_named_by_phase_and_step_in_the_order_of_its_phases(paths: RunPaths) -> None:
    for place in ("phase10-b/8", "phase2-a/300", "phase2-a/1000", "phase1-a/5000"):
        (paths.checkpoints / place).mkdir(parents=True)
    found = build_manifest(config(), paths)["artifacts"]["checkpoints"]
    assert found["steps"] == ["phase1-a/5000", "phase2-a/300", "phase2-a/1000", "phase10-b/8"]
    assert found["latest"] == "checkpoints/phase10-b/8"


def test_extras_are_carried_over(paths: RunPaths) -> None:
    given = config(
        agent_id="a1",
        notes="third try",
        optuna_db="/data/study.db",
        checkpoints_dir=str(paths.checkpoints),
        wandb_entity="lab",
    )
    manifest = build_manifest(given, paths, wandb=True, summary={"steps": 7})
    assert (manifest["agent_id"], manifest["notes"]) == ("a1", "third try")
    assert (manifest["optuna_db_path"], manifest["checkpoints_dir"]) == ("/data/study.db", "checkpoints")
    assert manifest["artifacts"]["wandb"] == {
        "enabled": True,
        "run_path": None,
        "entity": "lab",
        "project": "cleanRL",
    }
    assert manifest["summary"]["steps"] == 7


def test_wandb_run_path_appears_as_soon_as_there_is_one(paths: RunPaths) -> None:
    paths.wandb_status.write_text('{"run_path": "lab/mosaic/x", "entity": "lab", "project": "mosaic"}')
    found = build_manifest(config(), paths, wandb=True)["artifacts"]["wandb"]
    assert found == {"enabled": True, "run_path": "lab/mosaic/x", "entity": "lab", "project": "mosaic"}
    paths.wandb_status.write_text("{half")
    assert build_manifest(config(), paths, wandb=True)["artifacts"]["wandb"]["run_path"] is None


def test_link_out_of_the_folder_breaks_nothing(paths: RunPaths, tmp_path: Path) -> None:
    paths.videos.mkdir()
    (paths.videos / "x.mp4").symlink_to(touch(tmp_path / "elsewhere.mp4"))
    (paths.videos / "gone.mp4").symlink_to(tmp_path / "gone.mp4")
    assert build_manifest(config(), paths)["artifacts"]["videos"] == ["videos/gone.mp4", "videos/x.mp4"]


def test_reader_never_sees_half_a_manifest(paths: RunPaths) -> None:
    manifest = build_manifest(config(notes="n" * 20_000), paths)
    write_manifest(paths, manifest)
    stop = threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            write_manifest(paths, manifest)

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        for _ in range(200):
            assert json.loads(paths.analytics.read_bytes()) == manifest
    finally:
        stop.set()
        writer.join()


def test_manifest_that_cannot_be_written_is_one_clear_line(paths: RunPaths) -> None:
    paths.analytics.mkdir()
    (paths.analytics / "x").touch()
    with pytest.raises(StorageError, match=r"cannot write .*analytics\.json"):
        write_manifest(paths, {})


def test_identity_is_what_every_lifecycle_event_carries() -> None:
    assert set(identity(config())) == {"algo", "env_id", "agent_id", "worker_id"}
