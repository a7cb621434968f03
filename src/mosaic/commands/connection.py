"""The way from a command to a daemon: find one, start one, tell whether its files are ours."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.commands.printing import say
from mosaic.wire import variables
from mosaic.wire.errors import ConfigError, NoDaemonError
from mosaic.wire.paths import resolve_home

if TYPE_CHECKING:
    from mosaic.trainer.client import Client


def connect() -> Client:
    """The daemon that MOSAIC_TARGET names, that of this home, or the user's own; nothing is sent yet.

    Where MOSAIC_HOME is set, a daemon of another home is not what was meant.
    """
    from mosaic.trainer.client import Client

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
    from mosaic.trainer.client import Client

    home = resolve_home()
    say(f"no trainer daemon runs; starting one for {home} …")
    target = start_daemon(home)
    say(f"it listens on {target} and stays when this command ends; end it with: mosaic down")
    return Client(home=home)


def start_daemon(home: Path, listen: str | None = None) -> str:
    """Start a daemon that outlives this process; returns where it listens."""
    from mosaic.trainer.daemon import spawn

    return spawn(home, listen=listen or free_target()).target


def free_target() -> str:
    """The usual address, or any port where another program (another home's daemon, say) has that one."""
    from mosaic.wire.channel import DEFAULT_TARGET

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
    from mosaic.wire.channel import token_file

    home = Path(health["home"])
    try:
        if token_file(home).read_text(encoding="ascii").strip() == client.address.token:
            return home
    except (OSError, UnicodeDecodeError):
        pass
    raise ConfigError(f"the daemon at {client.address.target} is on another machine or another user's: {what} there")
