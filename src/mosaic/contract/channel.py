"""The connection to a trainer daemon, for clients and workers: its address, the tokens of calls, the channel."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.contract import variables
from mosaic.contract.errors import AccessError, ConfigError, NoDaemonError
from mosaic.contract.fields import CARD, CARD_BYTES, read_object
from mosaic.contract.identity import boot_id, is_running
from mosaic.contract.kinds import FieldError
from mosaic.contract.paths import resolve_home

if TYPE_CHECKING:
    import grpc

    from mosaic.contract.kinds import Table

PROTO_VERSION = "MOSAIC/1.0"
DEFAULT_TARGET = "127.0.0.1:50055"
MESSAGE_BYTES = 64 * 1024 * 1024
TOKEN_KEY, SESSION_KEY, ATTEMPT_KEY = "authorization", "mosaic-session", "mosaic-attempt"
OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    # A web proxy must not be used between us and a daemon.
    ("grpc.enable_http_proxy", 0),
]


@dataclass(frozen=True)
class Address:
    """A daemon's address and token; `ca` is a certificate file if it listens with TLS."""

    target: str
    token: str
    ca: str = ""
    home: str = ""

    @property
    def is_private(self) -> bool:
        """Return True if nobody else can eavesdrop."""
        return bool(self.ca) or is_loopback(self.target)


def find_daemon(target: str | None = None, home: Path | None = None) -> Address:
    """Return the daemon of MOSAIC_TARGET, else the one of MOSAIC_HOME, or of ./var, or the user's own."""
    given = target or os.environ.get(variables.MOSAIC_TARGET)
    here = Path(home) if home is not None else resolve_home()
    # A folder may be foreign: its card does not decide which token is sent to which address.
    own = {"token_file": str(token_file(here))} if (card := read_card(daemon_card(here))) else {}
    known = [{**card, **own}, {} if home is not None else read_card(user_card())]
    if given:
        card = next((card for card in known if card.get("target") == given), {})
        token = os.environ.get(variables.MOSAIC_TOKEN) or _read_token(card.get("token_file") or token_file(here))
        return Address(given, token, os.environ.get(variables.MOSAIC_CA) or str(card.get("ca") or ""), str(here))
    # If MOSAIC_HOME is set, a daemon of another home is never used.
    for card in known[:1] if os.environ.get(variables.MOSAIC_HOME) else known:
        if card:
            token = os.environ.get(variables.MOSAIC_TOKEN) or _read_token(card["token_file"])
            return Address(str(card["target"]), token, str(card.get("ca") or ""), str(card.get("home") or ""))
    raise NoDaemonError("no trainer daemon runs here; start one with: mosaic up")


def open_channel(address: Address) -> grpc.Channel:
    """Return a channel; nothing is sent before the first call."""
    import grpc

    if not address.ca:
        return grpc.insecure_channel(address.target, OPTIONS)
    try:
        certificate = Path(address.ca).read_bytes()
    except OSError as error:
        raise ConfigError(f"certificate {address.ca} cannot be read: {error.strerror}") from None
    return grpc.secure_channel(address.target, grpc.ssl_channel_credentials(certificate), OPTIONS)


def credentials(address: Address, session: str = "") -> list[tuple[str, str]]:
    """Return the metadata of a call."""
    metadata = [(TOKEN_KEY, f"Bearer {address.token}")]
    return [*metadata, (SESSION_KEY, session)] if session else metadata


def token_file(home: Path) -> Path:
    """Return the path of the daemon's token, readable by its owner only."""
    return home / "var" / "trainer" / "token"


def daemon_card(home: Path) -> Path:
    """Return the path of the card in which a running daemon records its address."""
    return home / "var" / "trainer" / "daemon.json"


def daemon_lock(home: Path) -> Path:
    """Return the path of the lock that a running daemon holds, so that a home has one only."""
    return home / "var" / "trainer" / "daemon.lock"


def user_card() -> Path:
    """Return the path of the same card in the user's state folder, for clients that run elsewhere."""
    state = os.environ.get(variables.XDG_STATE_HOME) or os.path.expanduser("~/.local/state")
    return Path(state) / "mosaic" / "daemon.json"


def read_card(path: Path, fields: Table = CARD) -> Mapping[str, Any]:
    """Return the card of a running process; {} if it has ended or the file is not such a card."""
    card = _valid_card(path, fields)
    return card if card and names_running(card) else {}


def names_running(card: Mapping[str, Any]) -> bool:
    """Return True while the process that wrote a card runs."""
    return is_running(card["pid"], card["start_ticks"], card["boot_id"])


def is_stale(path: Path, home: Path, fields: Table = CARD) -> bool:
    """Return True for a card whose process has ended.

    A card of another boot may belong to another machine that shares the folder: it is stale once its home's lock is
    free.
    """
    card = _valid_card(path, fields)
    if card and card["boot_id"] == boot_id():
        return not names_running(card)
    return os.path.lexists(path) and not is_served(Path(card.get("home", home)))


def is_served(home: Path) -> bool:
    """Return True while a daemon, on any machine, holds the lock of a home."""
    try:
        descriptor = os.open(daemon_lock(home), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False


def _valid_card(path: Path, fields: Table) -> Mapping[str, Any]:
    try:
        card = read_object(path, "card", CARD_BYTES)
        fields.check(card)
    except FieldError:
        return {}
    return card


def is_loopback(target: str) -> bool:
    """Return True if an address is reachable from this machine only."""
    host = target.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.") or target.startswith("unix:")


def _read_token(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise AccessError(f"the daemon's token {path} cannot be read: {error}; set MOSAIC_TOKEN") from None
