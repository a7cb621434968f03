"""Environment: what the catalog knows about one environment id."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# Who can make the id, the default first.
GYMNASIUM = ("gymnasium",)
ENVPOOL = ("envpool",)
BOTH = ("gymnasium", "envpool")


@dataclass(frozen=True, slots=True)
class Environment:
    """One id that `gymnasium.make` or EnvPool answers to."""

    env_id: str
    family: str
    """a key of FAMILIES"""
    action_space: str | None
    """"discrete", "continuous" or "multi_discrete"; None where it is not known"""
    observation_space: str
    """"vector", "image", "grid" (MiniGrid's dict of view, direction and mission), "discrete", "tuple" or "dict",
    as the first backend gives it before any wrapper"""
    doc: str
    backends: tuple[str, ...]
    """"gymnasium" and "envpool", the default first"""
    group: str = ""
    """a group of its family, such as "box2d" in "gymnasium"; empty where the family has none"""
    reward_threshold: float | None = None
    """the mean return at which Gymnasium calls it solved; None where it does not say"""
    players: int = 1
    """how many act in it at once"""

    def is_of(self, families: Iterable[str]) -> bool:
        """Whether its family or its group is among these names."""
        return bool({self.family, self.group or self.family} & set(families))


def expand(pattern: str, doc: str, variants: Iterable[tuple[object, ...]] = ((),)) -> Iterator[tuple[str, str]]:
    """Ids and sentences of a task that exists in several sizes: both patterns take the same values."""
    for values in variants:
        yield pattern.format(*values), doc.format(*values)
