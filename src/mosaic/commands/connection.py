"""The way from a command to a daemon: find one, start one, wait for one, tell whether its files are ours."""

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

# A daemon is started again within seconds, by a person within minutes.
AWAY_SECONDS, AGAIN_SECONDS = 600.0, 1.0

_Answer = TypeVar("_Answer")


def interruptible() -> AbstractContextManager[None]:
    """Let Ctrl-C end an import inside at once: amid gRPC's, an exception would crash the process."""
    return ending_at_once(128 + signal.SIGINT, signal.SIGINT)


def connect() -> Client:
    """The daemon that MOSAIC_TARGET names, that of this home, or the user's own; nothing is sent yet.

    Where MOSAIC_HOME is set, a daemon of another home is not what was meant.
    """
    with interruptible():
        from mosaic.trainer.rpc.client import Client

    return Client(home=resolve_home() if os.environ.get(variables.MOSAIC_HOME) else None)


def connect_or_start() -> Client:
    """The same; where none answers, one is started in the background of this home, and that is said."""
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
    """Start a daemon that outlives this process; returns where it listens."""
    with interruptible():
        from mosaic.trainer.daemon import spawn

    return spawn(home, listen=listen or free_target(), arguments=arguments).target


def free_target() -> str:
    """The usual address, or any port where another program (another home's daemon, say) has that one."""
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
    """The daemon's home where it is a folder of this machine; ConfigError for a daemon on another one."""
    from mosaic.contract.channel import token_file

    home = Path(health["home"])
    try:
        if token_file(home).read_text(encoding="ascii").strip() == client.address.token:
            return home
    except (OSError, UnicodeDecodeError):
        pass
    raise ConfigError(f"the daemon at {client.address.target} is on another machine or another user's: {what} there")


class Steady:
    """A daemon for hours: who calls it while it is away waits until it, or the next one of its home, answers again."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def call(self, ask: Callable[[Client], _Answer]) -> _Answer:
        """What `ask` returns; it may be asked several times, so it must be safe to repeat."""
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
        """The next daemon may listen elsewhere."""
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
    """The daemon's home where it is on this machine, else this person's own."""
    home = Path(client.address.home or os.curdir)
    return home if client.address.home and home.is_dir() else resolve_home()


def page_address(home: Path, path: str) -> str:
    """A page of the GUI of this home, or how to come to it."""
    from mosaic.web.server import HOST, read_web_card

    card = read_web_card(home)
    return f"http://{HOST}:{card['port']}{path}" if card else f"{path} in the web GUI (start it with: mosaic up)"
