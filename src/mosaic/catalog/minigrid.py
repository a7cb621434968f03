"""MiniGrid: grid worlds with keys, doors, lava and memory."""

from collections.abc import Iterator

from mosaic.catalog.environment import BOTH, ENVPOOL, GYMNASIUM, Environment, expand

# Id pattern, sentence, sizes to fill both with.
_TASKS: tuple[tuple[str, str, tuple[tuple[int, ...], ...]], ...] = (
    (
        "Empty-{0}x{0}-v0",
        "Reach the green goal square in the opposite corner of an empty {0}×{0} room.",
        ((5,), (6,), (8,), (16,)),
    ),
    (
        "Empty-Random-{0}x{0}-v0",
        "Reach the green goal square in the corner of an empty {0}×{0} room from a random start.",
        ((5,), (6,)),
    ),
    (
        "DoorKey-{0}x{0}-v0",
        "Pick up the key, unlock the door and reach the green goal square of a {0}×{0} grid; rewarded only at the end.",
        ((5,), (6,), (8,), (16,)),
    ),
    (
        "Dynamic-Obstacles-{0}x{0}-v0",
        "Reach the goal of a {0}×{0} room among {1} moving balls: hitting one, or a wall, costs 1 and ends the "
        "episode. Only turning and walking.",
        ((5, 2), (6, 3), (8, 4), (16, 8)),
    ),
    (
        "Dynamic-Obstacles-Random-{0}x{0}-v0",
        "Reach the goal of a {0}×{0} room among {1} moving balls from a random start: hitting one, or a wall, costs 1 "
        "and ends the episode. Only turning and walking.",
        ((5, 2), (6, 3)),
    ),
    (
        "Fetch-{0}x{0}-N{1}-v0",
        "Pick up the object that the mission names among {1} in a {0}×{0} room; a wrong one ends the episode.",
        ((5, 2), (6, 2), (8, 3)),
    ),
    ("FourRooms-v0", "Reach the goal in four rooms joined by gaps; agent and goal start anywhere.", ((),)),
    (
        "GoToDoor-{0}x{0}-v0",
        "Stand next to the door of the named colour, among four of a {0}×{0} room, and say done.",
        ((5,), (6,), (8,)),
    ),
    (
        "GoToObject-{0}x{0}-N{1}-v0",
        "Stand next to the object that the mission names, of {1} in a {0}×{0} room, and say done.",
        ((6, 2), (8, 2)),
    ),
    (
        "KeyCorridorS{0}R{1}-v0",
        "Find the key in the rooms along a corridor, unlock a door and pick up the ball behind it. Rows: {1}; rooms "
        "of {0}×{0}. The sizes form a curriculum.",
        ((3, 1), (3, 2), (3, 3), (4, 3), (5, 3), (6, 3)),
    ),
    (
        "LavaGapS{0}-v0",
        "Reach the goal of a {0}×{0} grid through the one gap in a strip of lava; lava ends the episode.",
        ((5,), (6,), (7,)),
    ),
    (
        "LavaCrossingS{0}N{1}-v0",
        "Reach the goal of a {0}×{0} grid across lava that ends the episode. Streams, each with one gap: {1}.",
        ((9, 1), (9, 2), (9, 3), (11, 5)),
    ),
    (
        "SimpleCrossingS{0}N{1}-v0",
        "LavaCrossing with walls in place of lava, on a {0}×{0} grid. Walls, each with one gap: {1}.",
        ((9, 1), (9, 2), (9, 3), (11, 5)),
    ),
    ("DistShift1-v0", "Reach the goal past two strips of lava that leave a wide passage: train here.", ((),)),
    ("DistShift2-v0", "DistShift1 with the second strip of lava moved: test generalisation here.", ((),)),
    (
        "LockedRoom-v0",
        "Read in the mission which of six rooms holds the key, open the locked room and reach the goal; very sparse.",
        ((),),
    ),
    (
        "MemoryS{0}-v0",
        "Remember the object at the start and go to the same one at the end of a hallway, in a {0}×{0} grid; needs "
        "memory.",
        ((7,), (9,), (11,), (13,)),
    ),
    (
        "MemoryS{0}Random-v0",
        "Remember the object at the start and go to the same one at the end of a hallway of random length, in a "
        "{0}×{0} grid; needs memory.",
        ((13,), (17,)),
    ),
    ("MultiRoom-N2-S4-v0", "Open the doors of two small rooms and reach the goal in the last.", ((),)),
    ("MultiRoom-N4-S5-v0", "Open the doors of six rooms (not four: v1 corrects it) and reach the goal.", ((),)),
    (
        "MultiRoom-N6-v0",
        "Open the doors of six rooms of up to 10×10 and reach the goal; hard without a curriculum.",
        ((),),
    ),
    ("ObstructedMaze-1Dl-v0", "Pick up the blue ball behind a locked door.", ((),)),
    ("ObstructedMaze-1Dlh-v0", "Pick up the blue ball behind a locked door, its key in a box.", ((),)),
    (
        "ObstructedMaze-1Dlhb-v0",
        "Pick up the blue ball behind a locked door, its key in a box, a ball in the way.",
        ((),),
    ),
    ("ObstructedMaze-2Dl-v0", "Pick up the blue ball behind one of two locked doors.", ((),)),
    ("ObstructedMaze-2Dlh-v0", "Pick up the blue ball behind one of two locked doors, their keys in boxes.", ((),)),
    ("ObstructedMaze-2Dlhb-v{0}", "ObstructedMaze-2Dlh with balls in front of the doors.", ((0,), (1,))),
    (
        "ObstructedMaze-1Q-v{0}",
        "Pick up the blue ball in one quarter of a maze of 3×3 rooms, all hindrances.",
        ((0,), (1,)),
    ),
    (
        "ObstructedMaze-2Q-v{0}",
        "Pick up the blue ball in one half of a maze of 3×3 rooms, all hindrances.",
        ((0,), (1,)),
    ),
    (
        "ObstructedMaze-Full-v{0}",
        "Pick up the blue ball anywhere in a maze of 3×3 rooms, all hindrances.",
        ((0,), (1,)),
    ),
    ("Playground-v0", "Nine rooms with keys, balls and boxes, no mission and no reward: for exploration.", ((),)),
    (
        "PutNear-{0}x{0}-N{1}-v0",
        "Put the object that the mission names near another, among {1} in a {0}×{0} room; one mistake ends it.",
        ((6, 2), (8, 3)),
    ),
    (
        "RedBlueDoors-{0}x{0}-v0",
        "Open the red door, then the blue one on the other side of a {0}×{0} room; the wrong order ends the episode.",
        ((6,), (8,)),
    ),
    ("Unlock-v0", "Fetch the key and open the locked door.", ((),)),
    ("UnlockPickup-v0", "Fetch the key, unlock the door and pick up the box behind it.", ((),)),
    (
        "BlockedUnlockPickup-v0",
        "Move the ball that blocks a locked door, unlock it and pick up the box behind it.",
        ((),),
    ),
)

