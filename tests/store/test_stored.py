"""A run in a store and back: byte for byte, whole checkpoints only, whenever the writer is killed."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract.checkpoints import (
    PINNED,
    find_all,
    prune,
    read_checkpoint,
    sealed,
    write_checkpoint,
    write_segment,
)
from mosaic.contract.errors import StoreError
from mosaic.contract.paths import RunPaths
from mosaic.store import stored
from mosaic.store.manifest import read_manifest, write_manifest
from mosaic.store.storage import Storage
from mosaic.store.stored import StoredRun, ensure, fetch_newest, url_of
from mosaic.store.upload import TakenOver, Upload

RUN = "run-1"
POLICY = "runs/CartPole-v1__ppo__1__1700/ppo.cleanrl_model"


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/store" if request.param == "folder" else str(request.getfixturevalue("s3"))


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOSAIC_STORAGE_URL", raising=False)


@pytest.fixture
def folder_url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run as an off-policy training leaves it."""
    paths = RunPaths(RUN, tmp_path / "home")
    paths.create()
    write(paths, "metrics.jsonl", b'{"step": 1, "time": 1.0}\n')
    write(paths, "logs/worker.jsonl", b'{"event": "run_started"}\n')
    write(paths, "tensorboard/events.out.tfevents.1", os.urandom(300))
    write(paths, POLICY, os.urandom(5000))
    write(paths, f"{POLICY}.json", b'{"algo": "ppo"}')
    write(paths, "logs/cleanrl.stdout.log", b"")
    write(paths, "logs/worker.lock", b"1")
    write(paths, "fastlane.json", b"{}")
    write(paths, ".hidden", b"being written")
    save(paths, 100, score=1.0)
    return paths


def write(paths: RunPaths, name: str, data: bytes) -> None:
    path = paths.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def save(paths: RunPaths, step: int, **more: Any) -> Path:
    """A checkpoint with a segment of replay memory of its own, and all segments before it."""
    folder = paths.checkpoints / "replay"
    earlier = [
        segment
        for path in find_all(paths.checkpoints)[:1]
        for segment in read_checkpoint(path)[0]["replay"]["segments"]
    ]
    own = write_segment(folder, step - 100, step, f"rows up to {step}".encode() * 10)
    document = {"args": {"env_id": "CartPole-v1"}, "replay": {"segments": [*earlier, own]}, **more}
    return write_checkpoint(paths.checkpoints, step, document, {"state.safetensors": os.urandom(1000), "b": b"two"})


def contents(paths: RunPaths) -> dict[str, bytes]:
    left_out = ("storage.json", "fastlane.json", "logs/worker.lock")
    found = {path.relative_to(paths.folder).as_posix(): path for path in paths.folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name not in left_out and "/." not in f"/{name}"}


def test_everything_comes_back_byte_for_byte(paths: RunPaths, place: str, tmp_path: Path) -> None:
    save(paths, 200)
    (paths.checkpoints / "100" / PINNED).touch()
    assert Upload(paths, Storage(place)).sync(last=True) == []
    other = RunPaths(RUN, tmp_path / "other")
    heard: list[tuple[int, int]] = []
    assert fetch_newest(other, place, lambda *numbers: heard.append(numbers)) == 200
    assert heard[-1][0] == heard[-1][1] > 5000
    assert [path.name for path in find_all(other.checkpoints)] == ["200"]
    StoredRun(other, place).fetch(all_saved=True)
    assert contents(other) == contents(paths)
    assert (other.folder / POLICY).stat().st_mtime == pytest.approx((paths.folder / POLICY).stat().st_mtime, abs=1e-3)
    for path in find_all(other.checkpoints):
        read_checkpoint(path)


