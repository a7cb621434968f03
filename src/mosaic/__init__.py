"""MOSAIC: start, watch and compare reinforcement-learning runs."""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes 6 ms to import, in which Ctrl-C would still be a traceback

if TYPE_CHECKING:
    from typing import Any

    from mosaic.trainer.rpc.client import Client

__all__ = ["Client"]


def __getattr__(name: str) -> Any:
    """`from mosaic import Client`, without gRPC in every process that imports mosaic."""
    if name == "Client":
        from mosaic.trainer.rpc.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
