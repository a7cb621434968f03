"""The cache of NiceGUI's scripts, styles and fonts in memory: each file is compressed once, not per user."""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import dataclass
from posixpath import normpath
from typing import Any

from nicegui import __version__

from mosaic.web.auth import Asgi, Receive, Scope, Send

# The content of a versioned address never changes; changing ones are left to NiceGUI.
PLACE = f"/_nicegui/{__version__}/"
CHANGING = f"{PLACE}dynamic_resources/"
# Headers of one user, such as a cookie, must not be cached for another.
KEPT_HEADERS = (b"content-type", b"cache-control", b"last-modified")
PACKED_TYPES = (b"text/", b"application/json", b"image/svg")

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class CachedAsset:
    """A file that is the same for every user, plain and compressed; `packed` is empty if compression saves nothing."""

    headers: Headers
    body: bytes
    packed: bytes

    @classmethod
    def of(cls, headers: Headers, body: bytes) -> CachedAsset:
        kind = dict(headers).get(b"content-type", b"")
        return cls(headers, body, gzip.compress(body, mtime=0) if kind.startswith(PACKED_TYPES) else b"")


class Assets:
    """Pure ASGI middleware before NiceGUI. The cache is bounded by the files of NiceGUI and its components."""

    def __init__(self, app: Asgi) -> None:
        self._app = app
        self._kept: dict[str, CachedAsset] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = dict(scope.get("headers", ()))
        path = scope.get("path", "")
        if (
            (scope["type"], scope.get("method")) != ("http", "GET")
            or not path.startswith(PLACE)
            or path.startswith(CHANGING)
            or path != normpath(path)  # a file has any number of such addresses; only one is cached
            or b"range" in asked
        ):
            await self._app(scope, receive, send)
            return
        if path not in self._kept and not await self._fetch(path, scope, receive, send):
            return
        kept = self._kept[path]
        headers, body = [*kept.headers, (b"vary", b"accept-encoding")], kept.body
        if kept.packed and b"gzip" in asked.get(b"accept-encoding", b""):
            headers, body = [*headers, (b"content-encoding", b"gzip")], kept.packed
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _fetch(self, path: str, scope: Scope, receive: Receive, send: Send) -> bool:
        """Cache the response; return False if it was not a file (and was forwarded), or the browser disconnected."""
        start: dict[str, Any] = {}
        parts: list[bytes] = []
        whole = False

        async def take(message: Any) -> None:
            nonlocal whole
            if message["type"] == "http.response.start":
                start.update(message)
            if start["status"] != 200:
                await send(message)
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))
                whole = not message.get("more_body", False)

        plain = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        await self._app({**scope, "headers": plain}, receive, take)
        if not whole:
            return False
        headers = [(name.lower(), value) for name, value in start["headers"] if name.lower() in KEPT_HEADERS]
        self._kept[path] = await asyncio.to_thread(CachedAsset.of, headers, b"".join(parts))
        return True
