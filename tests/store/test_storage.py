"""A place that a URL names: what is refused before a store is asked, and what a store says."""

from pathlib import Path

import pytest

from mosaic.contract.errors import ConfigError, StoreError
from mosaic.store import storage
from mosaic.store.storage import AwayError, MissingError, Storage, check_url, default_url

SECRET = "wJalrXUtnFEMI-K7MDENG"


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/a place/runs" if request.param == "folder" else str(request.getfixturevalue("s3"))


def test_objects_are_written_read_listed_and_removed(place: str) -> None:
    store = Storage(f"{place}/")
    assert store.url == place and store.sizes("run-1") == {}
    store.check()
    store.write("run-1/logs/a b~12.log", b"one")
    store.write("run-1/logs/a b~12.log", b"three")
    store.write("run-1/empty", b"")
    store.write("run-10/other", b"x")
    assert store.read("run-1/logs/a b~12.log") == b"three"
    assert store.sizes("run-1") == {"run-1/logs/a b~12.log": 5, "run-1/empty": 0}
    store.remove(["run-1/empty", "run-1/never-there"])
    assert store.sizes("run-1") == {"run-1/logs/a b~12.log": 5}
    with pytest.raises(MissingError):
        store.read("run-1/empty")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("/mnt/runs", "is no URL; give one such as file:///mnt/lab/runs"),
        (7, "is no URL"),
        ("flie:///mnt/runs", "unknown scheme 'flie'; did you mean 'file'?"),
        ("dropbox://x", "unknown scheme 'dropbox'; file://, s3://, gs://"),
        (f"s3://AKIA:{SECRET}@bucket/x", "a s3:// URL with a login"),
        (f"s3://bucket/x?secret={SECRET}", "a s3:// URL with a login or parameters is refused"),
        ("file://mnt/runs", "names no folder"),
        ("s3:///runs", "names no folder"),
        ("s3://", "names no folder"),
        ("s3://bucket/../other", "names no folder"),
    ],
)
def test_a_url_that_is_refused_gets_one_line_without_its_secrets(url: object, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_url(url)
    assert said in str(refused.value)
    assert SECRET not in str(refused.value) and "\n" not in str(refused.value)


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"s3:// needs s3fs, which is not installed: pip install 'mosaic-rl\[storage\]'"
    ):
        check_url("s3://bucket/runs")
    with pytest.raises(ConfigError, match="gs:// needs gcsfs, which is not installed: pip install gcsfs"):
        check_url("gs://bucket/runs")


def test_a_bucket_that_is_not_there_and_missing_credentials_are_said(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="storage_url s3://nowhere/runs: there is no bucket 'nowhere'; create it"):
        Storage("s3://nowhere/runs").check()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    with pytest.raises(ConfigError, match="no credentials; set AWS_ACCESS_KEY_ID"):
        Storage(s3).check()


def test_a_place_that_does_not_let_us_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=f"storage_url file://{tmp_path}/file/runs: cannot write"):
        Storage(f"file://{tmp_path}/file/runs").check()
    store = Storage(f"file://{tmp_path}/runs")

    def refuse(path: str, data: bytes) -> None:
        raise PermissionError(13, f"denied for {SECRET}")

    monkeypatch.setattr(store._files, "pipe_file", refuse)  # as root every folder can be written
    with pytest.raises(ConfigError, match="no permission; check the credentials in the environment") as refused:
        store.check()
    assert SECRET not in str(refused.value)


def test_a_server_that_does_not_answer_is_away_and_not_refused(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nobody listens on the port of `discard`
    with pytest.raises(AwayError, match="the server does not answer; check the network and AWS_ENDPOINT_URL"):
        Storage(s3).check()


def test_a_half_written_file_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Storage(f"file://{tmp_path}")
    store.write("run-1/a", b"old")

    def fail(*names: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store._files, "mv", fail)
    with pytest.raises(StoreError, match="No space left on device"):
        store.write("run-1/a", b"new")
    assert store.read("run-1/a") == b"old"


def test_the_homes_settings_name_a_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOSAIC_STORAGE_URL", raising=False)
    assert default_url(tmp_path) == ""
    (tmp_path / ".env").write_text("MOSAIC_STORAGE_URL=s3://bucket/runs\n")
    assert default_url(tmp_path) == "s3://bucket/runs"
    monkeypatch.setenv("MOSAIC_STORAGE_URL", "none")
    assert default_url(tmp_path) == ""
