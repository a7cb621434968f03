"""A run's files: shown, downloaded, in parts; nothing outside the run's folder, however it is spelled."""

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from mosaic.contract.paths import RunPaths
from mosaic.web.files import file_response


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths("run-1", tmp_path)
    paths.create()
    paths.configs_folder.mkdir(parents=True)
    paths.config_file.write_text('{"a": 1}')
    paths.stdout_log.write_text("hello\n")
    (paths.videos / "run-1-eval").mkdir(parents=True)
    (paths.videos / "run-1-eval" / "0.mp4").write_bytes(bytes(range(100)))
    (paths.folder / "page.html").write_text("<script>alert(1)</script>")
    (tmp_path / "secret.txt").write_text("secret")
    (paths.folder / "out").symlink_to(tmp_path)
    (paths.folder / "out.txt").symlink_to(tmp_path / "secret.txt")
    (paths.folder / "in.txt").symlink_to(paths.stdout_log)
    return paths


@pytest.fixture
def browser(paths: RunPaths) -> TestClient:
    async def answer(request: Request) -> Response:
        named = request.path_params
        return file_response(paths.home, named["run_id"], named["path"], download="download" in request.query_params)

    return TestClient(Starlette(routes=[Route("/files/{run_id}/{path:path}", answer)]))


def test_files_of_the_run_are_shown_or_downloaded(browser: TestClient) -> None:
    shown = browser.get("/files/run-1/logs/cleanrl.stdout.log")
    assert shown.text == "hello\n" and shown.headers["content-type"].startswith("text/plain")
    assert (
        shown.headers["content-disposition"].startswith("inline")
        and shown.headers["x-content-type-options"] == "nosniff"
    )
    assert browser.get("/files/run-1/in.txt").text == "hello\n", "a link inside the folder is fine"
    assert "attachment" in browser.get("/files/run-1/in.txt?download=1").headers["content-disposition"]
    assert browser.get("/files/run-1/config-run-1.json").json() == {"a": 1}


def test_a_video_is_sent_in_the_parts_that_are_asked_for(browser: TestClient) -> None:
    part = browser.get("/files/run-1/videos/run-1-eval/0.mp4", headers={"Range": "bytes=10-19"})
    assert (
        part.status_code == 206 and part.content == bytes(range(10, 20)) and part.headers["content-type"] == "video/mp4"
    )


def test_what_could_hold_a_script_is_only_downloaded(browser: TestClient) -> None:
    page = browser.get("/files/run-1/page.html")
    assert page.headers["content-disposition"].startswith("attachment")
    assert (
        page.headers["content-type"] == "application/octet-stream"
        and "sandbox" in page.headers["content-security-policy"]
    )


@pytest.mark.parametrize(
    "path",
    [
        "run-1/../../../../secret.txt",
        "run-1/%2e%2e/%2e%2e/%2e%2e/%2e%2e/secret.txt",
        "run-1/%252e%252e/%252e%252e/%252e%252e/%252e%252e/secret.txt",
        "run-1/%25252e%25252e/secret.txt",
        "run-1/logs/..%2f..%2f..%2f..%2f..%2fsecret.txt",
        "run-1/..%5c..%5c..%5c..%5csecret.txt",
        "run-1/%2fetc%2fpasswd",
        "run-1//etc/passwd",
        "run-1/out/secret.txt",
        "run-1/out.txt",
        "run-1/logs",
        "run-1/no-such-file",
        "run-1/%00",
        "run-1/" + "a" * 5000,
        "%2e%2e/x",
        "run-2/logs/cleanrl.stdout.log",
        "run%0a-1/logs/cleanrl.stdout.log",
    ],
)
def test_nothing_outside_the_runs_folder_is_opened(browser: TestClient, path: str) -> None:
    answer = browser.get(f"/files/{path}")
    assert answer.status_code == 404 and "secret" not in answer.text and "root:" not in answer.text
