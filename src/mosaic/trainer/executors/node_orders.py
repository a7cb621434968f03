"""Orders: what a cluster's node runs, complete and without secrets; and the node's final exit note."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mosaic.contract.errors import ConfigError
from mosaic.contract.files import EXIT, read_note
from mosaic.contract.paths import RunPaths, write_atomic
from mosaic.trainer.executors.contract import Exit

FORMAT = 1
# The kernel accepts no variable above 128 KiB, and Ray puts all of a job's variables into one, as JSON.
MOST_CHARACTERS = 64 << 10
_LARGE = ("command", "config", "environment")


@dataclass(frozen=True)
class Order:
    """One attempt of a run, for a node that shares only a network with the daemon, or also a file system."""

    run_id: str
    nonce: str
    """identifies the attempt; its holder may register as its worker, and nothing else"""
    command: tuple[str, ...]
    config: Mapping[str, Any]
    home: str
    """the daemon's; used if the node sees the attempt's own marker in it"""
    target: str
    """the daemon's address for the node"""
    certificate: str = ""
    """of the daemon, PEM; "" if it listens without TLS"""
    environment: Mapping[str, str] = field(default_factory=dict)
    grace: float = 120.0
    attempt: int = 1
    scratch: str = ""
    """the folder on a node for a run whose home it does not see; if given, always used"""
    linger: float = 86400.0
    """how long a node whose worker has ended waits for an unreachable daemon"""
    versions: Mapping[str, str] = field(default_factory=dict)
    """those of the daemon's environment; a node's must be the same"""

    @property
    def is_whole(self) -> bool:
        """Return True if the order is complete; else the rest is in the run's folder, or comes from the daemon."""
        return bool(self.command)

    def fitting(self, paths: RunPaths) -> Order:
        """Return the order in a size that fits into a variable; the rest is written to the run's folder."""
        if len(self.encode()) <= MOST_CHARACTERS:
            paths.order.unlink(missing_ok=True)
            return self
        word = _pack({"attempt": mark_of(self.nonce), **{name: getattr(self, name) for name in _LARGE}})
        # In lines, as files are sent over the wire.
        write_atomic(paths.order, "".join(f"{word[at : at + 4096]}\n" for at in range(0, len(word), 4096)))
        return replace(self, command=(), config={}, environment={})

    def whole(self, paths: RunPaths) -> Order:
        """Return the order with the part in the run's folder; raise ConfigError if that is missing."""
        if self.is_whole:
            return self
        try:
            found = _unpack(paths.order.read_text(encoding="ascii"))
            if found.pop("attempt") == mark_of(self.nonce):
                return replace(self, **{**found, "command": tuple(found["command"])})
        except (OSError, ValueError, KeyError, TypeError, zlib.error):
            pass
        raise ConfigError(f"what this run is to do is not in {paths.order}; submit it again")

    def encode(self) -> str:
        """Return the order as one word, for a variable or a script."""
        return _pack({"format": FORMAT, **asdict(self)})

    @classmethod
    def decode(cls, word: str) -> Order:
        """Parse an encoded order; raise ConfigError for anything else."""
        try:
            found = _unpack(word)
            if found.pop("format") != FORMAT:
                raise ConfigError("this order is of another version; install the daemon's mosaic-rl on the node")
            return cls(**{**found, "command": tuple(found["command"])})
        except (ValueError, KeyError, TypeError, zlib.error):
            raise ConfigError("this is no order of a trainer daemon") from None


def _pack(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, separators=(",", ":"))
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()


def _unpack(word: str) -> dict[str, Any]:
    return dict(json.loads(zlib.decompress(base64.urlsafe_b64decode("".join(word.split())))))


def mark_of(nonce: str) -> str:
    """Return an attempt's public id: with the nonce itself, readers could register as its worker."""
    return hashlib.sha256(nonce.encode()).hexdigest()


def write_exit(paths: RunPaths, nonce: str, code: int, signal: str) -> None:
    """Record the exit of an attempt's worker."""
    write_atomic(paths.exit, json.dumps({"attempt": mark_of(nonce), "code": code, "signal": signal}) + "\n")


def read_exit(paths: RunPaths, nonce: str) -> Exit | None:
    """Return the exit of this attempt's worker; None if it is not recorded yet."""
    found = read_note(paths.exit, EXIT)
    if nonce and found.get("attempt") == mark_of(nonce):
        return Exit(found["code"], found.get("signal") or "")
    return None
