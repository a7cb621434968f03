"""Families: kinds of environments, described in a paragraph each, and their required packages."""

from dataclasses import dataclass

ENVPOOL_PACKAGES: tuple[str, ...] = ("envpool",)
ENVPOOL_EXTRA = "envpool"


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of environments; its groups are subfamilies with requirements of their own."""

    name: str
    label: str
    doc: str
    packages: tuple[str, ...]
    """modules that must be importable to make its environments through Gymnasium (Procgen and WFC: through EnvPool)"""
    extra: str | None
    """the extra of mosaic-rl that installs them; None if a plain install suffices"""
    system: str = ""
    """requirements that pip cannot install"""
    libraries: tuple[str, ...] = ()
    """system libraries; `system` describes how to install them"""
    groups: "tuple[Family, ...]" = ()

    @property
    def pip_line(self) -> str:
        """Return the command that installs this family's packages."""
        return pip_line(self.extra)


def pip_line(extra: str | None) -> str:
    """Return a pip command, quoted because zsh reads brackets as a pattern."""
    return f"pip install 'mosaic-rl[{extra}]'" if extra else "pip install mosaic-rl"


_CLASSIC = Family(
    "classic-control",
    "Classic control",
    "Five small physics problems with a handful of numbers as observation. A run takes seconds to minutes on one "
    "core, which makes them the first test of any algorithm.",
    ("gymnasium",),
    None,
)
_TOY_TEXT = Family(
    "toy-text",
    "Toy text",
    "Tabular problems: the observation is the number of a state (three numbers in Blackjack), so a network needs "
    "it one-hot encoded. Small enough to compare with exact dynamic programming.",
    ("gymnasium",),
    None,
)
_BOX2D = Family(
    "box2d",
    "Box2D",
    "Landing, walking and driving in the 2D physics engine Box2D. Harder than classic control and still cheap; "
    "Car Racing is seen as an image.",
    ("Box2D",),
    "box2d",
)
_IMAGES = Family(
    "image-games",
    "Image games",
    "Small games of MOSAIC's own, seen like Atari's as four grey frames of 84×84. Every image algorithm takes them and "
    "learns them within minutes on two cores: the first test of one.",
    ("gymnasium",),
    None,
)
_MULTIPLAYER = Family(
    "multiplayer",
    "Atari 2600 for several players",
    "24 games that two or four play at once, from PettingZoo, with the ROMs of ale-py. A policy plays all sides; a "
    "person gives an action for each of them.",
    ("pettingzoo", "multi_agent_ale_py", "ale_py"),
    "multiagent",
)
_WFC = Family(
    "wfc",
    "MiniGrid wave function collapse",
    "Levels generated from an example picture by wave function collapse, different at every reset. Making a level "
    "takes much longer than in the other MiniGrid tasks. They run in EnvPool only.",
    ENVPOOL_PACKAGES,
    ENVPOOL_EXTRA,
)
_DM_CONTROL_PACKAGES = ("dm_control", "shimmy")
_EGL = "Rendering without a display needs EGL (Debian: libegl1) and MUJOCO_GL=egl, which the worker sets for its runs."
_SUITE = Family(
    "suite",
    "DM Control suite",
    "The benchmark suite: 51 tasks in 19 domains, nearly all with rewards between 0 and 1 a step and episodes of 1,000 "
    "steps that do not end early.",
    _DM_CONTROL_PACKAGES,
    "dm_control",
    _EGL,
)
_LOCOMOTION = Family(
    "locomotion",
    "DM Control locomotion",
    "A CMU humanoid or a rodent in corridors, mazes and arenas, most of them with a camera in the observation.",
    _DM_CONTROL_PACKAGES,
    "dm_control",
    _EGL,
)
_MANIPULATION = Family(
    "manipulation",
    "DM Control manipulation",
    "A Jaco arm that reaches, lifts, places and stacks bricks; each task comes with features or with a camera image.",
    _DM_CONTROL_PACKAGES,
    "dm_control",
    _EGL,
)

_ALL = (
    Family(
        "gymnasium",
        "Gymnasium",
        "Gymnasium's own environments: classic control and toy text, which need nothing beyond a plain install, and "
        "Box2D; with them, small image games of ours. Start here: CartPole-v1 for discrete actions, Pendulum-v1 for "
        "continuous ones.",
        ("gymnasium",),
        None,
        groups=(_CLASSIC, _TOY_TEXT, _BOX2D, _IMAGES),
    ),
    Family(
        "atari",
        "Atari 2600",
        "104 Atari 2600 games in the Arcade Learning Environment, seen as images; the ROMs come with the package. "
        "ALE/<Game>-v5 has sticky actions and a frame skip of 4; <Game>NoFrameskip-v4 is the raw game that DeepMind's "
        "preprocessing expects and most published curves use; <Game>-v5 without a prefix is EnvPool's, preprocessed "
        "and vectorized in C++.",
        ("ale_py",),
        "atari",
        groups=(_MULTIPLAYER,),
    ),
    Family(
        "procgen",
        "Procgen",
        "Sixteen games whose levels are generated anew from a seed, made to measure generalisation: train on some "
        "levels, test on others. Images of 64×64 and 15 actions in every game. They run in EnvPool only; the "
        "difficulty (Easy, Hard, Extreme, Memory, Exploration) is part of the id.",
        ENVPOOL_PACKAGES,
        ENVPOOL_EXTRA,
        "Needs the Qt 5 libraries (Debian: apt install libqt5gui5 libqt5core5a).",
        ("libQt5Gui.so.5", "libQt5Core.so.5"),
    ),
    Family(
        "mujoco",
        "MuJoCo",
        "Robots in the physics engine MuJoCo, with continuous torques and vector observations: the standard benchmark "
        "of continuous control. Use v5; v4 is kept for comparison with results published on it.",
        ("mujoco", "imageio"),
        "mujoco",
        _EGL,
    ),
    Family(
        "dm_control",
        "DeepMind Control",
        "DeepMind's MuJoCo tasks with continuous actions and a dictionary of named parts as observation. "
        "dm_control/<domain>-<task>-v0 comes through Shimmy; <Domain><Task>-v1 is EnvPool's version of the suite.",
        _DM_CONTROL_PACKAGES,
        "dm_control",
        _EGL,
        groups=(_SUITE, _LOCOMOTION, _MANIPULATION),
    ),
    Family(
        "minigrid",
        "MiniGrid",
        "Small grid worlds with sparse rewards: keys, doors, lava, memory. The agent sees the 7×7 cells in front of "
        "it, its direction and a mission in words, and turns, walks, picks up, drops, toggles or says done. The "
        "reward for success is 1 − 0.9 × steps / step limit. Sizes in the ids count the walls.",
        ("minigrid",),
        None,
        groups=(_WFC,),
    ),
    Family(
        "babyai",
        "BabyAI",
        "Instruction following on MiniGrid's grids: every episode has a mission in a small subset of English, from "
        "“go to the red ball” to sequences of several instructions over nine rooms. The levels form a ladder, which "
        "suits curricula. The mission matters: an agent that does not read it fails most levels.",
        ("minigrid",),
        None,
    ),
)

FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}
