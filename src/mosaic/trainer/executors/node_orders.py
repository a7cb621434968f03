"""Orders: what a cluster's node is told to run, whole and without secrets; and the note that it leaves at the end."""

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
# The kernel takes no variable above 128 KiB, and Ray puts all of a job's variables into one, as JSON.
MOST_CHARACTERS = 64 << 10
_LARGE = ("command", "config", "environment")


@dataclass(frozen=True)
class Order:
    """One attempt of a run on a node that shares nothing with the daemon but a network, or a file system as well."""

    run_id: str
    nonce: str
    """names the attempt; whoever has it may register as its worker, and nothing else"""
    command: tuple[str, ...]
    config: Mapping[str, Any]
    home: str
    """the daemon's; used where the node sees the attempt's own mark in it"""
    target: str
    """where the node reaches the daemon"""
    certificate: str = ""
    """of the daemon, PEM; "" where it listens without TLS"""
    environment: Mapping[str, str] = field(default_factory=dict)
    grace: float = 120.0
    attempt: int = 1
    scratch: str = ""
    """where a node keeps a run whose home it does not see; given: always there"""
    linger: float = 86400.0
    """how long a node whose worker has ended waits for a daemon that is away"""
    versions: Mapping[str, str] = field(default_factory=dict)
    """what the daemon's own environment has; a node's must be the same"""

    @property
    def is_whole(self) -> bool:
        """Whether everything is in it; else the rest lies in the run's folder, or comes from the daemon."""
        return bool(self.command)

    def fitting(self, paths: RunPaths) -> Order:
        """The order as it fits into a variable; what does not is left in the run's folder."""
        if len(self.encode()) <= MOST_CHARACTERS:
            paths.order.unlink(missing_ok=True)
            return self
        word = _pack({"attempt": mark_of(self.nonce), **{name: getattr(self, name) for name in _LARGE}})
        # In lines, which is how files go over the wire.
        write_atomic(paths.order, "".join(f"{word[at : at + 4096]}\n" for at in range(0, len(word), 4096)))
        return replace(self, command=(), config={}, environment={})

    def whole(self, paths: RunPaths) -> Order:
        """The order with what was left in the run's folder; ConfigError where that is not there."""
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
        """One word, for a variable or a script."""
        return _pack({"format": FORMAT, **asdict(self)})

    @classmethod
    def decode(cls, word: str) -> Order:
        """Read it again; ConfigError for anything else."""
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
    """What names an attempt where others may read it: with the nonce itself they could register as its worker."""
    return hashlib.sha256(nonce.encode()).hexdigest()


def write_exit(paths: RunPaths, nonce: str, code: int, signal: str) -> None:
    """Note how the worker of an attempt ended."""
    write_atomic(paths.exit, json.dumps({"attempt": mark_of(nonce), "code": code, "signal": signal}) + "\n")


def read_exit(paths: RunPaths, nonce: str) -> Exit | None:
    """How the worker of this attempt ended; None while nobody has noted it."""
    found = read_note(paths.exit, EXIT)
    if nonce and found.get("attempt") == mark_of(nonce):
        return Exit(found["code"], found.get("signal") or "")
    return None
