"""The versions of what a run computes with, for the record."""

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("mosaic-rl", "torch", "jax", "flax", "gymnasium", "envpool", "ale-py", "mujoco", "numpy")


def installed() -> dict[str, str]:
    """Python's version and those of the packages that are there; nothing is imported."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
