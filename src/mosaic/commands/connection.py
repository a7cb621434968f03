"""The connection of a command to a daemon: find, start or wait for one, check if its files are on this machine."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mosaic.commands.printing import say
from mosaic.contract import variables
from mosaic.contract.errors import ConfigError, NoDaemonError, UnavailableError
from mosaic.contract.paths import make_var, resolve_home
from mosaic.contract.stopping import ending_at_once

if TYPE_CHECKING:
    from mosaic.trainer.rpc.client import Client

# A daemon restarts within seconds, by hand within minutes.
AWAY_SECONDS, AGAIN_SECONDS = 600.0, 1.0

_Answer = TypeVar("_Answer")


def interruptible() -> AbstractContextManager[None]:
    """Make Ctrl-C end an import inside immediately: an exception during gRPC's import would crash the process."""
    return ending_at_once(128 + signal.SIGINT, signal.SIGINT)


def connect() -> Client:
    """Return the daemon that MOSAIC_TARGET names, that of this home, or the user's own; nothing is sent yet.

    If MOSAIC_HOME is set, a daemon of another home is not used.
    """
    with interruptible():
        from mosaic.trainer.rpc.client import Client

    return Client(home=resolve_home() if os.environ.get(variables.MOSAIC_HOME) else None)


def connect_or_start() -> Client:
    """Return a client as `connect` does; if no daemon answers, start one in the background and report it."""
    try:
        client = connect()
        client.health()
        return client
    except NoDaemonError:
        if os.environ.get(variables.MOSAIC_TARGET):
            raise
    from mosaic.trainer.rpc.client import Client

    home = resolve_home()
    make_var(home)
    say(f"no trainer daemon runs; starting one for {home} …")
    target = start_daemon(home)
    say(f"it listens on {target} and stays when this command ends; end it with: mosaic down")
    return Client(home=home)


def start_daemon(home: Path, listen: str | None = None, arguments: Sequence[str] = ()) -> str:
    """Start a daemon that outlives this process; return its address."""
    with interruptible():
        from mosaic.trainer.daemon import spawn

    return spawn(home, listen=listen or free_target(), arguments=arguments).target


def free_target() -> str:
    """Return the default address, or one with any free port if another program uses that port."""
    from mosaic.contract.channel import DEFAULT_TARGET

    host, _, port = DEFAULT_TARGET.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return f"{host}:0"
    return DEFAULT_TARGET


def local_home(client: Client, health: dict[str, Any], what: str) -> Path:
    """Return the daemon's home if it is a folder of this machine; ConfigError for a daemon on another machine."""
    from mosaic.contract.channel import token_file

    home = Path(health["home"])
    try:
        if token_file(home).read_text(encoding="ascii").strip() == client.address.token:
            return home
    except (OSError, UnicodeDecodeError):
        pass
    raise ConfigError(f"the daemon at {client.address.target} is on another machine or another user's: {what} there")


class Steady:
    """A daemon connection for hours: a call during an outage waits until a daemon of this home answers again."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def call(self, ask: Callable[[Client], _Answer]) -> _Answer:
        """Return what `ask` returns; it may be called several times, so it must be idempotent."""
        end = 0.0
        while True:
            try:
                return ask(self.client)
            except (NoDaemonError, UnavailableError) as error:
                if not end:
                    end = time.monotonic() + AWAY_SECONDS
                    say(f"{error}; waiting for up to {AWAY_SECONDS / 60:.0f} min, what runs goes on")
                if time.monotonic() > end:
                    raise
                time.sleep(AGAIN_SECONDS)
                self._reconnect()

    def _reconnect(self) -> None:
        """Connect again, since the next daemon may listen on another address."""
        try:
            fresh = connect()
        except NoDaemonError:
            return
        self.client.close()
        self.client = fresh

    def __enter__(self) -> Steady:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()


def home_of(client: Client) -> Path:
    """Return the daemon's home if it is on this machine, else this user's own."""
    home = Path(client.address.home or os.curdir)
    return home if client.address.home and home.is_dir() else resolve_home()


def page_address(home: Path, path: str) -> str:
    """Return the address of a page of this home's GUI, or how to open it."""
    from mosaic.web.server import HOST, read_web_card

    card = read_web_card(home)
    return f"http://{HOST}:{card['port']}{path}" if card else f"{path} in the web GUI (start it with: mosaic up)"
