"""Box2D: landing, walking and driving in two dimensions."""

from mosaic.catalog.environment import BOTH, Environment

_ROWS = (
    (
        "LunarLander-v3",
        "discrete",
        "vector",
        200.0,
        "Land a rocket between two flags with a main and two side engines; solved at 200.",
    ),
    (
        "LunarLanderContinuous-v3",
        "continuous",
        "vector",
        200.0,
        "LunarLander with continuous throttle of the main and the side engines; solved at 200.",
    ),
    (
        "BipedalWalker-v3",
        "continuous",
        "vector",
        300.0,
        "Walk a two-legged robot with four joints over gently uneven ground; solved at 300.",
    ),
    (
        "BipedalWalkerHardcore-v3",
        "continuous",
        "vector",
        300.0,
        "BipedalWalker over ladders, stumps and pitfalls; solved at 300, and seldom quickly.",
    ),
    (
        "CarRacing-v3",
        "continuous",
        "image",
        900.0,
        "Drive a car around a random track seen from above as a 96×96 image: steering, gas and brake. "
        "Of the algorithms here ppo_jax takes it.",
    ),
)

ENVIRONMENTS = tuple(
    Environment(env_id, "gymnasium", action_space, observation_space, doc, BOTH, "box2d", threshold)
    for env_id, action_space, observation_space, threshold, doc in _ROWS
)
