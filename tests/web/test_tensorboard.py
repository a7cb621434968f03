"""TensorBoard behind our address: one process per opened run, on a socket of our own, ended when idle."""

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import psutil
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from web_site import in_a_loop

from mosaic.contract.errors import ConfigError
from mosaic.contract.paths import RunPaths
from mosaic.contract.tensorboard import ScalarWriter
from mosaic.web import tensorboard_proxy, tensorboard_server
from mosaic.web.tensorboard_server import TensorBoards, board_name, log_folder


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths("run-1", tmp_path)
    paths.create()
    writer = ScalarWriter(paths.tensorboard)
    for step in range(5):
        writer.add("charts/episodic_return", float(step), step, 1000.0 + step)
    writer.close()
    return paths


def with_boards(paths: RunPaths, act: Callable[[TensorBoards, httpx.AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        boards = TensorBoards(paths.home)

        async def answer(request: Request) -> Response:
            named = request.path_params
            return await tensorboard_proxy.answer(boards, request, named["run_id"], named.get("path", ""))

        app = Starlette(routes=[Route("/tensorboard/{run_id}/{path:path}", answer, methods=["GET", "POST"])])
        try:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://here", timeout=120.0
            ) as browser:
                await act(boards, browser)
        finally:
            await boards.close()

    # in a thread: a browser that another test opened leaves its own event loop running in this one
    in_a_loop(run())


async def until(happens: Callable[[], bool]) -> None:
    for _ in range(1200):
        if happens():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("waited 120 s")


def test_the_real_tensorboard_shows_a_runs_scalars_through_us_and_ends_when_idle(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard_server, "SWEEP_SECONDS", 0.1)
    paths.config_file.parent.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text('{"run_name": "steady </b>"}')

    async def act(boards: TensorBoards, browser: httpx.AsyncClient) -> None:
        page, again = await asyncio.gather(*(browser.get("/tensorboard/run-1/") for _ in range(2)))
        assert page.status_code == again.status_code == 200 and "TensorBoard" in page.text
        assert boards.running() == ["run-1"], "one process, however many ask at once"
        board = await boards.open("run-1")
        process = psutil.Process(board.process.pid)
        assert not [one for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
        assert stat.S_IMODE(os.stat(board.folder).st_mode) == 0o700
        assert (await browser.get("/tensorboard/run-1/index.js")).status_code == 200
        found: dict[str, object] = {}
        for _ in range(300):
            found = (await browser.get("/tensorboard/run-1/data/plugin/scalars/tags")).json()
            if found:
                break
            await asyncio.sleep(0.2)
        assert list(found) == ["steady _b"] and "charts/episodic_return" in str(found)
        boards.idle_seconds = 0.0
        await until(lambda: not boards.running() and not board.folder.exists())
        assert board.process.returncode is not None

    with_boards(paths, act)


def test_a_board_ends_with_the_process_that_opened_it(paths: RunPaths) -> None:
    async def act(boards: TensorBoards, browser: httpx.AsyncClient) -> None:
        board = await boards.open("run-1")
        assert board.process.stdin is not None
        board.process.stdin.close()  # as a killed web process leaves it
        await asyncio.wait_for(board.process.wait(), 120)
        assert boards.running() == []
        assert (await browser.get("/tensorboard/run-1/")).status_code == 200, "the next look starts another"

    with_boards(paths, act)


def test_a_run_without_event_files_says_where_its_scalars_are(tmp_path: Path) -> None:
    paths = RunPaths("run-2", tmp_path)
    with pytest.raises(ConfigError, match="Metrics"):
        log_folder(paths)

    async def act(boards: TensorBoards, browser: httpx.AsyncClient) -> None:
        for address in ("run-2/", "run%0a1/", "..%2f/", "%2e%2e%2fx/"):
            answer = await browser.get(f"/tensorboard/{address}")
            assert answer.status_code == 404 and boards.running() == []

    with_boards(paths, act)


@pytest.mark.parametrize("config", ["", "[]", '{"run_name": null}', '{"run_name": ".."}', '{"run_name": " /.. "}'])
def test_a_run_without_a_usable_name_goes_by_its_id(paths: RunPaths, config: str) -> None:
    paths.config_file.parent.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text(config)
    assert board_name(paths) == "run-1"
