"""What several tests of the catalog need."""

import os
from pathlib import Path

import pytest

import mosaic.catalog


@pytest.fixture
def source_path() -> dict[str, str]:
    """The environment of an interpreter that finds mosaic and, with -S, nothing else that is installed."""
    return {**os.environ, "PYTHONPATH": str(Path(mosaic.catalog.__file__).parents[2])}
