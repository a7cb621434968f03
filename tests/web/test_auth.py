"""Codes, cookies and the gate: pure, and in front of the real GUI and its sockets."""

import stat
from pathlib import Path
from typing import Any

import httpx
import pytest
from web_site import Site, in_a_loop
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from mosaic.web import auth
from mosaic.web.auth import Gate, Keeper, read_key

SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
LONG = 90.0  # a busy machine's answers are no refusals


def get(address: str) -> httpx.Response:
    return httpx.get(address, timeout=LONG)


def test_code_is_good_once_and_only_for_its_server() -> None:
    keeper = Keeper(b"k" * 32, "boot")
    code = keeper.new_code()
    assert not Keeper(b"k" * 32, "another boot").take_code(code)
    assert not Keeper(b"x" * 32, "boot").take_code(code)
    assert keeper.take_code(code)
    assert not keeper.take_code(code)


def test_cookie_outlives_the_server_and_is_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, later = Keeper(b"k" * 32, "one"), Keeper(b"k" * 32, "two")
    cookie = keeper.new_cookie()
    assert later.knows(cookie) and not later.take_code(cookie)
    assert not later.knows(keeper.new_code())
    monkeypatch.setattr(auth.time, "time", lambda: 1e12)
    assert not keeper.knows(cookie)


@pytest.mark.parametrize("bad", ["", "-", "a-b-c", "ff-00-", "ü", "0" * 10_000, "ffffffffff-aa-" + "0" * 40])
def test_what_is_no_code_is_refused(bad: str) -> None:
    keeper = Keeper(b"k" * 32, "boot")
    assert not keeper.take_code(bad) and not keeper.knows(bad)


def test_key_is_kept_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    key = read_key(tmp_path)
    path = tmp_path / "var" / "trainer" / "web.key"
    assert read_key(tmp_path) == key and stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"")
    assert len(read_key(tmp_path)) >= 32


def ask(headers: list[tuple[bytes, bytes]], *, kind: str = "http", method: str = "GET") -> list[Any]:
    """What the gate sends for a request; the app behind it answers 204."""

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})

    async def call() -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {}

        gate = Gate(behind, KEEPER, 8080, ["box.lab"], lambda *_, **__: None)
        scope = {"type": kind, "method": method, "path": "/runs", "raw_path": b"/runs", "query_string": b""}
        await gate({**scope, "headers": headers}, receive, send)
        return sent

    return in_a_loop(call())


KEEPER = Keeper(b"k" * 32, "boot")
COOKIE = (b"cookie", f"mosaic_8080={KEEPER.new_cookie()}".encode())


@pytest.mark.parametrize(
    "host", [b"127.0.0.1:8080", b"localhost:9999", b"[::1]:1", b"box.lab", b"BOX.lab:80", b"127.9.9.9"]
)
def test_loopback_at_any_port_and_named_hosts_are_served(host: bytes) -> None:
    assert ask([(b"host", host), COOKIE])[0]["status"] == 204
    assert ask([(b"host", host), COOKIE, (b"origin", b"http://" + host)])[0]["status"] == 204


@pytest.mark.parametrize("host", [b"", b"evil.com", b"127.0.0.1.evil.com", b"[bad", b"localhost:x", b"10.0.0.1"])
def test_other_hosts_are_refused(host: bytes) -> None:
    assert ask([(b"host", host), COOKIE])[0]["status"] == 400


@pytest.mark.parametrize(
    "origin", [b"null", b"http://evil.com", b"http://[bad", b"", b"http://localhost:1", b"file://localhost:8080"]
)
def test_foreign_and_broken_origins_are_refused_also_with_a_cookie(origin: bytes) -> None:
    headers = [(b"host", b"localhost:8080"), COOKIE, (b"origin", origin)]
    assert ask(headers)[0]["status"] == 403
    assert ask(headers, kind="websocket")[0]["type"] == "websocket.close"


def test_two_hosts_or_no_cookie_are_refused() -> None:
    assert ask([(b"host", b"localhost"), (b"host", b"evil.com"), COOKIE])[0]["status"] == 400
    assert ask([(b"host", b"localhost")], method="POST")[0]["status"] == 401
    assert ask([(b"host", b"localhost"), (b"cookie", b"mosaic_9090=" + COOKIE[1][12:])])[0]["status"] == 401


def test_code_in_the_address_signs_in_once_and_leaves_the_address(site: Site) -> None:
    url = site.new_url()
    first = get(url.replace("/?", "/runs?x=1&"))
    cookie = first.headers["set-cookie"]
    assert first.status_code == 200 and 'url=/runs?x=1"' in first.text and "code" not in first.text
    assert 'rel="icon" href="data:,"' in first.text, "another request would begin another session"
    assert all(word in cookie for word in (f"mosaic_{site.base.rpartition(':')[2]}=", "HttpOnly", "SameSite=Strict"))
    again = get(url)
    assert again.status_code == 401 and "used before" in again.text
    assert get(site.base + "/runs").status_code == 401


def test_an_address_that_was_used_leads_who_is_signed_in_to_the_page(site: Site) -> None:
    url = site.new_url()
    with httpx.Client(timeout=LONG) as client:
        assert client.get(url).status_code == 200
        again = client.get(url.replace("/?", "/system?"))
        assert again.status_code == 200 and 'url=/system"' in again.text
    assert get(url).status_code == 401, "it signs nobody else in"


def test_cookies_keep_to_our_own_pages_and_port(site: Site) -> None:
    port = site.base.rpartition(":")[2]
    with site.browser() as client:
        cookies = client.get("/system").headers.get_list("set-cookie")
        assert set(client.cookies) == {f"mosaic_{port}", f"mosaic_forms_{port}"}
    assert cookies and all("httponly" in one.lower() and "samesite=strict" in one.lower() for one in cookies)


def test_sign_in_never_leads_to_another_site(site: Site) -> None:
    code = site.new_url().partition("?")[2]
    assert 'url=/evil.com"' in get(f"{site.base}//evil.com?{code}").text


@pytest.mark.parametrize("path", ["/runs", "/_nicegui_ws/socket.io/?EIO=4&transport=polling", "/nothing"])
def test_nothing_is_served_without_a_cookie(site: Site, path: str) -> None:
    assert get(site.base + path).status_code == 401


def test_raw_socket_is_refused_without_a_cookie_and_from_a_foreign_origin(site: Site) -> None:
    address = site.base.replace("http", "ws", 1) + SOCKET
    with pytest.raises(InvalidStatus), connect(address, open_timeout=LONG):
        pass
    with site.browser() as client:
        cookie = {"Cookie": "; ".join(f"{name}={value}" for name, value in client.cookies.items())}
    more: dict[str, Any] = {"additional_headers": cookie, "open_timeout": LONG}
    with pytest.raises(InvalidStatus), connect(address, origin=Origin("http://evil.com"), **more):
        pass
    with connect(address, origin=Origin(site.base), **more) as socket:
        assert str(socket.recv(timeout=LONG)).startswith("0{")


def test_unknown_address_and_safe_headers(site: Site) -> None:
    with site.browser() as client:
        answer = client.get("/nothing/here")
    assert answer.status_code == 404 and "no such page" in answer.text
    assert answer.headers["x-frame-options"] == "SAMEORIGIN"
