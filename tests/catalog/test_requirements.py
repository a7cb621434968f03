"""What is said when a package is missing."""

import json
import subprocess
import sys

import pytest

from mosaic.catalog import find, group_of, missing_package

ASK = (
    "import json, sys; from mosaic.catalog import *; print(json.dumps(missing_package(find(sys.argv[1]), sys.argv[2])))"
)


@pytest.mark.parametrize(
    ("env_id", "backend", "said"),
    [
        ("CartPole-v1", "gymnasium", "gymnasium is not installed; run: pip install mosaic-rl"),
        ("CartPole-v1", "envpool", "envpool is not installed; run: pip install 'mosaic-rl[envpool]'"),
        ("LunarLander-v3", "gymnasium", "Box2D is not installed; run: pip install 'mosaic-rl[box2d]'"),
        ("HalfCheetah-v5", "gymnasium", "mujoco and imageio are not installed; run: pip install 'mosaic-rl[mujoco]'"),
        ("ALE/Pong-v5", "gymnasium", "ale_py is not installed; run: pip install 'mosaic-rl[atari]'"),
        ("Pong-v5", "", "envpool is not installed; run: pip install 'mosaic-rl[envpool]'"),
        ("CoinrunEasy-v0", "", "envpool is not installed; run: pip install 'mosaic-rl[envpool]'"),
        ("CheetahRun-v1", "", "envpool is not installed; run: pip install 'mosaic-rl[envpool]'"),
        (
            "dm_control/cheetah-run-v0",
            "",
            "dm_control and shimmy are not installed; run: pip install 'mosaic-rl[dm_control]'",
        ),
        ("MiniGrid-Empty-5x5-v0", "gymnasium", "minigrid is not installed; run: pip install mosaic-rl"),
        (
            "MiniGrid-WFC-MazeSimple-v0",
            "gymnasium",
            "minigrid, imageio and networkx are not installed; run: pip install 'minigrid[wfc]'",
        ),
    ],
)
def test_a_missing_package_is_named_with_its_pip_line(
    env_id: str, backend: str, said: str, source_path: dict[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", ASK, env_id, backend], env=source_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == said


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MiniGrid-Empty-5x5-v0", "BabyAI-GoTo-v0"])
def test_nothing_is_missing_for_what_a_plain_install_brings(env_id: str) -> None:
    assert missing_package(find(env_id)) is None


def test_a_backend_that_cannot_make_the_environment_is_refused() -> None:
    with pytest.raises(ValueError, match="ALE/Pong-v5 is made by gymnasium, not by 'envpool'"):
        missing_package(find("ALE/Pong-v5"), "envpool")


def test_an_environment_belongs_to_its_group_or_else_to_its_family() -> None:
    assert group_of(find("CarRacing-v3")).name == "box2d"
    assert group_of(find("Ant-v5")).name == "mujoco"
    assert group_of(find("MiniGrid-Empty-5x5-v0")).name == "minigrid"
