"""The live view of a run, drawn only while watched."""

from typing import Any

_PUBLIC = ("FastLaneTelemetryWrapper", "make", "maybe_wrap_env")


def __getattr__(name: str) -> Any:
    """Import the wrapper lazily: the worker's shell needs the settings without importing numpy and Gymnasium."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cleanrl_worker.fastlane import gym_wrapper

    return getattr(gym_wrapper, name)
