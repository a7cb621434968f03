"""DM Control: the suite under Shimmy's and EnvPool's ids, locomotion and manipulation under Shimmy's."""

from collections.abc import Iterator

from mosaic.catalog.environment import ENVPOOL, GYMNASIUM, Environment

_SUITE = {
    "acrobot-swingup": "Swing a two-link arm up by its middle joint and hold it there.",
    "acrobot-swingup_sparse": "Swing a two-link arm up; only the upright position is rewarded.",
    "ball_in_cup-catch": "Swing a ball on a string into the cup that holds it; sparse reward.",
    "cartpole-balance": "Keep the pole of a cart upright, starting near upright.",
    "cartpole-balance_sparse": "Keep the pole of a cart upright; only a narrow range is rewarded.",
    "cartpole-swingup": "Swing the pole of a cart up from hanging and hold it.",
    "cartpole-swingup_sparse": "Swing the pole of a cart up; only a narrow range is rewarded.",
    "cartpole-three_poles": "Swing up three poles in a chain on one cart.",
    "cartpole-two_poles": "Swing up two poles in a chain on one cart.",
    "cheetah-run": "Run forwards with a planar cheetah, rewarded up to 10 m/s.",
    "dog-fetch": "Run with a dog of 38 actuators to a thrown ball and bring it back.",
    "dog-run": "Run forwards with a dog of 38 actuators.",
    "dog-stand": "Stand upright with a dog of 38 actuators.",
    "dog-trot": "Trot forwards with a dog of 38 actuators.",
    "dog-walk": "Walk forwards with a dog of 38 actuators.",
    "finger-spin": "Keep a free body on a hinge spinning with a planar finger.",
    "finger-turn_easy": "Turn a free body with a planar finger until its tip meets a large target.",
    "finger-turn_hard": "Turn a free body with a planar finger until its tip meets a small target.",
    "fish-swim": "Swim to a target in three dimensions.",
    "fish-upright": "Right a fish that starts at a random angle.",
    "hopper-hop": "Hop forwards with a planar one-legged hopper.",
    "hopper-stand": "Stand up with a planar one-legged hopper.",
    "humanoid-run": "Run at 10 m/s with a humanoid of 21 joints.",
    "humanoid-run_pure_state": "Humanoid run observed as raw joint positions and velocities.",
    "humanoid-stand": "Stand with a humanoid of 21 joints.",
    "humanoid-walk": "Walk at 1 m/s with a humanoid of 21 joints.",
    "humanoid_CMU-run": "Run with the humanoid of 56 joints made for motion capture.",
    "humanoid_CMU-stand": "Stand with the humanoid of 56 joints made for motion capture.",
    "humanoid_CMU-walk": "Walk with the humanoid of 56 joints made for motion capture.",
    "lqr-lqr_2_1": "Bring two masses on springs to rest with one actuator; the optimum is known.",
    "lqr-lqr_6_2": "Bring six masses on springs to rest with two actuators; the optimum is known.",
    "manipulator-bring_ball": "Bring a ball to a target with a planar arm and gripper.",
    "manipulator-bring_peg": "Bring a peg to a target with a planar arm and gripper.",
    "manipulator-insert_ball": "Put a ball into a basket with a planar arm and gripper.",
    "manipulator-insert_peg": "Put a peg into a slit with a planar arm and gripper.",
    "pendulum-swingup": "Swing a torque-limited pendulum up and hold it; sparse reward.",
    "point_mass-easy": "Move a point mass to the target with one actuator an axis.",
    "point_mass-hard": "Move a point mass to the target while the actuators' axes change every episode.",
    "quadruped-escape": "Climb out of rugged terrain with a four-legged robot.",
    "quadruped-fetch": "Push a ball to a target with a four-legged robot.",
    "quadruped-run": "Run with a four-legged robot.",
    "quadruped-walk": "Walk with a four-legged robot.",
    "reacher-easy": "Reach a large target with a planar two-link arm.",
    "reacher-hard": "Reach a small target with a planar two-link arm.",
    "stacker-stack_2": "Stack two boxes on a target with a planar arm and gripper.",
    "stacker-stack_4": "Stack four boxes on a target with a planar arm and gripper.",
    "swimmer-swimmer15": "Swim to a target with a planar chain of 15 links.",
    "swimmer-swimmer6": "Swim to a target with a planar chain of 6 links.",
    "walker-run": "Run with a planar two-legged walker.",
    "walker-stand": "Stand with a planar two-legged walker.",
    "walker-walk": "Walk with a planar two-legged walker.",
}