# EnvPool lacks it.
_GYMNASIUM_ONLY = (("MultiRoom-N4-S5-v1", "Open the doors of four rooms of up to 5×5 and reach the goal."),)

# Gymnasium registers them too, but fails at the first reset: minigrid's package lacks the images.
_WFC = {
    "MazeSimple": "a plain maze",
    "DungeonMazeScaled": "a dungeon's corridors",
    "RoomsFabric": "blocky rooms in a fabric's pattern",
    "ObstaclesBlackdots": "open space with small clusters of walls",
    "ObstaclesAngular": "jagged, slanting walls",
    "ObstaclesHogs3": "a dense field of obstacles",
}


def _environments() -> Iterator[Environment]:
    for pattern, doc, sizes in _TASKS:
        for name, sentence in expand(pattern, doc, sizes):
            yield Environment(f"MiniGrid-{name}", "minigrid", "discrete", "grid", sentence, BOTH)
    for name, sentence in _GYMNASIUM_ONLY:
        yield Environment(f"MiniGrid-{name}", "minigrid", "discrete", "grid", sentence, GYMNASIUM)
    for preset, look in _WFC.items():
        sentence = f"Reach the goal of a generated level: {look}."
        yield Environment(f"MiniGrid-WFC-{preset}-v0", "minigrid", "discrete", "grid", sentence, ENVPOOL, "wfc")


ENVIRONMENTS = tuple(_environments())
