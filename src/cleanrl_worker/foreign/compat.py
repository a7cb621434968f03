"""The compatibility layer that gives a script its era of Gymnasium in an interpreter with Gymnasium 1.

Loaded by file path only in that script's process, before it starts; the eras are those of `script_era`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from typing import Tuple

from . import notes, stand_ins
from .eras import GYM_023, MODULES

NEWER = "Gymnasium 1.1 or later is needed to run a file written for %s; Gymnasium here is %s: pip install -U gymnasium"


def install(era: str, script: str, count_episodes: bool) -> None:
    """Patch this process for a script of `era`; `count_episodes` is for scripts that report none."""
    old = era == GYM_023
    sys.meta_path.append(stand_ins.Finder(old))
    if era == MODULES or (old and importlib.util.find_spec("gym") is not None):
        return
    if importlib.util.find_spec("gymnasium") is None:
        return
    import gymnasium

    version = _version(gymnasium.__version__)
    if version < (1, 0):
        return
    if version < (1, 1):
        sys.exit(NEWER % (era, gymnasium.__version__))
    from . import gym_023, gymnasium_029, jax_names, sidecars
    from .episodes import Counter

    name = os.path.basename(script)
    notes.warn("%s was written for %s: it runs on Gymnasium %s" % (name, _named(era), gymnasium.__version__))
    sidecars.install(script)
    jax_names.install()
    (gym_023 if old else gymnasium_029).install(Counter() if count_episodes else None)


def _named(era: str) -> str:
    return era.replace("-", " ").replace("gymnasium", "Gymnasium")


def _version(text: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
