"""The live view of a run, drawn while somebody watches."""

from typing import Any

_PUBLIC = ("FastLaneTelemetryWrapper", "make", "maybe_wrap_env")


def __getattr__(name: str) -> Any:
    """Import the wrapper when it is asked for: the worker's shell takes no numpy and no Gymnasium for its settings."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cleanrl_worker.fastlane import gym_wrapper

    return getattr(gym_wrapper, name)
