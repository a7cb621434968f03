"""What is said when a package is missing."""

import ctypes
import json
import subprocess
import sys

import pytest

from mosaic.catalog import find, group_of, ids, missing_package, missing_to_train, on_backend, requirements

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
            "",
            "envpool is not installed; run: pip install 'mosaic-rl[envpool]'",
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


@pytest.mark.parametrize("installed", ["ale_py", "envpool"])
@pytest.mark.parametrize("env_id", ["Breakout-v5", "ALE/Breakout-v5", "BreakoutNoFrameskip-v4"])
def test_an_atari_game_trains_with_either_package(env_id: str, installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "find_spec", lambda name: name if name == installed else None)
    assert missing_to_train(find(env_id)) is None
    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    assert missing_to_train(find(env_id)) == missing_package(find(env_id)) is not None


def test_what_only_one_package_makes_is_lacking_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "find_spec", lambda name: name if name == "envpool" else None)
    for env_id in ("LunarLander-v3", "HalfCheetah-v5", "pong_v3"):
        assert "pip install" in missing_to_train(find(env_id))


def test_every_atari_game_is_the_same_with_both_backends() -> None:
    for env_id in (one for one in ids("atari") if find(one).group != "multiplayer"):
        here, there = on_backend(find(env_id), "gymnasium"), on_backend(find(env_id), "envpool")
        assert on_backend(here, "envpool") == there and "gymnasium" in here.backends and "envpool" in there.backends
    assert on_backend(find("pong_v3"), "envpool") is None and on_backend(find("CheetahRun-v1"), "gymnasium") is None


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        ("libQt5Gui.so.5: cannot open shared object file: No such file", "libQt5Gui.so.5 is not there. Needs the Qt 5"),
        (
            "libharfbuzz.so.0: cannot open shared object file: No such file",
            "libharfbuzz.so.0, which libQt5Gui.so.5 needs, is not there. Needs the Qt 5",
        ),
        ("libQt5Gui.so.5: invalid ELF header", "libQt5Gui.so.5 cannot be loaded (libQt5Gui.so.5: invalid ELF header)."),
    ],
)
def test_the_library_that_is_absent_is_the_one_that_the_loader_named(
    loader: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        raise OSError(loader)

    monkeypatch.setattr(requirements, "find_spec", lambda name: name)
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert missing_package(find("MazeEasy-v0")).startswith(said)


def test_an_environment_belongs_to_its_group_or_else_to_its_family() -> None:
    assert group_of(find("CarRacing-v3")).name == "box2d"
    assert group_of(find("Ant-v5")).name == "mujoco"
    assert group_of(find("MiniGrid-Empty-5x5-v0")).name == "minigrid"
