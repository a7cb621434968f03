"""Authentication of the GUI: one-time codes, session cookies, the gate in front of every request and socket."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import html
import ipaddress
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from mosaic.contract.errors import storage_error

CODE_SECONDS = 24 * 3600.0
COOKIE_SECONDS = 30 * 24 * 3600.0
# A browser sends a few hundred bytes; a flood of used codes must not fill the memory.
MOST_USED_CODES = 10_000

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


def read_key(home: Path) -> bytes:
    """Return the GUI's key, which signs codes and cookies; created at the first start, readable only by its owner."""
    path = home / "var" / "trainer" / "web.key"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file:
                file.write(base64.urlsafe_b64encode(secrets.token_bytes(32)))
                file.flush()
                os.fsync(file.fileno())
        path.chmod(0o600)
        key = path.read_bytes().strip()
        if len(key) < 32:  # a crash left it empty
            path.unlink()
            return read_key(home)
    except OSError as error:
        raise storage_error(path, error) from None
    return key


class Keeper:
    """The issuer and verifier of codes and cookies. A code is valid for one sign-in at process `boot`, for a day."""

    def __init__(self, key: bytes, boot: str) -> None:
        self._key, self._boot = key, boot
        self._used: dict[str, float] = {}

    def new_code(self) -> str:
        return self._signed("code", CODE_SECONDS)

    def take_code(self, code: str) -> bool:
        """Return True if the code is valid; it is invalid afterwards."""
        if not self._holds("code", code) or code in self._used:
            return False
        now = time.time()
        self._used = {old: until for old, until in self._used.items() if until > now}
        if len(self._used) >= MOST_USED_CODES:
            return False
        self._used[code] = now + CODE_SECONDS
        return True

    def new_cookie(self) -> str:
        return self._signed("cookie", COOKIE_SECONDS)

    def knows(self, cookie: str) -> bool:
        return self._holds("cookie", cookie)

    def _signed(self, kind: str, seconds: float) -> str:
        body = f"{int(time.time() + seconds):x}-{secrets.token_hex(8)}"
        return f"{body}-{self._mark(kind, body)}"

    def _holds(self, kind: str, text: str) -> bool:
        body, _, mark = text.rpartition("-")
        if not text.isascii() or not hmac.compare_digest(mark, self._mark(kind, body)):
            return False
        return int(body.partition("-")[0], 16) > time.time()

    def _mark(self, kind: str, body: str) -> str:
        # A cookie outlives the server; a code does not, so that a code used before a restart stays invalid.
        boot = self._boot if kind == "code" else ""
        return hmac.new(self._key, f"{kind}|{boot}|{body}".encode(), hashlib.sha256).hexdigest()[:40]


