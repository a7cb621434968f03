"""The versions that an environment must share with the daemon's, so that a run is the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

# Saved results are compared bit for bit, and depend on these.
PACKAGES = ("mosaic-rl", "torch", "numpy", "gymnasium")


def present() -> dict[str, str]:
    """Return the versions here; a build for another accelerator (+cpu, +cu130) is the same version."""
    found = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for name in PACKAGES:
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            found[name] = "none"
    return found


def differences(wanted: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the versions here and the wanted ones, where they differ, as texts; None if all match."""
    here = present()
    names = [name for name, value in wanted.items() if here.get(name) != value]
    if not names:
        return None
    return _listed(here, names), _listed(wanted, names)


def _listed(versions: Mapping[str, str], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {versions.get(name, 'none')}" for name in names)
