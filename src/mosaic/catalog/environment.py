"""Environment: the catalog's entry of one environment id."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# The backends that can make the id, the default first.
GYMNASIUM = ("gymnasium",)
ENVPOOL = ("envpool",)
BOTH = ("gymnasium", "envpool")


@dataclass(frozen=True, slots=True)
class Environment:
    """One environment id of `gymnasium.make` or EnvPool."""

    env_id: str
    family: str
    """a key of FAMILIES"""
    action_space: str | None
    """"discrete", "continuous" or "multi_discrete"; None if unknown"""
    observation_space: str
    """"vector", "image", "grid" (MiniGrid's dict of view, direction and mission), "discrete", "tuple" or "dict", as the
    first backend returns it before any wrapper"""
    doc: str
    backends: tuple[str, ...]
    """"gymnasium" and "envpool", the default first"""
    group: str = ""
    """a group of its family, such as "box2d" in "gymnasium"; empty if the family has no groups"""
    reward_threshold: float | None = None
    """the mean return at which Gymnasium considers it solved; None if unspecified"""
    players: int = 1
    """number of simultaneous agents"""

    def is_of(self, families: Iterable[str]) -> bool:
        """Return True if its family or group is one of these names."""
        return bool({self.family, self.group or self.family} & set(families))


def expand(pattern: str, doc: str, variants: Iterable[tuple[object, ...]] = ((),)) -> Iterator[tuple[str, str]]:
    """Yield ids and sentences of a task that has several sizes; both patterns are filled with the same values."""
    for values in variants:
        yield pattern.format(*values), doc.format(*values)