class Gate:
    """Pure ASGI middleware before everything, websockets and mounts included: checks Host, Origin, then cookie."""

    def __init__(
        self, app: Asgi, keeper: Keeper, port: int, allow_hosts: Collection[str], note: Callable[..., None]
    ) -> None:
        self._app, self._keeper, self._note = app, keeper, note
        self._cookie = f"mosaic_{port}"
        self._hosts = frozenset(host.lower().strip("[]") for host in allow_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        host = _only(headers, b"host")
        if not self._allows(host):
            await self._refuse(scope, send, 400, f"This address is not served: {host or 'no host named'}.", HOST_HELP)
        elif not _same_origin(headers, host):
            await self._refuse(scope, send, 403, "The request comes from another site and is refused.", "")
        elif self._keeper.knows(_cookies(headers).get(self._cookie, "")):
            if (
                scope["type"] == "http"
                and scope["method"] == "GET"
                and "code=" in scope["query_string"].decode("latin-1")
            ):
                # A second sign-in consumes its code and drops it from the address; a used address is harmless.
                await self._enter(scope, send, known=True)
            else:
                await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "http" and scope["method"] == "GET":
            await self._enter(scope, send)
        else:
            await self._refuse(scope, send, 401, "You are not signed in.", SIGN_IN_HELP)

    async def _enter(self, scope: Scope, send: Send, *, known: bool = False) -> None:
        """Exchange the code in the address for a cookie, and continue to the same address without it."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        code = next((value for name, value in query if name == "code"), "")
        if not self._keeper.take_code(code) and not known:
            why = "This code was used before, or is too old, or is not ours." if code else "You are not signed in."
            self._note("ui.sign_in_refused", why=why)
            await self._refuse(scope, send, 401, why, SIGN_IN_HELP)
            return
        if not known:
            self._note("ui.signed_in", address=(scope.get("client") or ("?",))[0])
        rest = urlencode([(name, value) for name, value in query if name != "code"])
        # One slash at the start: `//elsewhere` would be another site.
        path = "/" + scope.get("raw_path", b"/").decode("latin-1").partition("?")[0].lstrip("/\\")
        target = html.escape(path + (f"?{rest}" if rest else ""), quote=True)
        cookie = (
            f"{self._cookie}={self._keeper.new_cookie()}; Path=/; Max-Age={int(COOKIE_SECONDS)}; "
            "HttpOnly; SameSite=Strict"
        )
        # A page instead of a redirect: after a redirect from another site's link the browser would withhold the cookie.
        # Without an inline icon the browser would request one in parallel, and each response would begin a session: a
        # form filled in under one session would be missing under the other.
        body = (
            f'<!doctype html><link rel="icon" href="data:,"><meta http-equiv="refresh" content="0;url={target}">'
            f'<p><a href="{target}">Go on</a>'
        )
        await _answer(send, 200, body, [(b"set-cookie", cookie.encode())])

    async def _refuse(self, scope: Scope, send: Send, status: int, text: str, help_text: str) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": text[:100]})
            return
        await _answer(send, status, page(text, help_text), [])

    def _allows(self, host: str) -> bool:
        """Return True for loopback names at any port (an ssh tunnel changes it), and for the allowed hosts."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            _ = urlsplit(f"//{host}").port
        except ValueError:
            return False
        if name in self._hosts or name == "localhost":
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False


HOST_HELP = "Use 127.0.0.1 or localhost (an ssh tunnel may have any port), or start with: mosaic up --allow-host NAME"
SIGN_IN_HELP = "Type `mosaic url` where MOSAIC runs and open the address that it prints. It is good for one sign-in."


def page(text: str, help_text: str) -> str:
    """Return a page for users who are not signed in; it needs nothing behind the gate."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>MOSAIC</title>'
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:18vh auto;padding:0 1.5rem}"
        "h1{font-size:1.3rem}@media(prefers-color-scheme:dark){body{background:#121417;color:#e6e6e6}}</style>"
        f"<h1>MOSAIC</h1><p><strong>{html.escape(text)}</strong></p><p>{html.escape(help_text)}</p></html>"
    )


def _same_origin(headers: list[tuple[bytes, str]], host: str) -> bool:
    """Return True if the request's origin is this site, or it has none (a plain GET)."""
    origins = [value for name, value in headers if name == b"origin"]
    if not origins:
        return True
    try:
        origin = urlsplit(origins[0])
        return len(origins) == 1 and origin.scheme in ("http", "https") and origin.netloc.lower() == host.lower()
    except ValueError:
        return False


def _only(headers: list[tuple[bytes, str]], wanted: bytes) -> str:
    values = [value for name, value in headers if name == wanted]
    return values[0] if len(values) == 1 else ""


def _cookies(headers: list[tuple[bytes, str]]) -> dict[str, str]:
    pairs = [pair.partition("=") for name, value in headers if name == b"cookie" for pair in value.split(";")]
    return {name.strip(): value.strip() for name, _, value in pairs}


def _with_headers(send: Send) -> Send:
    """Add headers against framing, content sniffing and referrer leaks."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *SAFE_HEADERS]}
        await send(message)

    return sending


SAFE_HEADERS = [
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
]


async def _answer(send: Send, status: int, body: str, headers: list[tuple[bytes, bytes]]) -> None:
    data = body.encode()
    plain = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(data)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": [*plain, *SAFE_HEADERS, *headers]})
    await send({"type": "http.response.body", "body": data})