def test_a_growing_file_is_sent_in_few_parts_and_comes_back_whole(
    paths: RunPaths, folder_url: str, tmp_path: Path
) -> None:
    sent: list[int] = []
    upload = Upload(paths, Storage(folder_url), moved=sent.append)
    upload.sync()
    before, total = sum(sent), 0
    for number in range(60):
        with paths.metrics.open("ab") as file:
            total += file.write(f'{{"step": {number}}}\n'.encode() * 20)
        upload.sync()
    manifest = read_manifest(Storage(folder_url), RUN)
    assert manifest is not None and len(manifest.files["metrics.jsonl"].chunks) <= 8
    assert sum(sent) - before < 8 * total
    paths.metrics.write_bytes(b"rewritten\n")  # neither grown nor the same
    upload.sync()
    upload.sync()
    objects = [name for name in Storage(folder_url).sizes(RUN) if "/metrics.jsonl~" in name]
    assert len(objects) == 1
    other = RunPaths(RUN, tmp_path / "other")
    fetch_newest(other, folder_url)
    assert other.metrics.read_bytes() == b"rewritten\n"


def test_what_is_pruned_here_goes_from_the_store_and_nothing_else_does(paths: RunPaths, place: str) -> None:
    store = Storage(place)
    upload = Upload(paths, store)
    for step in (200, 300, 400):
        save(paths, step, score=0.5)
        upload.sync()
    prune(paths.checkpoints, None, 400)
    upload.sync()
    upload.sync()
    manifest = read_manifest(store, RUN)
    assert manifest is not None
    assert set(manifest.checkpoints) == {f"checkpoints/{step}" for step in (100, 300, 400)}  # 100 is the best
    assert set(store.sizes(RUN)) == {*manifest.objects(), f"{RUN}/manifest.json"}
    shutil.rmtree(paths.checkpoints)  # that is no pruning
    upload.sync(last=True)
    assert read_manifest(store, RUN).checkpoints == manifest.checkpoints  # type: ignore[union-attr]


class Keeping(Storage):
    """A store that lets us write and not remove."""

    def remove(self, names: Any) -> None:
        raise StoreError("no permission")


def test_a_store_that_lets_us_remove_nothing_stores_all_the_same(paths: RunPaths, folder_url: str) -> None:
    upload = Upload(paths, Keeping(folder_url))
    for step in (200, 300, 400, 500):
        save(paths, step)
        prune(paths.checkpoints, None, step)
        assert upload.sync() == []
    manifest = read_manifest(Storage(folder_url), RUN)
    assert manifest is not None and set(manifest.checkpoints) == {f"checkpoints/{step}" for step in (100, 400, 500)}
    assert len(Storage(folder_url).sizes(RUN)) > len(list(manifest.objects())) + 1


def test_a_run_that_goes_on_elsewhere_prunes_what_it_never_had(
    paths: RunPaths, folder_url: str, tmp_path: Path
) -> None:
    save(paths, 200, score=0.5)
    save(paths, 300, score=0.5)
    first = Upload(paths, Storage(folder_url))
    first.sync()
    other = RunPaths(RUN, tmp_path / "other")
    assert fetch_newest(other, folder_url) == 300
    second = Upload(other, Storage(folder_url))
    for step in (400, 500):
        save(other, step, score=0.7)
        prune(other.checkpoints, None, step)
        second.sync()
    with pytest.raises(TakenOver, match=f"another process stores run {RUN}"):
        save(paths, 350)
        first.sync()
    manifest = read_manifest(Storage(folder_url), RUN)
    assert manifest is not None  # of the earlier machine's only its best is left
    assert set(manifest.checkpoints) == {f"checkpoints/{step}" for step in (100, 400, 500)}


class Dying(Storage):
    """A store whose writer dies at one of its writes."""

    def __init__(self, url: str, writes: int) -> None:
        super().__init__(url)
        self.writes = writes

    def write(self, name: str, data: bytes) -> None:
        self.writes -= 1
        if self.writes < 0:
            raise KeyboardInterrupt
        super().write(name, data)


