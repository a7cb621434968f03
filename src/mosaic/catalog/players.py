"""Multiplayer Atari games, under PettingZoo's names."""

from mosaic.catalog.environment import GYMNASIUM, Environment

GROUP = "multiplayer"

_GAMES = (
    ("basketball_pong_v3", "Pong with two baskets, for two players"),
    ("boxing_v2", "Two boxers in a ring: a hit is a point, the hit one loses it"),
    ("combat_plane_v2", "Two planes that shoot at each other"),
    ("combat_tank_v2", "Two tanks that shoot at each other among walls"),
    ("double_dunk_v3", "Basketball of two against two, a player for each team"),
    ("entombed_competitive_v3", "Two players in a scrolling maze; the one who is caught loses"),
    ("entombed_cooperative_v3", "Two players who help each other through a scrolling maze"),
    ("flag_capture_v2", "Two players who look for a hidden flag"),
    ("foozpong_v3", "Pong with the rows of table football, for four players"),
    ("ice_hockey_v2", "Ice hockey of two against two, a player for each team"),
    ("joust_v3", "Two knights on ostriches who unseat others and each other"),
    ("mario_bros_v3", "Two plumbers who clear pipes of pests, together and against each other"),
    ("maze_craze_v3", "Two players who race through a maze"),
    ("othello_v3", "The board game Othello, moved with a cursor"),
    ("pong_v3", "Pong, each paddle a player"),
    ("quadrapong_v4", "Pong with four sides, for four players in two teams"),
    ("space_invaders_v2", "Two cannons against one army"),
    ("space_war_v2", "Two ships that shoot at each other in space"),
    ("surround_v2", "Two trails that must not run into anything, as in Tron"),
    ("tennis_v3", "Tennis, a player on each side"),
    ("video_checkers_v4", "Checkers, moved with a cursor"),
    ("volleyball_pong_v3", "Pong over a net, for four players"),
    ("warlords_v3", "Four castles that throw fireballs at each other"),
    ("wizard_of_wor_v3", "Two players in a dungeon of monsters, who may hit each other"),
)

_FOR_FOUR = {"foozpong_v3", "quadrapong_v4", "volleyball_pong_v3", "warlords_v3"}

ENVIRONMENTS = tuple(
    Environment(
        *(env_id, "atari", "multi_discrete", "image", f"{doc} (PettingZoo).", GYMNASIUM, GROUP),
        players=4 if env_id in _FOR_FOUR else 2,
    )
    for env_id, doc in _GAMES
)
