"""mosaic fetch, and the commands that fetch what they need: a run whose files only its store has works the same."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract.checkpoints import find_all, write_checkpoint
from mosaic.contract.paths import RunPaths
from mosaic.store.storage import Storage
from mosaic.store.upload import Upload
from mosaic.trainer.rpc.client import Client

SMALL = {
    "total_timesteps": 256,
    "num_envs": 2,
    "num_steps": 32,
    "checkpoint_every": 128,
    "checkpoint_episodes": 0,
    "save_model": "true",
}


def test_a_stored_run_is_resumed_evaluated_and_read_where_its_files_are_gone(
    mosaic: Callable[..., Any], client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/store"
    monkeypatch.setenv("MOSAIC_STORAGE_URL", url)
    words = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    trained = mosaic("train", "ppo", "CartPole-v1", *words, "--follow")
    assert trained.code == 0, trained
    monkeypatch.delenv("MOSAIC_STORAGE_URL")
    run = client.get_run(trained.out.split()[1].rstrip(":"))
    assert run.payload["metadata"]["worker"]["config"]["extras"]["storage_url"] == url
    assert not [text for text in run.warnings if "checkpoint_every=" not in text]
    before = {path.name: path.read_bytes() for path in Path(run.folder).rglob("*.cleanrl_model")}
    shutil.rmtree(run.folder)
    resumed = mosaic("resume", run.run_id, "--additional-timesteps", "64", "--dry-run", "--follow")
    assert resumed.code == 0, resumed
    assert [path.name for path in find_all(Path(run.folder, "checkpoints"))] == ["256"]
    judged = mosaic("eval", run.run_id, "--episodes", "1", "--dry-run", "--follow")
    assert judged.code == 0, judged
    fetched = {path.name: path.read_bytes() for path in Path(run.folder).rglob("*.cleanrl_model")}
    assert fetched.items() <= before.items() and len(fetched) == 1
    errors = mosaic("logs", run.run_id, "--stderr")
    assert errors.code == 0 and Path(run.folder, "logs", "cleanrl.stderr.log").exists(), errors
    read = mosaic("logs", run.run_id)
    assert read.code == 0 and Path(run.folder, "logs", "cleanrl.stdout.log").exists(), read
    told = json.loads(mosaic("fetch", run.run_id, "--all", "--json").out)
    assert told["url"] == url and told["folder"] == run.folder and sorted(told["checkpoints"]) == [128, 256]
    assert (Path(run.folder) / "metrics.jsonl").stat().st_size > 0
    deleted = mosaic("delete", run.run_id, "--yes")
    assert f"its copy in {url} stays" in deleted.out and Storage(url).sizes(run.run_id)


def test_a_run_that_no_registry_here_knows_is_fetched_by_its_id(
    mosaic: Callable[..., Any], place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOSAIC_STORAGE_URL", raising=False)
    paths, url = RunPaths("other-run", tmp_path / "elsewhere"), f"file://{tmp_path}/store"
    paths.create()
    paths.metrics.write_bytes(b"{}\n")
    write_checkpoint(paths.checkpoints, 1000, {"args": {}}, {"a": b"a"})
    Upload(paths, Storage(url)).sync(last=True)
    told = mosaic("fetch", "other-run", "--from", url)
    assert told.code == 0 and "with checkpoints of step 1,000" in told.out, told
    assert RunPaths("other-run", place.home).metrics.read_bytes() == b"{}\n"
    for words, said in (
        (["no-such-run"], "no run's id is, starts or ends with"),
        (["no-such-run", "--from", url], f"{url} has no run no-such-run"),
        (["other-run", "--from", "s3://AKIA:hidden@x"], "a s3:// URL with a login or parameters is refused"),
    ):
        refused = mosaic("fetch", *words)
        assert refused.code == 2 and said in refused.err and "hidden" not in refused.err
        assert len(refused.err.splitlines()) == 1


def test_a_run_that_keeps_no_copy_says_how_to_name_a_store(
    mosaic: Callable[..., Any], start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOSAIC_STORAGE_URL", raising=False)
    told = mosaic("fetch", start(episodes=1).run_id)
    assert told.code == 2 and "keeps no copy that is known here; name its store: mosaic fetch" in told.err
