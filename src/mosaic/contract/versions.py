"""The versions of Python and packages, for the record."""

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("mosaic-rl", "torch", "jax", "flax", "gymnasium", "envpool", "ale-py", "mujoco", "numpy")


def installed() -> dict[str, str]:
    """Return the versions of Python and of the installed packages, without importing them."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
