"""What some algorithms need beyond Python's packages, or beyond a usual set-up."""

import ctypes
import importlib.util

import pytest


def needed(name: str) -> None:
    """Skip the test where this machine lacks what the algorithm needs, and say what would bring it."""
    if "procgen" in name:
        try:
            ctypes.CDLL("libQt5Gui.so.5")
        except OSError:
            pytest.skip("Procgen needs libqt5gui5: make system")
    if "pettingzoo" in name and not all(map(importlib.util.find_spec, ("pettingzoo", "multi_agent_ale_py"))):
        pytest.skip("games for several players need PettingZoo: pip install 'mosaic-rl[multiagent]'")
