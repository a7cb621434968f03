"""Orders: what a cluster's node is told to run, whole and without secrets; and the note that it leaves at the end."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mosaic.trainer.executors.contract import Exit
from mosaic.wire.errors import ConfigError
from mosaic.wire.paths import RunPaths, write_atomic

FORMAT = 1


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

    def encode(self) -> str:
        """One word, for a variable or a script."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":"))
        return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()

    @classmethod
    def decode(cls, word: str) -> Order:
        """Read it again; ConfigError for anything else."""
        try:
            found = json.loads(zlib.decompress(base64.urlsafe_b64decode(word.strip().encode())))
            if found.pop("format") != FORMAT:
                raise ConfigError("this order is of another version; install the daemon's mosaic-rl on the node")
            return cls(**{**found, "command": tuple(found["command"])})
        except (ValueError, KeyError, TypeError, zlib.error):
            raise ConfigError("this is no order of a trainer daemon") from None


def mark_of(nonce: str) -> str:
    """What names an attempt where others may read it: with the nonce itself they could register as its worker."""
    return hashlib.sha256(nonce.encode()).hexdigest()


def write_exit(paths: RunPaths, nonce: str, code: int, signal: str) -> None:
    """Note how the worker of an attempt ended."""
    write_atomic(paths.exit, json.dumps({"attempt": mark_of(nonce), "code": code, "signal": signal}) + "\n")


def read_exit(paths: RunPaths, nonce: str) -> Exit | None:
    """How the worker of this attempt ended; None while nobody has noted it."""
    try:
        found = json.loads(paths.exit.read_bytes())
        if nonce and found["attempt"] == mark_of(nonce):
            return Exit(int(found["code"]), str(found["signal"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None