_LOCOMOTION = {
    "CmuHumanoidGoToTarget": "Walk the CMU humanoid to a target on open ground.",
    "CmuHumanoidHeterogeneousForage": "Learn which objects of a maze are worth collecting with the CMU humanoid.",
    "CmuHumanoidMazeForage": "Collect targets in a maze with the CMU humanoid.",
    "CmuHumanoidRunGaps": "Run the CMU humanoid down a corridor with gaps.",
    "CmuHumanoidRunWalls": "Run the CMU humanoid down a corridor with walls.",
    "RodentEscapeBowl": "Climb the rodent out of a bowl of rugged ground.",
    "RodentMazeForage": "Collect targets in a maze with the rodent.",
    "RodentRunGaps": "Run the rodent down a corridor with gaps.",
    "RodentTwoTouch": "Tap a ball twice with the rodent, at the right interval.",
}

_MANIPULATION = {
    "lift_brick": "Lift a brick.",
    "lift_large_box": "Lift a large box.",
    "place_brick": "Place a brick on a pedestal.",
    "place_cradle": "Place a brick in a cradle.",
    "reach_duplo": "Reach a brick.",
    "reach_site": "Reach a place in the air.",
    "reassemble_3_bricks_fixed_order": "Take a stack of three bricks apart and rebuild it in a fixed order.",
    "reassemble_5_bricks_random_order": "Take a stack of five bricks apart and rebuild it in a given order.",
    "stack_2_bricks": "Stack a brick on another that is fixed.",
    "stack_2_bricks_moveable_base": "Stack a brick on another that can move.",
    "stack_2_of_3_bricks_random_order": "Stack two of three bricks in a given order.",
    "stack_3_bricks": "Stack three bricks.",
    "stack_3_bricks_random_order": "Stack three bricks in a given order.",
}
_FEATURES_ONLY = frozenset({"stack_3_bricks_random_order"})


def _environments() -> Iterator[Environment]:
    for task, doc in _SUITE.items():
        yield _environment(f"dm_control/{task}-v0", doc, GYMNASIUM, "suite")
    for task, doc in _SUITE.items():
        yield _environment(_envpool_id(task), doc, ENVPOOL, "suite")
    for task, doc in _LOCOMOTION.items():
        yield _environment(f"dm_control/{task}-v0", doc, GYMNASIUM, "locomotion")
    for task, doc in _MANIPULATION.items():
        sentence = f"{doc[:-1]} with a Jaco arm"
        yield _environment(f"dm_control/{task}_features-v0", f"{sentence}.", GYMNASIUM, "manipulation")
        if task not in _FEATURES_ONLY:
            seen = f"{sentence}, seen by a camera."
            yield _environment(f"dm_control/{task}_vision-v0", seen, GYMNASIUM, "manipulation")


def _environment(env_id: str, doc: str, backends: tuple[str, ...], group: str) -> Environment:
    return Environment(env_id, "dm_control", "continuous", "dict", doc, backends, group)


def _envpool_id(task: str) -> str:
    """Return EnvPool's id of a task: cartpole-two_poles as CartpoleTwoPoles-v1."""
    words = task.replace("-", "_").split("_")
    return "".join(word[:1].upper() + word[1:] for word in words) + "-v1"


ENVIRONMENTS = tuple(_environments())
