"""NiceGUI's scripts and styles, kept in memory: packed once, whole, and nobody's cookie among them."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from nicegui import __version__
from web_site import Site, in_a_loop

from mosaic.web.assets import Assets
from mosaic.web.auth import Receive, Scope, Send

SCRIPT = f"/_nicegui/{__version__}/static/nicegui.js"


@pytest.fixture(scope="module")
def browser(site: Site) -> Iterator[httpx.Client]:
    with site.browser() as client:
        yield client


def test_a_script_comes_the_same_again_packed_and_to_be_kept(browser: httpx.Client) -> None:
    first, again = (browser.get(SCRIPT) for _ in range(2))
    assert first.text == again.text and "function createApp" in again.text
    assert again.headers["content-encoding"] == "gzip" and "immutable" in again.headers["cache-control"]
    assert again.headers["content-type"].startswith("text/javascript")
    assert "set-cookie" not in first.headers and "set-cookie" not in again.headers
    plain = browser.get(SCRIPT, headers={"accept-encoding": "identity"})
    assert plain.text == first.text and "content-encoding" not in plain.headers


def test_what_is_no_file_is_answered_as_before(browser: httpx.Client, site: Site) -> None:
    assert browser.get(SCRIPT + "x").status_code == 404
    assert browser.get(SCRIPT, headers={"range": "bytes=0-9"}).status_code == 206
    assert httpx.get(site.base + SCRIPT, timeout=60.0).status_code == 401, "only for those who are signed in"


def test_a_file_is_kept_under_one_address_however_many_it_has() -> None:
    fetched: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        fetched.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"script"})

    async def nothing(*_message: Any) -> dict[str, Any]:
        return {}

    async def ask(path: str) -> None:
        await assets({"type": "http", "method": "GET", "path": path, "headers": []}, nothing, nothing)

    assets = Assets(app)
    odd = SCRIPT.replace("/static/", "/static/any/../")
    for path in (SCRIPT, SCRIPT, odd, odd):
        in_a_loop(ask(path))
    assert fetched == [SCRIPT, odd, odd]


def test_an_answer_that_was_cut_off_is_not_kept() -> None:
    parts = [b"half"]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"font/woff2"), (b"set-cookie", b"of=one")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": parts[0], "more_body": True})
        for part in parts[1:]:
            await send({"type": "http.response.body", "body": part})

    async def ask() -> list[Any]:
        said: list[Any] = []

        async def send(message: Any) -> None:
            said.append(message)

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        await assets({"type": "http", "method": "GET", "path": SCRIPT, "headers": []}, receive, send)
        return said

    assets = Assets(app)
    assert in_a_loop(ask()) == []
    parts.append(b" and half")
    start, body = in_a_loop(ask())
    assert body["body"] == b"half and half" and (b"content-length", b"13") in start["headers"]
    assert all(name != b"set-cookie" for name, _ in start["headers"])
