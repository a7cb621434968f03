"""The copy in a store beside a real run: as it comes, killed in the middle, with the store away, there and back."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.config.config import parse_worker_config
from mosaic.contract.checkpoints import find_all, read_checkpoint, write_checkpoint
from mosaic.contract.errors import ConfigError, StoreError
from mosaic.contract.paths import RunPaths
from mosaic.store.manifest import Manifest, read_manifest
from mosaic.store.storage import Storage
from mosaic.store.stored import StoredRun, fetch_newest
from mosaic.store.syncing import Syncer, fetch_stored
from mosaic.store.upload import Upload

LONG = 90.0


@pytest.fixture
def paths(home: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    monkeypatch.delenv("MOSAIC_STORAGE_URL", raising=False)
    paths = RunPaths("run-1", home)
    paths.create()
    paths.metrics.write_bytes(b'{"step": 1, "time": 1.0}\n')
    return paths


@pytest.fixture
def sync(paths: RunPaths) -> Iterator[Callable[[str], Syncer]]:
    started: list[Syncer] = []

    def start(url: str) -> Syncer:
        started.append(Syncer(paths, url, os.environ, paths.checkpoints))
        return started[-1]

    yield start
    for syncer in started:
        syncer.kill()


def manifest_of(url: str) -> Manifest:
    return read_manifest(Storage(url), "run-1") or Manifest("run-1")


def test_a_kill_in_the_middle_of_an_upload_shows_nobody_half_a_checkpoint(
    paths: RunPaths, sync: Callable[[str], Syncer], s3: str, until: Callable[..., None], tmp_path: Path
) -> None:
    store = Storage(s3)
    syncer = sync(s3)
    until(lambda: manifest_of(s3).files, LONG, "the first upload")
    hits = 0
    for step in range(100, 1100, 100):  # each with so many parts that it takes a while
        parts = {f"part-{number}": os.urandom(2000) for number in range(30)}
        name = f"checkpoints/{step}"
        write_checkpoint(paths.checkpoints, step, {"args": {}}, parts)
        until(lambda name=name: any(f"/{name}/" in one for one in store.sizes("run-1")), LONG, "a part of it")
        os.killpg(syncer._process.pid, signal.SIGKILL)
        syncer._process.wait()
        stored = manifest_of(s3).checkpoints
        hits += name not in stored
        reader = RunPaths("run-1", tmp_path / f"reader-{step}")
        StoredRun(reader, s3).fetch(all_saved=True)
        assert {f"checkpoints/{path.name}" for path in find_all(reader.checkpoints)} == set(stored)
        for path in find_all(reader.checkpoints):
            read_checkpoint(path)
        syncer = sync(s3)
        until(lambda name=name: name in manifest_of(s3).checkpoints, LONG, "the next sync to complete it")
        if hits:
            break
    assert hits, "every kill came after the upload"
    assert syncer.close() is None
    fetch_newest(RunPaths("run-1", tmp_path / "last"), s3)
    assert read_checkpoint(find_all(RunPaths("run-1", tmp_path / "last").checkpoints)[0])[1] == parts


def test_a_store_that_is_away_is_told_once_and_asked_again(
    paths: RunPaths, sync: Callable[[str], Syncer], tmp_path: Path, until: Callable[..., None]
) -> None:
    (tmp_path / "store").write_text("in the way")
    url = f"file://{tmp_path}/store"
    syncer = sync(url)
    said: list[str] = []
    until(lambda: said.append(syncer.poll() or "") or said[-1], LONG, "a word about it")
    assert said[-1].startswith(f"{url}: cannot read run-1/manifest.json: Not a directory; training goes on")
    assert syncer.poll() is None
    assert "could not be stored in" in str(syncer.flush(0.3, lambda: False, lambda: None))
    (tmp_path / "store").unlink()
    assert syncer.flush(LONG, lambda: False, lambda: None) is None and syncer.poll() is None
    assert set(manifest_of(url).files) >= {"metrics.jsonl"}
    paths.metrics.write_bytes(b"last\n")
    assert syncer.close(LONG) is None
    assert manifest_of(url).files["metrics.jsonl"].size == 5
    assert syncer.status()["url"] == url and syncer.status()["error"] is None


def test_a_run_whose_store_takes_nothing_ends_with_a_warning(
    start_run: Callable[..., Any], tmp_path: Path, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOSAIC_STORAGE_URL", raising=False)
    (tmp_path / "store").write_text("in the way")
    run = start_run("episode(1, 1.0)\ntime.sleep(0.5)", {"storage_url": f"file://{tmp_path}/store"})
    run.first("run_started")
    run.first("warning")

    def told_to_stop() -> bool:  # again and again: nobody who is in a hurry waits for a store
        run.process.send_signal(signal.SIGTERM)
        return run.process.poll() is not None

    until(told_to_stop, LONG, "its end")
    warnings = [event.payload["message"] for event in run.events("warning")]
    assert any("Not a directory" in text for text in warnings), warnings
    assert run.events()[-1].event in ("run_completed", "run_failed")


TRAIN = {
    "num_envs": 2,
    "num_steps": 32,
    "num_minibatches": 2,
    "update_epochs": 1,
    "checkpoint_every": 128,
    "checkpoint_episodes": 0,
}


def test_a_run_is_stored_deleted_here_and_resumed_exactly(paths: RunPaths, s3: str, home: Path, tmp_path: Path) -> None:
    settings = {
        "algo_params": TRAIN,
        "save_model": True,
        "fastlane_video_mode": "off",
        "tensorboard_dir": "tensorboard",
    }
    shutil.rmtree(paths.folder)
    whole = {"run_id": "run-1", "algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 256}
    work(tmp_path, whole | {"extras": {**settings, "storage_url": s3}})
    found = [json.loads(line) for line in paths.events.read_text().splitlines()]
    warned = [event["payload"]["message"] for event in found if event["event"] == "warning"]
    assert found[-1]["event"] == "run_completed"
    assert not [text for text in warned if "checkpoint_every=" not in text and "live view is off" not in text]
    before = {path.relative_to(paths.folder): path.read_bytes() for path in paths.folder.rglob("*") if path.is_file()}
    secret = os.environ["AWS_SECRET_ACCESS_KEY"].encode()
    assert not [path for path, data in before.items() if secret in data]
    shutil.rmtree(paths.folder)
    extras = {"mode": "resume_training", "checkpoint_path": str(paths.checkpoints / "128"), "save_model": True}
    work(tmp_path, {"run_id": "run-2", "extras": {**extras, "storage_url": s3, "fastlane_video_mode": "off"}})
    assert [path.name for path in find_all(paths.checkpoints)] == ["128"]
    again = RunPaths("run-2", home)
    step, files = read_checkpoint(find_all(again.checkpoints)[0])
    StoredRun(paths, s3).fetch(all_saved=True)
    after = {path.relative_to(paths.folder): path.read_bytes() for path in paths.folder.rglob("*") if path.is_file()}
    own = ("storage.json", "worker.lock", ".stored.json", "fastlane.json", ".finished")
    assert {k: v for k, v in before.items() if k.name not in own} == {
        k: v for k, v in after.items() if k.name not in own
    }
    assert (step["step"], files) == (256, read_checkpoint(paths.checkpoints / "256")[1])


def test_a_run_that_goes_on_on_another_machine_gets_all_that_it_needs(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/store"
    args = {"env_id": "CartPole-v1", "seed": 3, "total_timesteps": 900}
    write_checkpoint(paths.checkpoints, 300, {"algo": "ppo", "args": args}, {"a": b"a"})
    paths.events.write_text("events\n")
    Upload(paths, Storage(url)).sync(last=True)
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path / "another"))
    extras = {"mode": "resume_training", "checkpoint_path": str(paths.checkpoints), "storage_url": url}
    shutil.move(paths.home, tmp_path / "gone")
    config = parse_worker_config({"run_id": "run-1", "extras": extras})
    assert (config.algo, config.seed, config.total_timesteps) == ("ppo", 3, 900)
    there = RunPaths("run-1", tmp_path / "another")
    assert there.events.read_text() == "events\n" and there.metrics.exists()
    # and with the credentials of another process
    fetch_stored(RunPaths("run-1", tmp_path / "third"), url, os.environ)
    assert find_all(RunPaths("run-1", tmp_path / "third").checkpoints)
    with pytest.raises(StoreError, match="cannot read run-1"):
        (tmp_path / "file").touch()
        fetch_stored(RunPaths("run-1", tmp_path / "third"), f"file://{tmp_path}/file", os.environ)
    with pytest.raises(ConfigError, match=r"extras.checkpoint_path: .* is not there"):
        parse_worker_config({"run_id": "run-9", "extras": {**extras, "checkpoint_path": "run-8"}})


def work(folder: Path, config: dict[str, Any]) -> None:
    file = folder / f"{config['run_id']}.json"
    file.write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(file)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://nowhere/runs", "storage_url s3://nowhere/runs: there is no bucket 'nowhere'"),
        ("s3://AKIA:hidden@lab/runs", "extras.storage_url: a s3:// URL with a login or parameters is refused"),
        ("ftp://lab/runs", "unknown scheme 'ftp'"),
    ],
)
def test_a_dry_run_refuses_a_store_in_one_line(
    s3: str, home: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path, url: str, said: str
) -> None:
    from cleanrl_worker.cli import main

    file = tmp_path / "config.json"
    config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100, "extras": {"storage_url": url}}
    file.write_text(json.dumps(config))
    assert main(["--config", str(file), "--dry-run"]) == 2
    told = capfd.readouterr().err
    assert said in told and "hidden" not in told and len(told.splitlines()) == 1
    assert not any(home.iterdir())


def test_a_dry_run_warns_of_a_store_that_does_not_answer(
    s3: str, home: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cleanrl_worker.cli import main

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("MOSAIC_STORAGE_URL", s3)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100}))
    assert main(["--config", str(file), "--dry-run"]) == 0
    assert "the server does not answer" in capfd.readouterr().err
