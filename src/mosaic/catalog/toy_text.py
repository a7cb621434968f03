"""Toy text: tabular problems with a state number as observation."""

from mosaic.catalog.environment import BOTH, GYMNASIUM, Environment

_ROWS = (
    (
        "FrozenLake-v1",
        "discrete",
        0.7,
        "Cross a 4×4 frozen lake without falling into a hole; the ice is slippery, the only reward 1 at the goal.",
        BOTH,
    ),
    ("FrozenLake8x8-v1", "discrete", 0.85, "FrozenLake on an 8×8 map, where the goal is rarely found by chance.", BOTH),
    (
        "CliffWalking-v1",
        "discrete",
        None,
        "Walk along a cliff from start to goal on a 4×12 grid: −1 a step, −100 and back to the start after a fall.",
        BOTH,
    ),
    ("CliffWalkingSlippery-v1", "discrete", None, "CliffWalking where a step may slip to either side.", BOTH),
    (
        "Taxi-v4",
        "discrete",
        8.0,
        "Pick up a passenger at one of four places and drop them at another: 20 for success, −10 for a wrong stop.",
        GYMNASIUM,
    ),
    (
        "Blackjack-v1",
        "tuple",
        None,
        "Play blackjack against a dealer: hit or stick, knowing your sum, the dealer's card and whether you hold a "
        "usable ace. EnvPool gives these three numbers as a vector.",
        BOTH,
    ),
)

ENVIRONMENTS = tuple(
    Environment(env_id, "gymnasium", "discrete", observation_space, doc, backends, "toy-text", threshold)
    for env_id, observation_space, threshold, doc, backends in _ROWS
)
