"""Versions for the record."""

import sys
from importlib.metadata import version

from mosaic.contract import versions


def test_what_is_installed_is_named_and_nothing_else(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(versions, "PACKAGES", ("numpy", "no-such-package"))
    found = versions.installed()
    assert found == {"python": ".".join(map(str, sys.version_info[:3])), "numpy": version("numpy")}
