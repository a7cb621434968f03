"""The catalog's action and observation spaces against environments that are really made."""

from pathlib import Path

import gymnasium
import pytest
from gymnasium import spaces

from cleanrl_worker.envs import pools
from cleanrl_worker.schema.parameters import describe
from mosaic.catalog import find, ids, misfit, missing_package

MADE = (
    *ids("gymnasium"),
    *ids("mujoco"),
    "ALE/Pong-v5",
    "BreakoutNoFrameskip-v4",
    "MiniGrid-Empty-5x5-v0",
    "MiniGrid-DoorKey-6x6-v0",
    "MiniGrid-Dynamic-Obstacles-5x5-v0",
    "MiniGrid-MemoryS7-v0",
    "MiniGrid-MultiRoom-N4-S5-v1",
    "BabyAI-GoToRedBall-v0",
    "BabyAI-BossLevel-v0",
    "dm_control/cartpole-balance-v0",
    "dm_control/lift_brick_features-v0",
)

POOLED = (
    "CartPole-v1",
    "Pendulum-v1",
    "FrozenLake-v1",
    "LunarLanderContinuous-v3",
    "CarRacing-v3",
    "HalfCheetah-v5",
    "Pong-v5",
    "TicTacToe3d-v5",
    "CoinrunEasy-v0",
    "CheetahRun-v1",
    "MiniGrid-DoorKey-6x6-v0",
    "MiniGrid-WFC-MazeSimple-v0",
    "BabyAI-GoToLocal-v0",
)


# Old versions and EnvPool's float64 bounds warn when made, which is not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo leaves a MUJOCO_LOG.TXT where it is when it warns."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    import ale_py
    import minigrid

    from cleanrl_worker.envs.vectors import register_plugins

    gymnasium.register_envs(ale_py)
    gymnasium.register_envs(minigrid)
    register_plugins("mosaic/Catch-v0")


@pytest.mark.parametrize("env_id", MADE)
def test_spaces_are_those_of_the_environment_that_gymnasium_makes(env_id: str) -> None:
    environment = find(env_id)
    if missing_package(environment):
        pytest.skip(missing_package(environment))
    if environment.family == "dm_control":
        import shimmy

        gymnasium.register_envs(shimmy)
    env = gymnasium.make(env_id)
    try:
        assert (environment.action_space, environment.observation_space) == _kinds(
            env.action_space, env.observation_space
        )
    finally:
        env.close()


@pytest.mark.parametrize("env_id", POOLED)
def test_spaces_are_those_of_envpools_specification(env_id: str) -> None:
    envpool = pytest.importorskip("envpool")
    pools._import_envpool("every", pools.FAMILIES)  # another test may have loaded a few of the families only
    environment = find(env_id)
    try:
        spec = envpool.make_spec(env_id)
    except ImportError as error:
        pytest.skip(str(error))
    assert (environment.action_space, environment.observation_space) == _kinds(
        spec.gymnasium_action_space, spec.gymnasium_observation_space
    )


def _kinds(action_space: spaces.Space, observation_space: spaces.Space) -> tuple[str, str]:
    actions = {spaces.Discrete: "discrete", spaces.Box: "continuous", spaces.MultiDiscrete: "multi_discrete"}
    return actions[type(action_space)], _observation_kind(observation_space)


def _observation_kind(space: spaces.Space) -> str:
    if isinstance(space, spaces.Dict):
        return "grid" if set(space) == {"image", "direction", "mission"} else "dict"
    if isinstance(space, spaces.Box):
        return {1: "vector", 3: "image"}[len(space.shape)]
    return {spaces.Discrete: "discrete", spaces.Tuple: "tuple"}[type(space)]


def test_every_environment_is_taken_by_an_algorithm() -> None:
    names = ("action_spaces", "observation_spaces", "families")
    takes = [[entry[name] for name in names] for entry in describe().values()]
    assert not [env_id for env_id in ids() if all(misfit(find(env_id), *what) for what in takes)]
