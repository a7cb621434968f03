"""How finely MuJoCo's states are drawn, and that the camera does not lose who runs."""

import ctypes.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import cleanrl_worker
from cleanrl_worker.fastlane import mujoco_picture

SRC = Path(cleanrl_worker.__file__).parents[1]


def pace_after(seconds: list[float]) -> mujoco_picture.Pace:
    pace = mujoco_picture.Pace()
    for each in seconds:
        pace.took(each)
    return pace


def test_detail_falls_only_when_the_quickest_of_three_pictures_took_too_long() -> None:
    slow, quick = 2 * mujoco_picture.DRAW_SECONDS, mujoco_picture.DRAW_SECONDS / 2
    assert pace_after([slow] * 3).level == 0, "the first one compiles shaders"
    assert pace_after([slow] * 4).level == 1
    assert pace_after([slow] * 5).level == 1, "a new detail is judged anew"
    assert pace_after([slow, *[slow, slow, quick] * 20]).level == 0
    assert pace_after([slow] * 1000).level == len(mujoco_picture.DETAILS) - 1


def test_detail_comes_back_when_a_machine_is_no_longer_busy_but_not_over_and_over() -> None:
    slow, quick = 2 * mujoco_picture.DRAW_SECONDS, mujoco_picture.DRAW_SECONDS / 10
    pace = pace_after([slow] * 8)
    assert pace.level == 2
    for _ in range(mujoco_picture.QUICK_ONES + 1):
        pace.took(quick)
    assert pace.level == 1
    levels = []
    for _ in range(20 * mujoco_picture.QUICK_ONES):  # the finer one is too slow for good
        pace.took(slow if pace.level == 1 else quick)
        levels.append(pace.level)
    assert set(levels[len(levels) // 2 :]) == {2}
    assert mujoco_picture.Pace().level == 0
    pace.at_most(3)
    assert pace.level == 3


def test_each_detail_costs_no_more_than_the_one_before() -> None:
    for finer, coarser in zip(mujoco_picture.DETAILS, mujoco_picture.DETAILS[1:], strict=False):
        assert all(a >= b for a, b in zip(finer[:4], coarser[:4], strict=True)) and finer.every <= coarser.every


# In a process of its own, as GL always is here; prints how many pixels of each picture have the cheetah's colour.
DRAWING = """
import gymnasium as gym, numpy as np
from cleanrl_worker.fastlane.mujoco_picture import MujocoPicture
from cleanrl_worker.fastlane.mujoco_process import Physics

env = gym.make("HalfCheetah-v5")
env.reset(seed=1)
physics = Physics.of(env)
canvas = MujocoPicture(physics.camera, {max_dim}, lambda: 0.0)
canvas.load(physics.saved_model().tobytes())
states = []
for place in {places}:
    physics.data.qpos[0] = place
    states.append(physics.state())
picture = canvas.draw(np.array(states))
assert picture.dtype == np.uint8
height, width = picture.shape[:2]
rows = int(len(states) ** 0.5)
columns = -(-len(states) // rows)
print(width, height)
for row in np.split(picture.astype(int), rows):
    for tile in np.split(row, columns, axis=1):
        print(int((tile[:, :, 0] > tile[:, :, 2] + 30).sum()), int(tile.max()))
"""


@pytest.mark.skipif(ctypes.util.find_library("EGL") is None, reason="needs libegl1: make system")
@pytest.mark.parametrize(
    ("places", "size"), [([0.0], (480, 480)), ([100.0], (480, 480)), ([0.0, 7.0, -50.0, 3.0, 1000.0], (480, 320))]
)
def test_the_camera_follows_the_agent_in_every_tile(places: list[float], size: tuple[int, int]) -> None:
    text = textwrap.dedent(DRAWING).format(places=places, max_dim=480)
    environment = {**os.environ, "PYTHONPATH": str(SRC), "MUJOCO_GL": "egl"}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    first, *tiles = ([int(word) for word in line.split()] for line in done.stdout.splitlines())
    assert tuple(first) == size
    area = size[0] * size[1] / len(tiles)
    assert all(found > area / 200 for found, _ in tiles[: len(places)]), "who runs is in the picture"
    assert all(brightest == 0 for _, brightest in tiles[len(places) :]), "black where nobody is"