def test_a_writer_that_dies_at_any_write_leaves_whole_checkpoints_and_the_next_one_goes_on(
    paths: RunPaths, folder_url: str, tmp_path: Path
) -> None:
    Upload(paths, Storage(folder_url)).sync()
    save(paths, 200)
    shutil.rmtree(paths.checkpoints / "100")
    save(paths, 100, score=2.0)  # the same step once more, with other bytes
    seen, left = [], []
    for writes in range(100):
        shutil.copytree(tmp_path / "store", tmp_path / f"store-{writes}")
        url = f"file://{tmp_path}/store-{writes}"
        try:
            Upload(paths, Dying(url, writes)).sync()
        except KeyboardInterrupt:
            pass
        else:
            break
        reader, final = (RunPaths(RUN, tmp_path / f"{name}-{writes}") for name in ("reader", "final"))
        StoredRun(reader, url).fetch(all_saved=True)
        seen.append({path.name: read_checkpoint(path)[0]["score"] for path in find_all(reader.checkpoints)})
        sent: list[int] = []
        Upload(paths, Storage(url), moved=sent.append).sync()
        left.append(sum(sent))
        StoredRun(final, url).fetch(all_saved=True)
        assert contents(final) == contents(paths)
    assert left == sorted(left, reverse=True) and left[-1] == 0  # what had arrived is not sent again
    assert all(found in ({"100": 1.0}, {"100": 2.0}) for found in seen)  # the last write is what shows 200
    assert seen[0] == {"100": 1.0} and seen[-1] == {"100": 2.0}


def test_a_damaged_checkpoint_is_not_stored_and_is_told(paths: RunPaths, folder_url: str) -> None:
    path = save(paths, 200)
    (path / "b").write_bytes(b"2wo")
    upload = Upload(paths, Storage(folder_url))
    for _ in range(2):
        assert upload.sync() == ["checkpoints/200 is not stored: b does not match its checksum"]
    manifest = read_manifest(Storage(folder_url), RUN)
    assert manifest is not None and set(manifest.checkpoints) == {"checkpoints/100"}


