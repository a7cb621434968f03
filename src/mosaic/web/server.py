"""The web process: its address, the card by which `mosaic url` finds it, its life from start to signal."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from mosaic.contract import channel
from mosaic.contract.errors import ConfigError, NoDaemonError, TrainerError
from mosaic.contract.fields import WEB_CARD
from mosaic.contract.identity import own_identity
from mosaic.contract.paths import make_var, write_atomic
from mosaic.web.auth import Keeper, read_key

HOST, DEFAULT_PORT = "127.0.0.1", 8080
# Open pages hold sockets that would wait forever.
CLOSE_SECONDS = 2


class WebSite:
    """The GUI of one home, bound to a port before it serves, so that a taken port fails immediately."""

    def __init__(self, home: Path, port: int | None = None, allow_hosts: Collection[str] = ()) -> None:
        self.home = home.resolve()
        make_var(self.home)
        self._allow_hosts = allow_hosts
        self._socket = _bind(port)
        self.port: int = self._socket.getsockname()[1]
        self._boot = secrets.token_hex(8)
        self._keeper = Keeper(read_key(self.home), self._boot)
        self._server: Any = None
        self.stopped = False

    @property
    def base(self) -> str:
        return f"http://{HOST}:{self.port}"

    def new_url(self) -> str:
        """Return an address that signs in one user."""
        return f"{self.base}/?code={self._keeper.new_code()}"

    def serve(self) -> None:
        """Serve until `stop`; signals are left to the caller."""
        os.environ["NICEGUI_STORAGE_PATH"] = str(self.home / "var" / "trainer" / "web")  # read at the import of NiceGUI
        import uvicorn

        from mosaic.web.app import build
        from mosaic.web.context import Web

        web = Web(self.home)
        web.happenings.note("ui.started", address=self.base, pid=os.getpid())
        storage_secret = hashlib.sha256(b"storage|" + read_key(self.home)).hexdigest()
        app = build(web, self._keeper, self.port, self._allow_hosts, storage_secret)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=CLOSE_SECONDS)
        self._server = uvicorn.Server(config)
        self._server.should_exit = self.stopped
        self._write_card()
        try:
            asyncio.run(self._server.serve(sockets=[self._socket]))
        finally:
            with contextlib.suppress(OSError):
                if read_web_card(self.home).get("pid") == os.getpid():
                    web_card(self.home).unlink()

    def stop(self) -> None:
        """Stop soon, even before it serves; safe in a signal handler."""
        self.stopped = True
        if self._server is not None:
            self._server.should_exit = True

    def _write_card(self) -> None:
        card = {**own_identity(), "port": self.port, "boot": self._boot}
        write_atomic(web_card(self.home), json.dumps(card) + "\n", mode=0o600)


def web_card(home: Path) -> Path:
    """Return the path of the card that a running web process writes."""
    return home / "var" / "trainer" / "web.json"


def read_web_card(home: Path) -> Mapping[str, Any]:
    """Return the card of a running web process; {} if none runs."""
    return channel.read_card(web_card(home), WEB_CARD)


def fresh_url(home: Path) -> str:
    """Return an address that signs in one user to the running GUI of this home; NoDaemonError if none runs."""
    card = read_web_card(home)
    if not card:
        raise NoDaemonError(f"no web GUI runs for {home}; start it with: mosaic up")
    code = Keeper(read_key(home), str(card["boot"])).new_code()
    return f"http://{HOST}:{card['port']}/?code={code}"


def _bind(port: int | None) -> socket.socket:
    """Bind the given port, or the default one, or any if another program uses that."""
    if port is not None and not 0 <= port <= 65535:
        raise ConfigError(f"--port takes a number from 0 to 65535, not {port}")
    for number in (DEFAULT_PORT, 0) if port is None else (port,):
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((HOST, number))
            found.listen(128)
            return found
        except OSError:
            found.close()
    raise TrainerError(f"cannot listen on {HOST}:{port}: another program has it; choose another with --port")
