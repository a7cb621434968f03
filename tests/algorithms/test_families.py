"""Every family of environments trains and is evaluated, on each backend that makes it."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from cleanrl_worker.envs import vectors
from cleanrl_worker.evaluation import batched
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.run.args import RunArgs
from mosaic import catalog
from mosaic.contract import extras

ON_POLICY = {"total_timesteps": 16, "num_envs": 2, "num_steps": 8, "num_minibatches": 2, "update_epochs": 1}
OFF_POLICY = {"total_timesteps": 12, "learning_starts": 4, "buffer_size": 20, "batch_size": 4}
POOL = {"env_backend": "envpool"}
TRAINED = {
    "toy text": ("Taxi-v4", "dqn", OFF_POLICY),
    "toy text of three numbers": ("Blackjack-v1", "ppo", ON_POLICY),
    "toy text in EnvPool": ("CliffWalking-v1", "pqn", ON_POLICY | POOL),
    "Box2D": ("LunarLander-v3", "ppo", ON_POLICY),
    "Box2D, continuous": ("BipedalWalker-v3", "td3_continuous_action", OFF_POLICY),
    "Box2D in EnvPool": ("LunarLander-v3", "c51", OFF_POLICY | POOL),
    "MuJoCo": ("Humanoid-v5", "ppo_continuous_action", ON_POLICY),
    "MuJoCo in EnvPool": ("Ant-v5", "ddpg_continuous_action", OFF_POLICY | POOL),
    "DM Control": ("dm_control/humanoid-walk-v0", "ppo_continuous_action", ON_POLICY),
    "DM Control off policy": ("dm_control/ball_in_cup-catch-v0", "sac_continuous_action", OFF_POLICY),
    "DM Control in EnvPool": ("HumanoidWalk-v1", "rpo_continuous_action", ON_POLICY | POOL),
}
# MuJoCo's import of OpenGL, dm_control's of its own parts: nothing that is tested here
pytestmark = pytest.mark.filterwarnings("ignore")


def installed(env_id: str, backend: str | None = None) -> None:
    environment = catalog.find(env_id)
    assert environment is not None
    if missing := catalog.missing_package(environment, backend):
        pytest.skip(missing)


@pytest.mark.parametrize("case", TRAINED)
def test_a_family_trains_and_its_policy_is_evaluated(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env_id, algo, options = TRAINED[case]
    installed(env_id, options.get("env_backend"))
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves a MUJOCO_LOG.TXT where it is when it warns
    monkeypatch.setattr("cleanrl_worker.run.training.EVAL_MAX_STEPS", 2)
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY[algo])
    module.main(module.Args(env_id=env_id, run_dir=tmp_path / "run", cuda=False, save_model=True, **options))
    (policy,) = (tmp_path / "run").glob("runs/*/*[!t].cleanrl_model")
    args = batched.EvalArgs(policy_path=policy, run_dir=tmp_path / "eval", episodes=1, max_episode_steps=3)
    (summary,) = batched.run_batched_evaluation(args)
    assert np.isfinite(summary["avg_return"])
    assert json.loads((tmp_path / "eval/eval_summary.json").read_text())["episodes"] == 1


def test_every_robot_of_mujoco_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    robots = [env_id for env_id in catalog.ids("mujoco") if env_id.endswith("-v5")]
    assert len(robots) == 11
    installed(robots[0])
    monkeypatch.chdir(tmp_path)
    for env_id in robots:
        envs = vectors.vector(RunArgs(env_id=env_id, num_envs=1))
        first = envs.reset(seed=1)
        step = envs.step(np.zeros((1, *envs.single_action_space.shape), np.float32))
        assert (
            first.shape == step.obs.shape == (1, *envs.single_observation_space.shape) and np.isfinite(step.obs).all()
        )
        envs.close()


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "CliffWalking-v1", "CheetahRun-v1", "HumanoidWalk-v1"])
def test_envpools_observations_are_flat_as_gymnasiums_are(env_id: str) -> None:
    installed(env_id, "envpool")
    envs = vectors.vector(RunArgs(env_id=env_id, num_envs=2, env_backend="envpool"))
    obs = envs.reset(seed=1)
    sizes = {"FrozenLake-v1": 16, "CliffWalking-v1": 48, "CheetahRun-v1": 17, "HumanoidWalk-v1": 95}
    assert obs.shape == (2, sizes[env_id]) == (2, *envs.single_observation_space.shape)
    step = envs.step(np.stack([envs.single_action_space.sample() for _ in range(2)]))
    assert step.obs.shape == obs.shape
    if env_id == "FrozenLake-v1":
        assert (obs.sum(axis=1) == 1).all() and (obs[:, 0] == 1).all(), "one-hot, and the first state is the start"
    envs.close()


@pytest.mark.parametrize(
    ("package", "env_id", "line"),
    [
        ("Box2D", "LunarLander-v3", "LunarLander-v3 needs Box2D: pip install 'mosaic-rl[box2d]'"),
        ("mujoco", "Hopper-v5", "Hopper-v5 needs mujoco: pip install 'mosaic-rl[mujoco]'"),
        ("dm_control", "dm_control/cheetah-run-v0", "needs dm-control: pip install 'mosaic-rl[dm_control]'"),
        ("envpool", "CheetahRun-v1", "EnvPool is not installed: pip install 'mosaic-rl[envpool]'"),
    ],
)
@pytest.mark.parametrize("how", ["trained", "evaluated"])
def test_a_family_that_is_not_installed_names_its_extra(
    package: str, env_id: str, line: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = [name for name in sys.modules if name.partition(".")[0] == package]
    families = [name for name in sys.modules if name.startswith(("gymnasium.envs.box2d", "gymnasium.envs.mujoco"))]
    for name in loaded + families:  # what another test has imported would be found
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    backend = "envpool" if package == "envpool" else "gymnasium"
    with pytest.raises(SystemExit) as refused:
        if how == "trained":
            vectors.vector(RunArgs(env_id=env_id, num_envs=1, env_backend=backend))
        else:
            from cleanrl_worker.envs import play

            play.make_game(env_id, atari=False, backend=backend)
    assert line in str(refused.value.code)


def test_the_extras_of_packages_are_those_of_the_catalog() -> None:
    parts = [part for family in catalog.FAMILIES.values() for part in (family, *family.groups)]
    told = {
        package: part.extra
        for part in reversed(parts)  # of two that need a package, the first is the one that it is for
        if part.extra
        for package in part.packages
    }
    assert told == {package: extras.EXTRA_OF.get(package) for package in told}
    assert all(f"'mosaic-rl[{extra}]'" in extras.pip_line(package) for package, extra in told.items())


@pytest.mark.parametrize("env_id", ["BipedalWalker-v3", "LunarLander-v3", "dm_control/walker-walk-v0", "Hopper-v5"])
def test_a_reset_by_seed_forgets_all_that_was_before(env_id: str) -> None:
    """What exact resuming and repeatable evaluations rest on; Box2D's world remembers contacts if it is let."""
    installed(env_id)

    def steps_after(seeds: tuple[int, ...]) -> np.ndarray:
        envs = vectors.vector(RunArgs(env_id=env_id, num_envs=1))
        for seed in seeds:
            seen = [envs.reset(seed)]
            envs.single_action_space.seed(seed)
            for _ in range(120):
                seen.append(envs.step(np.array([envs.single_action_space.sample()])).final_obs)
        envs.close()
        return np.concatenate(seen)

    assert np.array_equal(steps_after((5, 6, 7)), steps_after((7,)))
