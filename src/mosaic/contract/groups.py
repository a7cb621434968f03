"""Names of run groups, shared by processes: `benchmark:NAME/part`, `sweep:NAME/part`; seeds of one part share it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mosaic.contract.errors import ConfigError, shown

BENCHMARK, SWEEP = "benchmark", "sweep"
# The registry's limit for a group's name.
LONGEST = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


# Extras that cannot change a return, like all of FastLane's.
_SHOWN_ONLY = frozenset(
    ("notes", "seed_override", "wandb_run_name", "telemetry", "agent_id", "video_mode", "grid_limit", "storage_url")
)


def recipe_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return every part of a worker's flat config that can change a return, except the seed."""
    given = config.get("extras")
    extras = given if isinstance(given, Mapping) else {}
    recipe = {key: config.get(key) for key in ("algo", "env_id", "total_timesteps")}
    kept = {name: value for name, value in extras.items() if name not in _SHOWN_ONLY}
    return recipe | {"extras": {name: value for name, value in kept.items() if not name.startswith("fastlane_")}}


@dataclass(frozen=True)
class Named:
    """A group's name, parsed."""

    kind: str
    name: str
    part: str

    @property
    def label(self) -> str:
        """Return the legend's text: the part first, then its group."""
        return f"{self.part} ({self.name})" if self.part else self.name


def check_name(name: str) -> str:
    """Return a name that is valid as a folder and in a URL; else raise ConfigError."""
    if _NAME.fullmatch(name):
        return name
    raise ConfigError(
        f"--name {shown(name)} is refused: it has 1 to 64 letters, digits, '.', '_' and '-', a letter or digit first"
    )


def group_of(kind: str, name: str, part: str = "") -> str:
    """Return the group of a benchmark or sweep, or of one part of it."""
    group = f"{kind}:{name}/{part}" if part else f"{kind}:{name}"
    if len(group) > LONGEST:
        raise ConfigError(f"the group {shown(group)} is longer than {LONGEST} characters; give a shorter --name")
    return group


def parse_group(group: str) -> Named | None:
    """Parse a group's name; None for seeds that were submitted by themselves."""
    whole, _, part = group.partition("/")
    kind, colon, name = whole.partition(":")
    if kind not in (BENCHMARK, SWEEP) or not colon or not _NAME.fullmatch(name):
        return None
    return Named(kind, name, part)
