"""The address of a daemon: its checks, and the bound port."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from pathlib import Path

import grpc

from mosaic.contract import channel
from mosaic.contract.errors import ConfigError, TrainerError


@dataclass(frozen=True)
class Listening:
    """The address of the daemon; TLS if both files are given."""

    target: str = channel.DEFAULT_TARGET
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False

    def check(self) -> None:
        """Refuse an unencrypted port that others can reach, unless --insecure-listen allows it."""
        host, _, port = self.target.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f"--listen takes HOST:PORT, such as {channel.DEFAULT_TARGET}; not {self.target!r}")
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--tls-cert and --tls-key go together; give both")
        if not channel.is_loopback(self.target) and self.certificate is None and not self.insecure:
            raise ConfigError(
                f"--listen {self.target} can be reached by others: give --tls-cert and --tls-key, "
                "or --insecure-listen if the network is yours alone"
            )

    def bind(self, server: grpc.Server) -> str:
        """Bind the port; return the address with the bound port."""
        _check_free(self.target)
        try:
            if self.certificate is None or self.key is None:
                port = server.add_insecure_port(self.target)
            else:
                pair = (self.key.read_bytes(), self.certificate.read_bytes())
                port = server.add_secure_port(self.target, grpc.ssl_server_credentials([pair]))
        except OSError as error:
            raise ConfigError(f"the TLS files cannot be read: {error}") from None
        except RuntimeError:
            port = 0
        if port == 0:
            raise _taken(self.target, "another program has it, or the address does not exist")
        return f"{self.target.rpartition(':')[0]}:{port}"


def _check_free(target: str) -> None:
    """Raise TrainerError for an address that cannot be bound: gRPC would log a screenful of errors about it."""
    host, _, port = target.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise _taken(target, getattr(error, "strerror", None) or str(error)) from None
    refused: list[OSError] = []
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            refused.append(error)
    in_use = [error for error in refused if error.errno == errno.EADDRINUSE]
    if in_use or len(refused) == len(found):
        why = in_use or refused
        raise _taken(target, "another program has it" if in_use else str(why[0].strerror))


def _taken(target: str, why: str) -> TrainerError:
    return TrainerError(f"cannot listen on {target}: {why}; choose another with --listen")
