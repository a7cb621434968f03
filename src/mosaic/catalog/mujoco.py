"""MuJoCo: Gymnasium's eleven robots, as v5 and as v4, which published results used."""

from collections.abc import Iterator

from mosaic.catalog.environment import BOTH, Environment

# Robot, the return at which Gymnasium considers it solved, its description.
_ROBOTS = (
    ("InvertedPendulum", 950.0, "Balance a pole on a cart with a continuous force: 1 a step, at most 1,000."),
    ("InvertedDoublePendulum", 9100.0, "Balance two jointed poles on a cart: at most 10 a step, at most 1,000 steps."),
    ("Reacher", -3.75, "Move the tip of a two-joint arm to a target that changes place each episode; 50 steps."),
    ("Pusher", 0.0, "Push a cylinder to a target place with a seven-joint arm; 100 steps."),
    ("Swimmer", 360.0, "Swim forwards with three links in a viscous fluid; needs a high discount, 0.999 or more."),
    ("Hopper", 3800.0, "Hop forwards on one leg without falling: three joints."),
    ("Walker2d", None, "Walk forwards on two legs in a plane without falling: six joints."),
    (
        "HalfCheetah",
        4800.0,
        "Run forwards with a planar cheetah of six joints; it cannot fall, episodes have 1,000 steps.",
    ),
    ("Ant", 6000.0, "Walk forwards with a four-legged robot of eight joints without turning over."),
    ("Humanoid", None, "Walk forwards with a humanoid of 17 joints without falling: the hardest of the walkers."),
    ("HumanoidStandup", None, "Make a humanoid of 17 joints, lying on its back, stand up."),
)

# Gymnasium makes Pusher-v4 only with mujoco < 3.
_NO_V4 = frozenset({"Pusher"})


def _environments() -> Iterator[Environment]:
    for robot, threshold, doc in _ROBOTS:
        yield Environment(f"{robot}-v5", "mujoco", "continuous", "vector", doc, BOTH, "", threshold)
    for robot, threshold, doc in _ROBOTS:
        if robot not in _NO_V4:
            older = f"{doc} Older rules, for comparison with published results; new work uses {robot}-v5."
            yield Environment(f"{robot}-v4", "mujoco", "continuous", "vector", older, BOTH, "", threshold)


ENVIRONMENTS = tuple(_environments())
