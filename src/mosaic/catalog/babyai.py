"""BabyAI: verbal missions in MiniGrid's grids, from one step to several rooms."""

from mosaic.catalog.environment import BOTH, Environment, expand

# Level, sentence, sizes to fill both with. All ids end in -v0 but the one in _V1.
_LEVELS: tuple[tuple[str, str, tuple[tuple[int, ...], ...]], ...] = (
    ("GoToRedBallNoDists", "Go to the red ball, the only object of one room.", ((),)),
    ("GoToRedBallGrey", "Go to the red ball in one room with seven grey distractors.", ((),)),
    ("GoToRedBall", "Go to the red ball in one room with seven distractors of any colour.", ((),)),
    ("GoToRedBlueBall", "Go to the one ball that is red or blue, in a room with seven distractors.", ((),)),
    ("GoToObj", "Go to the only object of an 8×8 room.", ((),)),
    ("GoToObjS{0}", "Go to the only object of a {0}×{0} room.", ((4,), (6,))),
    ("GoToLocal", "Go to the named object among eight in an 8×8 room.", ((),)),
    (
        "GoToLocalS{0}N{1}",
        "Go to the named object among {1} in a {0}×{0} room.",
        ((5, 2), (6, 2), (6, 3), (6, 4), (7, 4), (7, 5), (8, 2), (8, 3), (8, 4), (8, 5), (8, 6), (8, 7)),
    ),
    ("GoTo", "Go to the named object among 18 in 3×3 rooms with closed doors.", ((),)),
    ("GoToOpen", "Go to the named object among 18 in 3×3 rooms with open doors.", ((),)),
    ("GoToObjMaze", "Find the only object in 3×3 rooms with closed doors.", ((),)),
    ("GoToObjMazeOpen", "Find the only object in 3×3 rooms with open doors.", ((),)),
    ("GoToObjMazeS{0}R2", "Find the only object in 2×2 rooms of {0}×{0} with closed doors.", ((4,),)),
    (
        "GoToObjMazeS{0}",
        "Find the only object in 3×3 rooms of {0}×{0} with closed doors.",
        ((4,), (5,), (6,), (7,)),
    ),
    ("GoToImpUnlock", "Go to an object in a locked room; the mission does not mention the key it takes.", ((),)),
    ("GoToSeq", "Go to several objects in the order that “then”, “after” and “and” tell, in 3×3 rooms.", ((),)),
    ("GoToSeqS5R2", "Go to several objects in the order that the mission tells, in 2×2 rooms of 5×5.", ((),)),
    ("GoToDoor", "Go to the door of the named colour, among four of the room.", ((),)),
    ("GoToObjDoor", "Go to the named object or door, among eight objects and four doors of the room.", ((),)),
    ("OpenRedDoor", "Open the red door, the only one, of a 5×5 room: a first check of an agent.", ((),)),
    ("OpenDoor", "Open one of the room's four doors, named by colour or by location.", ((),)),
    ("OpenDoorDebug", "Open one of the room's four doors as named; a wrong one ends the episode.", ((),)),
    ("OpenDoorColor", "Open one of the room's four doors, named by colour.", ((),)),
    ("OpenDoorLoc", "Open one of the room's four doors, named by location.", ((),)),
    ("Open", "Open the named door, which may be in another of 3×3 rooms.", ((),)),
    ("OpenTwoDoors", "Open two doors on opposite sides of the room in the given order; needs memory.", ((),)),
    ("OpenRedBlueDoors", "Open the red door, then the blue one on the opposite side; needs memory.", ((),)),
    ("OpenRedBlueDoorsDebug", "OpenRedBlueDoors where opening a wrong door first ends the episode.", ((),)),
    ("OpenDoorsOrderN{0}", "Open one door, or two in the given order, of the room's {0}.", ((2,), (4,))),
    ("OpenDoorsOrderN{0}Debug", "OpenDoorsOrderN{0} where a wrong door ends the episode.", ((2,), (4,))),
    ("Pickup", "Pick up the named object among 18 in 3×3 rooms.", ((),)),
    ("UnblockPickup", "Pick up the named object among 20 in 3×3 rooms, some behind others that block the way.", ((),)),
    ("PickupLoc", "Pick up an object of the room that may be named by its location, such as “on your left”.", ((),)),
    ("PickupDist", "Pick up one of five objects of the room, named by type, colour or both.", ((),)),
    ("PickupDistDebug", "PickupDist where a wrong object ends the episode.", ((),)),
    ("PickupAbove", "Pick up the object in the room above, which takes a sense of direction.", ((),)),
    ("PutNextLocal", "Put an object next to another, as named among eight in an 8×8 room.", ((),)),
    (
        "PutNextLocalS{0}N{1}",
        "Put an object next to another, as named among {1} in a {0}×{0} room.",
        ((5, 3), (6, 4)),
    ),
    (
        "PutNextS{0}N{1}",
        "Put an object next to another in the other half of a double room; each half {0}×{0}, objects in it: {1}.",
        ((4, 1), (5, 1), (5, 2), (6, 3), (7, 4)),
    ),
    (
        "PutNextS{0}N{1}Carrying",
        "PutNextS{0}N{1} with the object already in hand at the start.",
        ((5, 2), (6, 3), (7, 4)),
    ),
    (
        "MoveTwoAcrossS{0}N{1}",
        "Put two objects next to two others across a double room, in order; each half {0}×{0} with {1} objects.",
        ((5, 2), (8, 9)),
    ),
    ("UnlockLocal", "Fetch the key and open the locked door of the room.", ((),)),
    ("UnlockLocalDist", "Fetch the key among three distractors and open the locked door of the room.", ((),)),
    ("KeyInBox", "Open the locked door with a key that is hidden in a box.", ((),)),
    ("Unlock", "Find the key in 3×3 rooms with distractors and open the locked door.", ((),)),
    ("UnlockPickup", "Unlock the door between two rooms and pick up the box behind it.", ((),)),
    ("UnlockPickupDist", "UnlockPickup with four distractors.", ((),)),
    ("BlockedUnlockPickup", "Move the ball from a locked door, unlock it and pick up the box behind it.", ((),)),
    ("UnlockToUnlock", "Unlock a door to reach the key of a second one, and pick up the ball behind that.", ((),)),
    ("ActionObjDoor", "Go to, pick up or open the named object or door of the room.", ((),)),
    ("FindObjS{0}", "Find the only object in 3×3 rooms of {0}×{0} and pick it up.", ((5,), (6,), (7,))),
    ("KeyCorridor", "Find the key along a corridor of three rows, unlock a room and pick up the ball in it.", ((),)),
    (
        "KeyCorridorS{0}R{1}",
        "Find the key along a corridor, unlock a room and pick up the ball in it. Rows: {1}; rooms of {0}×{0}.",
        ((3, 1), (3, 2), (3, 3), (4, 3), (5, 3), (6, 3)),
    ),
    ("OneRoomS{0}", "Pick up the ball, the only object of a {0}×{0} room.", ((8,), (12,), (16,), (20,))),
    ("Synth", "Go to, pick up, open or put next to, as the mission says, in 3×3 rooms with things in the way.", ((),)),
    ("SynthS5R2", "Synth in 2×2 rooms of 5×5.", ((),)),
    ("SynthLoc", "Synth with objects that may be named by location.", ((),)),
    ("SynthSeq", "SynthLoc with several instructions in one mission.", ((),)),
    ("MiniBossLevel", "Every kind of mission in 2×2 rooms of 5×5, a quarter of them with a locked room.", ((),)),
    ("BossLevel", "Every kind of mission in 3×3 rooms, locked ones included: the last level.", ((),)),
    ("BossLevelNoUnlock", "BossLevel without locked rooms.", ((),)),
)

_V1 = frozenset({"GoToObjS6"})

ENVIRONMENTS = tuple(
    Environment(f"BabyAI-{name}-v{1 if name in _V1 else 0}", "babyai", "discrete", "grid", sentence, BOTH)
    for level, doc, sizes in _LEVELS
    for name, sentence in expand(level, doc, sizes)
)