def test_bytes_that_changed_in_the_store_are_not_taken(
    paths: RunPaths, folder_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(paths, 200)
    Upload(paths, Storage(folder_url)).sync(last=True)
    other = RunPaths(RUN, tmp_path / "first")
    damage(tmp_path / "store", 200)
    assert fetch_newest(other, folder_url) == 100  # the one before it
    assert (
        "checkpoints/200/state.safetensors of run run-1 does not match its checksum; falling" in capsys.readouterr().err
    )
    damage(tmp_path / "store", 100)
    other = RunPaths(RUN, tmp_path / "other")
    with pytest.raises(StoreError, match=r"checkpoints/100/state.safetensors of run run-1 does not match its checksum"):
        fetch_newest(other, folder_url)
    assert find_all(other.checkpoints) == []


def damage(store: Path, step: int) -> None:
    for path in (store / RUN / "checkpoints" / str(step)).glob("state.safetensors~*"):
        path.write_bytes(b"x" * path.stat().st_size)


def test_a_stored_path_that_leads_out_of_the_folder_is_refused(
    paths: RunPaths, folder_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = Upload(paths, Storage(folder_url))
    upload.sync()
    manifest = upload._manifest
    manifest.files["../../evil"] = manifest.files["metrics.jsonl"]
    upload._dirty = True
    upload._write()
    with pytest.raises(StoreError, match=r"is damaged: files: .* not '\.\./\.\./evil'"):
        StoredRun(RunPaths(RUN, tmp_path / "other"), folder_url).fetch()
    assert not (tmp_path / "other" / "var" / "trainer" / "evil").exists()


def test_a_reader_gets_just_what_it_asks_for(paths: RunPaths, folder_url: str, tmp_path: Path) -> None:
    save(paths, 200)
    Upload(paths, Storage(folder_url)).sync(last=True)
    home = tmp_path / "other"
    other = RunPaths(RUN, home)
    other.config_file.parent.mkdir(parents=True)
    other.config_file.write_text(
        f'{{"metadata": {{"worker": {{"config": {{"extras": {{"storage_url": "{folder_url}"}}}}}}}}}}'
    )
    assert url_of(other) == folder_url
    ensure(other.folder / POLICY, home)
    assert set(contents(other)) == {POLICY, f"{POLICY}.json"}
    ensure(other.checkpoints / "100", home)
    assert [path.name for path in find_all(other.checkpoints)] == ["100"]
    ensure(other.folder, home)
    assert [path.name for path in find_all(other.checkpoints)] == ["200", "100"]
    ensure(other.tensorboard, home)
    assert any(other.tensorboard.iterdir()) and not other.metrics.exists()
    ensure(other.folder / "never-there", home)
    ensure(tmp_path / "elsewhere", home)
    assert not (other.folder / "never-there").exists()


def test_a_copy_follows_the_store_and_what_was_made_here_is_never_overwritten(
    paths: RunPaths, folder_url: str, tmp_path: Path
) -> None:
    upload = Upload(paths, Storage(folder_url))
    upload.sync()
    other = RunPaths(RUN, tmp_path / "other")
    write(other, "notes.md", b"mine")
    write(paths, "notes.md", b"theirs")
    fetch_newest(other, folder_url)
    write(other, "logs/worker.jsonl", b"went on here\n")
    for name in ("metrics.jsonl", "logs/worker.jsonl"):
        with (paths.folder / name).open("ab") as file:
            file.write(b"more\n")
    upload.sync()
    StoredRun(other, folder_url).fetch()
    assert other.metrics.read_bytes() == paths.metrics.read_bytes()
    assert other.events.read_bytes() == b"went on here\n"
    assert other.people_notes.read_bytes() == b"mine"


def test_a_store_that_is_away_is_no_trouble_where_a_checkpoint_is_here(
    paths: RunPaths, folder_url: str, tmp_path: Path
) -> None:
    Upload(paths, Storage(folder_url)).sync(last=True)
    home = tmp_path / "other"
    other = RunPaths(RUN, home)
    fetch_newest(other, folder_url)
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("in the way")
    ensure(other.folder, home, folder_url)
    with pytest.raises(StoreError, match=f"{folder_url}: cannot read"):
        ensure(other.checkpoints / "999", home, folder_url)


def test_what_a_store_never_had_is_passed_over(folder_url: str, tmp_path: Path) -> None:
    paths = RunPaths(RUN, tmp_path / "home")
    assert fetch_newest(paths, folder_url) is None
    ensure(paths.folder, tmp_path / "home", folder_url)
    assert not paths.folder.exists() and stored.url_of(paths) == ""


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("logs/5", "logs/5/state.json"),
        ("checkpoints/5", "logs/worker.jsonl"),
        ("checkpoints/5", "checkpoints/6/state.json"),
        ("checkpoints/5", "checkpoints/5/deeper/state.json"),
    ],
)
def test_a_manifest_chooses_no_other_places_for_a_checkpoint(
    name: str, file: str, paths: RunPaths, folder_url: str, tmp_path: Path
) -> None:
    upload = Upload(paths, Storage(folder_url))
    upload.sync()
    manifest = upload._manifest
    manifest.files[file] = manifest.files["metrics.jsonl"]
    kept = manifest.checkpoints["checkpoints/100"]
    manifest.checkpoints[name] = type(kept)(5, kept.saved_at + 1, (file,))
    write_manifest(Storage(folder_url), manifest)
    found = read_manifest(Storage(folder_url), RUN)
    assert found is not None and set(found.checkpoints) == {"checkpoints/100"}


@pytest.mark.parametrize("name", ["storage.json", "fastlane.json", "logs/exit.json"])
def test_a_store_brings_no_file_that_speaks_for_this_machine(
    name: str, paths: RunPaths, folder_url: str, tmp_path: Path
) -> None:
    upload = Upload(paths, Storage(folder_url))
    upload.sync()
    upload._manifest.files[name] = upload._manifest.files["metrics.jsonl"]
    write_manifest(Storage(folder_url), upload._manifest)
    with pytest.raises(StoreError, match="is refused"):
        StoredRun(RunPaths(RUN, tmp_path / "other"), folder_url).fetch()


def test_a_manifest_of_another_run_or_nested_without_end_is_damaged(paths: RunPaths, folder_url: str) -> None:
    Upload(paths, Storage(folder_url)).sync()
    storage = Storage(folder_url)
    storage.write("run-2/manifest.json", storage.read(f"{RUN}/manifest.json"))
    with pytest.raises(StoreError, match="is damaged: it is of run run-1"):
        read_manifest(storage, "run-2")
    storage.write(f"{RUN}/manifest.json", sealed(b'{"format": 1, "files": ' + b"[" * 10_000))
    with pytest.raises(StoreError, match="nested deeper than 64 levels"):
        read_manifest(storage, RUN)
