"""The catalog's ids against the registries of the installed packages."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import gymnasium
import pytest

from cleanrl_worker.envs import pools
from mosaic.catalog import find, ids, successor

Registries = dict[str, dict[str, Any]]

# In a process of its own: other tests may register environments in this one.
LIST_REGISTRIES = """
import importlib.util, json
import ale_py, envpool, gymnasium, minigrid
from envpool.registration import registry
gymnasium.register_envs(ale_py)
gymnasium.register_envs(minigrid)
from cleanrl_worker.envs.vectors import register_plugins
register_plugins("mosaic/Catch-v0")
if importlib.util.find_spec("shimmy") and importlib.util.find_spec("dm_control"):
    import shimmy
    gymnasium.register_envs(shimmy)
known = envpool.list_all_envs()
print(json.dumps({
    "gymnasium": {env_id: str(spec.entry_point) for env_id, spec in gymnasium.registry.items()},
    "envpool": {env_id: registry.specs[env_id][0] for env_id in known},
    "thresholds": {env_id: spec.reward_threshold for env_id, spec in gymnasium.registry.items()},
}))
"""

# EnvPool's modules that belong to our families; it has others (MyoSuite, MetaWorld, Jumanji, …) that do not.
ENVPOOL_MODULES = {
    f"envpool.{module}"
    for module in "atari box2d classic_control minigrid mujoco.dmc mujoco.gym procgen toy_text".split()
}

SUPERSEDED = "an older version: `successor` names the newer one"
EXCLUDED = (
    # registry, where the id's code is, the id, why it is left out
    ("gymnasium", "gymnasium.envs.(phys2d|tabular)", ".*", "JAX twins of plain ids, two with unusual spaces"),
    ("gymnasium", ".*_raise_mujoco_py_error", ".*-v[23]", SUPERSEDED),
    ("gymnasium", ".*", "Pusher-v4", SUPERSEDED),
    ("gymnasium", ".*_raise_shimmy_error|shimmy.*", "GymV2[16]Environment-v0", "an adapter, no environment"),
    ("gymnasium", ".*", "dm_control/compatibility-env-v0", "an adapter, no environment"),
    ("gymnasium", "ale_py.*", r"\w+-v0|\w+(?<!NoFrameskip)-v4", SUPERSEDED),
    ("envpool", ".*", "(phys2d|tabular)/.*", "aliases of plain ids"),
    ("envpool", ".*toy_text", "Catch-v0|NChain-v0", "EnvPool's own toys, without an original to compare with"),
    ("envpool", ".*", "Taxi-v3|CliffWalking-v0|Pendulum-v0", SUPERSEDED),
    ("envpool", ".*box2d", ".*-v2", SUPERSEDED),
    ("envpool", ".*mujoco.gym", ".*-v[23]|Pusher-v4", SUPERSEDED),
)


@pytest.fixture(scope="module")
def registries() -> Registries:
    for package in ("ale_py", "envpool", "minigrid"):
        if find_spec(package) is None:
            pytest.skip(f"compares with {package}, which is not installed")
    done = subprocess.run([sys.executable, "-c", LIST_REGISTRIES], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_every_id_is_known_to_exactly_the_backends_it_names(registries: Registries) -> None:
    shimmy_is_installed = any(env_id.startswith("dm_control/") for env_id in registries["gymnasium"])
    wrong = {}
    for env_id in ids():
        if env_id.startswith("dm_control/") and not shimmy_is_installed:
            continue
        if find(env_id).group == "multiplayer" or (find(env_id).family == "procgen" and env_id.islower()):
            continue  # names that our own wrappers know
        if find(env_id).group == "wfc":
            continue  # registered, but see below
        known = tuple(backend for backend in ("gymnasium", "envpool") if env_id in registries[backend])
        backends = find(env_id).backends
        if known != backends:
            wrong[env_id] = (backends, known)
    assert wrong == {}


def test_a_level_of_wave_function_collapse_begins_in_envpool_and_not_in_gymnasium() -> None:
    pytest.importorskip("envpool")
    wfc = pytest.importorskip("minigrid.envs.wfc")
    with pytest.raises((FileNotFoundError, gymnasium.error.DependencyNotInstalled)):  # else it is of both backends
        wfc.WFCEnv("MazeSimple").reset(seed=1)
    for env_id in ids("minigrid", "wfc"):
        pool = pools.make_pool(env_id, [1])
        assert pool.reset()[0]["image"].any()
        assert find(env_id).backends == ("envpool",)


def test_a_reward_threshold_is_the_one_that_gymnasium_registers(registries: Registries) -> None:
    registered = registries["thresholds"]
    wrong = [env_id for env_id in ids() if env_id in registered and find(env_id).reward_threshold != registered[env_id]]
    assert wrong == []


def test_every_registered_id_is_in_the_catalog_or_left_out_for_a_reason(registries: Registries) -> None:
    forgotten = [
        (registry, env_id)
        for registry, env_id, module in _of_our_families(registries)
        if find(env_id) is None and _reason(registry, module, env_id) is None
    ]
    assert forgotten == []


def test_nothing_is_both_in_the_catalog_and_left_out(registries: Registries) -> None:
    both = [
        env_id
        for registry, env_id, module in _of_our_families(registries)
        if find(env_id) is not None and _reason(registry, module, env_id) is not None
    ]
    assert both == []


def test_every_superseded_id_has_a_successor_in_the_catalog(registries: Registries) -> None:
    without = [
        env_id
        for registry, env_id, module in _of_our_families(registries)
        if _reason(registry, module, env_id) == SUPERSEDED and find(successor(env_id) or "") is None
    ]
    assert without == []


def test_every_reason_still_applies_to_some_id(registries: Registries) -> None:
    used = {
        row
        for row in EXCLUDED
        for registry, env_id, module in _of_our_families(registries)
        if _applies(row, registry, module, env_id)
    }
    # Registered by Shimmy alone.
    optional = {row for row in EXCLUDED if row[2].startswith("dm_control/")}
    assert set(EXCLUDED) - used <= optional


def _of_our_families(registries: Registries) -> list[tuple[str, str, str]]:
    return [
        (registry, env_id, module)
        for registry in ("gymnasium", "envpool")
        for env_id, module in registries[registry].items()
        if registry == "gymnasium" or module in ENVPOOL_MODULES
    ]


def _reason(registry: str, module: str, env_id: str) -> str | None:
    return next((row[3] for row in EXCLUDED if _applies(row, registry, module, env_id)), None)


def _applies(row: tuple[str, str, str, str], registry: str, module: str, env_id: str) -> bool:
    return row[0] == registry and re.match(row[1], module) is not None and re.fullmatch(row[2], env_id) is not None
