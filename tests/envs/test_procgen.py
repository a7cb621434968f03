"""Procgen's games: what people call them, and which levels are played."""

import subprocess
import sys

import numpy as np
import pytest
from needs import needed

from cleanrl_worker.envs import pools
from cleanrl_worker.envs.procgen import GAMES, MODES, ProcgenView, backend_of, is_procgen
from cleanrl_worker.envs.vectors import EnvMaker
from cleanrl_worker.envs.views import view_of
from mosaic.catalog import find, ids


def test_every_game_of_the_catalog_is_known_under_each_of_its_names() -> None:
    assert {env_id for env_id in ids("procgen") if env_id.islower()} == set(GAMES)
    assert all(is_procgen(env_id) for env_id in ids("procgen"))
    assert not any(is_procgen(env_id) for env_id in ids() if find(env_id).family != "procgen")


@pytest.mark.parametrize(
    ("env_id", "mode", "made"),
    [
        ("starpilot", "auto", "StarpilotEasy-v0"),
        ("starpilot", "extreme", "StarpilotExtreme-v0"),
        ("CoinrunHard-v0", "auto", "CoinrunHard-v0"),
        ("CoinrunHard-v0", "hard", "CoinrunHard-v0"),
        ("procgen-maze-v0", "auto", "MazeHard-v0"),
        ("procgen:procgen-maze-v0", "memory", "MazeMemory-v0"),
    ],
)
def test_a_name_and_a_difficulty_make_the_id_of_envpool(env_id: str, mode: str, made: str) -> None:
    assert ProcgenView(mode, 3, 7).pool(env_id) == (made, {"start_level": 3, "num_levels": 7})


def test_two_difficulties_or_an_unknown_game_are_refused_in_one_line() -> None:
    with pytest.raises(SystemExit, match="MazeHard-v0 says hard and --distribution-mode says easy"):
        ProcgenView("easy").pool("MazeHard-v0")
    with pytest.raises(SystemExit, match="'starpilt' is no game of Procgen; did you mean 'starpilot'"):
        ProcgenView().pool("starpilt")


def test_levels_that_a_game_lacks_are_refused_with_those_that_it_has() -> None:
    pytest.importorskip("envpool")
    for game in GAMES:
        known = {env_id for env_id in ids("procgen") if env_id.startswith(game.capitalize())}
        for mode in set(MODES) - {env_id.removeprefix(game.capitalize()).partition("-")[0].lower() for env_id in known}:
            with pytest.raises(SystemExit, match=f"{game} has no {mode} levels, only easy, hard"):
                ProcgenView(mode).pool(game)
    with pytest.raises(SystemExit, match="only easy, hard, extreme"):
        ProcgenView("memory").pool("procgen-starpilot-v0")


def test_our_image_game_is_taken_as_it_is_and_made_by_gymnasium() -> None:
    env = EnvMaker("mosaic/Catch-v0", view=ProcgenView())()
    assert env.observation_space.shape == (4, 84, 84)
    assert (backend_of("mosaic/Catch-v0", "auto"), backend_of("starpilot", "auto")) == ("gymnasium", "envpool")
    assert backend_of("starpilot", "gymnasium") == "gymnasium"
    with pytest.raises(SystemExit, match="made by EnvPool only"):
        EnvMaker("CartPole-v1", view=ProcgenView())()


def test_the_range_of_levels_is_what_is_played() -> None:
    needed("procgen")

    def first(seed: int, **args: int) -> np.ndarray:
        return pools.make_seen("maze", 3, seed, None, view_of("maze", args)).reset(seed)

    one = first(1, start_level=7, num_levels=1)
    assert (one == one[0]).all() and (one == first(2, start_level=7, num_levels=1)).all()
    assert not (one == first(1, start_level=8, num_levels=1)).all()
    every = first(1)
    assert not (every == every[0]).all()


# What the loader says of EnvPool's library; EnvPool keeps it to itself until a game is made, and then in its own words.
MISSING = """
import importlib, sys
class NoQt:
    def find_spec(self, name, *_):
        if name == "envpool.procgen.procgen_envpool":
            raise ImportError("libQt5Gui.so.5: cannot open shared object file: No such file or directory")
sys.meta_path.insert(0, NoQt())
from cleanrl_worker.envs import pools
try:
    pools.make_pool(sys.argv[1], [0])
except SystemExit as error:
    print(error)
else:
    print("made")
"""


@pytest.mark.parametrize(
    ("env_id", "said"),
    [("MazeEasy-v0", "MazeEasy-v0 needs Qt 5, which is missing"), ("CheetahRun-v1", "made"), ("None-v0", "has no env")],
)
def test_without_qt_a_line_says_what_to_install_and_others_are_made(env_id: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", MISSING, env_id], capture_output=True, text=True, timeout=300)
    assert said in done.stdout, done.stderr
    assert ("apt-get install -y libqt5gui5 libqt5core5a" in done.stdout) == (env_id == "MazeEasy-v0")
