"""Finding environments, listing ids, and old ids."""

import subprocess
import sys

import pytest

from mosaic.catalog import FAMILIES, find, ids, successor


def test_find_knows_an_exact_id_and_nothing_else() -> None:
    assert find("CartPole-v1").env_id == "CartPole-v1"
    assert find("cartpole-v1") is None
    assert find("my_package:Maze-v0") is None


def test_names_of_the_procgen_package_are_those_of_its_hard_levels() -> None:
    for alias in ("procgen-starpilot-v0", "procgen:procgen-starpilot-v0"):
        assert find(alias) == find("StarpilotHard-v0") is not None
        assert alias not in ids() and successor(alias) is None


def test_ids_are_unique_and_cover_every_family_and_group() -> None:
    every = ids()
    assert len(every) == len(set(every))
    assert {find(env_id).family for env_id in every} == set(FAMILIES)
    for family in FAMILIES.values():
        groups = {find(env_id).group for env_id in ids(family.name)} - {""}
        assert groups == {group.name for group in family.groups}


def test_ids_of_a_family_are_those_of_its_environments() -> None:
    assert ids("gymnasium", "box2d") == (
        "LunarLander-v3",
        "LunarLanderContinuous-v3",
        "BipedalWalker-v3",
        "BipedalWalkerHardcore-v3",
        "CarRacing-v3",
    )
    assert sum(len(ids(family)) for family in FAMILIES) == len(ids())


def test_an_unknown_family_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown family 'atary'; the families are gymnasium, atari, procgen"):
        ids("atary")


def test_every_environment_is_complete() -> None:
    for env_id in ids():
        environment = find(env_id)
        assert environment.action_space in {"discrete", "continuous", "multi_discrete"}, env_id
        assert environment.observation_space in {"vector", "image", "grid", "discrete", "tuple", "dict"}, env_id
        assert environment.backends in {("gymnasium",), ("envpool",), ("gymnasium", "envpool")}, env_id
        assert environment.doc.endswith(".") and 20 <= len(environment.doc) <= 240, env_id
        assert "{" not in environment.doc, env_id


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("HalfCheetah-v2", "HalfCheetah-v5"),
        ("HalfCheetah-v4", "HalfCheetah-v5"),
        ("Pusher-v4", "Pusher-v5"),
        ("CartPole-v0", "CartPole-v1"),
        ("Taxi-v3", "Taxi-v4"),
        ("LunarLander-v2", "LunarLander-v3"),
        ("Blackjack-v0", "Blackjack-v1"),
        ("Pong-v0", "ALE/Pong-v5"),
        ("PongDeterministic-v4", "ALE/Pong-v5"),
        ("PongNoFrameskip-v0", "PongNoFrameskip-v4"),
        ("BabyAI-GoToObjS6-v0", "BabyAI-GoToObjS6-v1"),
        ("MiniGrid-MultiRoom-N4-S5-v0", "MiniGrid-MultiRoom-N4-S5-v1"),
    ],
)
def test_an_old_id_has_a_successor(old: str, new: str) -> None:
    assert successor(old) == new
    assert find(new) is not None


@pytest.mark.parametrize(
    "env_id", ["HalfCheetah-v5", "Pong-v5", "Blackjack-v1", "HalfCheetah-v6", "Nothing-v1", "x", ""]
)
def test_a_current_or_unknown_id_has_no_successor(env_id: str) -> None:
    assert successor(env_id) is None


def test_every_renamed_id_leads_into_the_catalog() -> None:
    from mosaic.catalog import atari

    assert all(find(new) is not None and find(old) is None for old, new in atari.RENAMED.items())


def test_importing_the_catalog_is_small_and_needs_only_the_standard_library(source_path: dict[str, str]) -> None:
    # dataclasses is loaded by every process of ours anyway. -S: without site-packages.
    code = (
        "import dataclasses, functools, importlib.util, sys, tracemalloc\n"
        "before = set(sys.modules)\n"
        "tracemalloc.start()\n"
        "import mosaic.catalog\n"
        "print(tracemalloc.get_traced_memory()[0] / 1e6)\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=source_path, capture_output=True, text=True, check=True
    )
    megabytes, imported = done.stdout.splitlines()
    assert float(megabytes) < 2
    assert set(imported.split()) <= {"mosaic", *sys.stdlib_module_names}
    assert not set(imported.split()) & {"json", "subprocess", "asyncio", "typing_extensions", "email", "urllib"}
