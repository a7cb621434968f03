"""Which backend makes an environment with what is installed."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from cleanrl_worker.envs import pools
from cleanrl_worker.plan import backends
from mosaic import catalog
from mosaic.catalog import games, requirements

Installed = Callable[..., None]

# In a process of its own: other tests may register environments in this one.
MADE_BY_GYMNASIUM = """
import ale_py, gymnasium, minigrid
gymnasium.register_envs(minigrid)
print(*(name for name, spec in gymnasium.registry.items() if not callable(spec.entry_point)))
"""


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Says which packages are installed."""

    def installed(*names: str) -> None:
        monkeypatch.setattr(requirements, "find_spec", lambda name: name if name in names else None)

    return installed


def found(env_id: str) -> catalog.Environment:
    known = catalog.find(env_id)
    assert known is not None
    return known


def test_auto_takes_who_is_installed_and_names_the_environments_own_where_nobody_is(only: Installed) -> None:
    for installed, of_one, of_two in (
        (("ale_py", "envpool"), "gymnasium", "envpool"),
        (("ale_py",), "gymnasium", "gymnasium"),
        (("envpool",), "envpool", "envpool"),
    ):
        only(*installed)
        for env_id in ("ALE/Breakout-v5", "Breakout-v5"):
            assert backends.chosen(found(env_id), "envpool", num_envs=1) == of_one
            assert backends.chosen(found(env_id), "envpool", num_envs=2) == of_two
    only()
    assert backends.chosen(found("ALE/Breakout-v5"), "envpool") == "gymnasium"
    assert backends.chosen(found("Breakout-v5"), "envpool") == "envpool"
    assert backends.chosen(found("HalfCheetah-v5"), "gymnasium") == "gymnasium"


def test_auto_leaves_envpool_out_where_a_vectorization_of_gymnasium_is_asked_for(only: Installed) -> None:
    only("ale_py", "envpool")
    assert backends.chosen(found("Breakout-v5"), "envpool", "native") == "gymnasium"
    only("envpool")
    assert backends.chosen(found("Breakout-v5"), "envpool", "native") == "gymnasium"


def test_a_policy_keeps_its_backend_where_that_has_the_environment() -> None:
    assert backends.that_has("HalfCheetah-v5", "envpool") == "envpool"
    assert backends.that_has("CheetahRun-v1", "auto") == backends.that_has("CheetahRun-v1", "gymnasium") == "envpool"
    assert backends.that_has("dm_control/cheetah-run-v0", "envpool") == "gymnasium"
    assert backends.that_has("Breakout-v5", "auto") == "auto"
    assert backends.that_has("own:Env-v0", "envpool", trained_on="CartPole-v1") == "auto"
    assert backends.that_has("Pusher-v4", "envpool", trained_on="Pusher-v4") == "envpool"


POOLED = [env_id for env_id in catalog.ids() if "envpool" in found(env_id).backends]


@pytest.mark.parametrize("env_id", [env_id for env_id in POOLED if found(env_id).family == "gymnasium"])
def test_envpool_films_what_it_can_draw_and_nothing_else(env_id: str) -> None:
    pytest.importorskip("envpool")
    pool = pools.make_pool(env_id, [1])
    pool.reset()
    try:
        drawn = bool(pool.render(env_ids=[0]).any())
    except RuntimeError:
        drawn = False
    assert pools.can_draw(env_id) is drawn
    assert (backends.refusal(found(env_id), "envpool", "sync", True, ()) is None) is drawn


def test_the_shell_and_the_kit_agree_on_every_environment_that_envpool_draws() -> None:
    pytest.importorskip("envpool")
    pools._import_envpool("every", pools.FAMILIES)
    differing = [
        env_id
        for env_id in POOLED
        if (backends.refusal(found(env_id), "envpool", "sync", True, ()) is None) is not pools.can_draw(env_id)
    ]
    assert differing == []
    assert not any(map(pools.can_draw, ("FrozenLake-v1", "HalfCheetah-v5", "CheetahRun-v1")))


def test_a_file_alone_and_the_catalog_agree_on_what_is_too_old_of_what_envpool_makes() -> None:
    pytest.importorskip("envpool")
    pooled = pools._import_envpool("every", pools.FAMILIES).list_all_envs()
    fresh = subprocess.run([sys.executable, "-c", MADE_BY_GYMNASIUM], capture_output=True, text=True, check=True)
    made = fresh.stdout.split()
    too_old = {env_id: newer for env_id in pooled if (newer := games.newer_version(env_id, made))}
    assert too_old == {
        env_id: catalog.successor(env_id)
        for env_id in pooled
        if catalog.find(env_id) is None and catalog.successor(env_id) and env_id not in made
    }
    assert {"LunarLander-v2", "Taxi-v3", "HalfCheetah-v3"} < set(too_old)
    assert "Pusher-v4" not in too_old, "Gymnasium refuses it only for a newer MuJoCo than it was written for"


def test_a_game_is_one_environment_for_both_whatever_its_capitals() -> None:
    for env_id in ("ALE/TicTacToe3D-v5", "TicTacToe3d-v5"):
        made = [catalog.on_backend(found(env_id), backend) for backend in ("gymnasium", "envpool")]
        assert [one and one.env_id for one in made] == ["ALE/TicTacToe3D-v5", "TicTacToe3d-v5"]
