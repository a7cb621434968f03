"""The keys and names of actions for playing an environment by hand. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mosaic import catalog

# The key names of browsers.
LEFT, UP, RIGHT, DOWN = "ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown"
ARROWS = {LEFT: "←", UP: "↑", RIGHT: "→", DOWN: "↓", " ": "Space", "Enter": "Enter"}
# One number key each: with 0 they are ten.
NUMBER_KEYS = 10
# Families that the catalog marks as agent only.
AGENT_ONLY = ("mujoco",)
MOST_DIMENSIONS = 2

_MINIGRID = ("turn left", "turn right", "forward", "pick up", "drop", "toggle", "done")
_MINIGRID_KEYS = {LEFT: 0, RIGHT: 1, UP: 2, "Enter": 3, DOWN: 4, " ": 5}
_ATARI = (
    *("wait", "fire", "up", "right", "left", "down", "up right", "up left", "down right", "down left"),
    *("up fire", "right fire", "left fire", "down fire"),
    *("up right fire", "up left fire", "down right fire", "down left fire"),
)
_PROCGEN = (
    *("left down", "left", "left up", "down", "wait", "up", "right down", "right", "right up"),
    *("key D", "key A", "key W", "key S", "key Q", "key E"),
)


@dataclass(frozen=True)
class KeyControls:
    """The controls of a player. Discrete: an action per key. Continuous: a key moves a number to the end of a range."""

    kind: str
    """discrete | continuous | none"""
    names: tuple[str, ...] = ()
    start: int = 0
    keys: Mapping[str, int] = field(default_factory=dict)
    """key to action; if continuous: key to 2 × dimension + (0 low, 1 high)"""
    idle: int | None = None
    """the action while no key is held; None: the game waits for a key"""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    reason: str = ""
    """the reason why a player cannot take over"""

    @property
    def possible(self) -> bool:
        return self.kind != "none"

    def action(self, held: Sequence[str]) -> int | list[float] | None:
        """Return the action of the held keys, the last pressed first; None: no action."""
        if self.kind == "discrete":
            return next((self.keys[key] for key in reversed(held) if key in self.keys), self.idle)
        if self.kind == "continuous":
            return self.push(held)
        return None

    def push(self, held: Collection[str]) -> list[float]:
        """Return each number at rest (0 if its range holds it), or at the end that a held key pushes it to."""
        values = list(self.rest)
        for key in held:
            if (code := self.keys.get(key)) is not None:
                values[code // 2] = (self.high if code % 2 else self.low)[code // 2]
        return values

    @property
    def rest(self) -> tuple[float, ...]:
        return tuple(min(max(0.0, low), high) for low, high in zip(self.low, self.high, strict=True))

    def key_of(self, number: int) -> str:
        """Return the readable keys of an action, or of an end of a range."""
        return " or ".join(ARROWS.get(key, key.upper()) for key, value in self.keys.items() if value == number)


def controls_for(env_id: str, space: Mapping[str, Any]) -> KeyControls:
    """Return the keys for an action space as the worker describes it."""
    environment = catalog.find(env_id)
    family = environment.family if environment else ""
    if family in AGENT_ONLY:
        label = catalog.FAMILIES[family].label
        return KeyControls("none", reason=f"{label} environments are agent only: no human control")
    if space.get("type") == "discrete":
        return _discrete(env_id, family, int(space["n"]), int(space.get("start", 0)))
    if space.get("type") == "continuous":
        return _continuous(space)
    kind = str(space.get("type", "unknown")).replace("_", " ")
    return KeyControls("none", reason=f"the keyboard has no keys for a {kind} action space; the policy can act alone")


def _discrete(env_id: str, family: str, count: int, start: int) -> KeyControls:
    names, keys, idle = _known(env_id, family, count)
    names = names or tuple(f"action {start + number}" for number in range(count))
    if not keys and count == 2:
        keys = {LEFT: 0, RIGHT: 1}
    by_number = {str((number + 1) % NUMBER_KEYS): number for number in range(min(count, NUMBER_KEYS))}
    shifted = {key: start + number for key, number in {**keys, **by_number}.items() if number < count}
    return KeyControls("discrete", names, start, shifted, None if idle is None else start + idle)


def _known(env_id: str, family: str, count: int) -> tuple[tuple[str, ...], dict[str, int], int | None]:
    """Return names, keys and the no-op action of a known environment."""
    name = env_id.rpartition("-v")[0]
    if name in _FRIENDS and len(_FRIENDS[name][0]) == count:
        return _FRIENDS[name]
    if family in ("minigrid", "babyai") and count == len(_MINIGRID):
        return _MINIGRID, dict(_MINIGRID_KEYS), None
    if family == "atari" and count == len(_ATARI):
        return _ATARI, {UP: 2, RIGHT: 3, LEFT: 4, DOWN: 5, " ": 1}, 0
    if family == "atari":
        return _atari_games(env_id, count)
    if family == "procgen" and count == len(_PROCGEN):
        return _PROCGEN, {LEFT: 1, RIGHT: 7, UP: 5, DOWN: 3, " ": 9}, 4
    return (), {}, None


def _atari_games(env_id: str, count: int) -> tuple[tuple[str, ...], dict[str, int], int | None]:
    """Return the controls of a small action set: 0 always waits; three known games have named actions."""
    if "Breakout" in env_id and count == 4:
        return ("wait", "fire", "right", "left"), {" ": 1, RIGHT: 2, LEFT: 3}, 0
    if ("Pong" in env_id or "SpaceInvaders" in env_id) and count == 6:
        return ("wait", "fire", "right", "left", "right fire", "left fire"), {" ": 1, RIGHT: 2, LEFT: 3}, 0
    return ("wait", *(f"action {number}" for number in range(1, count))), {}, 0


_FRIENDS: dict[str, tuple[tuple[str, ...], dict[str, int], int | None]] = {
    "CartPole": (("push left", "push right"), {LEFT: 0, RIGHT: 1}, None),
    "Acrobot": (("torque −1", "no torque", "torque +1"), {LEFT: 0, DOWN: 1, RIGHT: 2}, 1),
    "MountainCar": (("push left", "coast", "push right"), {LEFT: 0, DOWN: 1, RIGHT: 2}, 1),
    "LunarLander": (
        ("coast", "left engine", "main engine", "right engine"),
        {DOWN: 0, LEFT: 1, UP: 2, RIGHT: 3},
        0,
    ),
    "FrozenLake": (("left", "down", "right", "up"), {LEFT: 0, DOWN: 1, RIGHT: 2, UP: 3}, None),
    "FrozenLake8x8": (("left", "down", "right", "up"), {LEFT: 0, DOWN: 1, RIGHT: 2, UP: 3}, None),
    "CliffWalking": (("up", "right", "down", "left"), {UP: 0, RIGHT: 1, DOWN: 2, LEFT: 3}, None),
    "CliffWalkingSlippery": (("up", "right", "down", "left"), {UP: 0, RIGHT: 1, DOWN: 2, LEFT: 3}, None),
    "Taxi": (
        ("down", "up", "right", "left", "pick up", "drop"),
        {DOWN: 0, UP: 1, RIGHT: 2, LEFT: 3, " ": 4, "Enter": 5},
        None,
    ),
    "Blackjack": (("stick", "hit"), {DOWN: 0, UP: 1}, None),
}


def _continuous(space: Mapping[str, Any]) -> KeyControls:
    low, high = _flat(space.get("low")), _flat(space.get("high"))
    if not low or len(low) != len(high) or len(low) > MOST_DIMENSIONS:
        return KeyControls(
            "none", reason=f"{len(low)} numbers at a time are too many for a keyboard; the policy can act alone"
        )
    # An unbounded number gets the range from -1 to 1.
    low = tuple(value if value > -1e6 else -1.0 for value in low)
    high = tuple(value if value < 1e6 else 1.0 for value in high)
    keys = {LEFT: 0, RIGHT: 1, **({DOWN: 2, UP: 3} if len(low) > 1 else {})}
    names = tuple(f"number {place + 1}" for place in range(len(low)))
    return KeyControls("continuous", names, 0, keys, 0, low, high)


def _flat(value: Any) -> tuple[float, ...]:
    """Return nested lists as one; infinities are words there, as JSON lacks them."""
    if isinstance(value, list):
        return tuple(number for item in value for number in _flat(item))
    words = {"Infinity": 1e300, "-Infinity": -1e300, "NaN": 0.0}
    return () if value is None else (words[value] if value in words else float(value),)
