"""Environment families, ids, one-sentence docs and required packages (standard library only)."""

from mosaic.catalog.environment import Environment
from mosaic.catalog.families import FAMILIES, Family
from mosaic.catalog.fit import misfit
from mosaic.catalog.index import find, ids, on_backend, successor
from mosaic.catalog.limits import episode_limit
from mosaic.catalog.procgen import level_trouble
from mosaic.catalog.requirements import group_of, library_trouble, missing_package, missing_to_train
from mosaic.catalog.spelling import meant

__all__ = [
    "FAMILIES",
    "Environment",
    "Family",
    "episode_limit",
    "find",
    "group_of",
    "ids",
    "level_trouble",
    "library_trouble",
    "meant",
    "misfit",
    "missing_package",
    "missing_to_train",
    "on_backend",
    "successor",
]
