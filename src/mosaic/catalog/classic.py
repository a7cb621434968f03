"""Classic control: CartPole, Acrobot, MountainCar, Pendulum."""

from mosaic.catalog.environment import BOTH, Environment

_ROWS = (
    (
        "CartPole-v1",
        "discrete",
        475.0,
        "Keep a pole upright on a cart by pushing left or right: 1 a step, at most 500, solved at 475.",
    ),
    (
        "CartPole-v0",
        "discrete",
        195.0,
        "CartPole with episodes of at most 200 steps; new work uses CartPole-v1.",
    ),
    (
        "Acrobot-v1",
        "discrete",
        -100.0,
        "Swing the tip of a two-link arm above a line by its middle joint: −1 a step until it is done, solved at −100.",
    ),
    (
        "MountainCar-v0",
        "discrete",
        -110.0,
        "Rock an underpowered car out of a valley: −1 a step, no hint before the top is reached: exploration is hard.",
    ),
    (
        "MountainCarContinuous-v0",
        "continuous",
        90.0,
        "MountainCar with a continuous force: 100 at the top minus the energy spent, so doing nothing is a trap.",
    ),
    (
        "Pendulum-v1",
        "continuous",
        None,
        "Swing a pendulum up and hold it with little torque: a cost of up to 16.3 a step, 200 steps, no early end.",
    ),
)

ENVIRONMENTS = tuple(
    Environment(env_id, "gymnasium", action_space, "vector", doc, BOTH, "classic-control", threshold)
    for env_id, action_space, threshold, doc in _ROWS
)
