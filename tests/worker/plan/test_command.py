import importlib
import json
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from cleanrl_worker.config.config import CleanRLWorkerConfig, parse_worker_config
from cleanrl_worker.plan.command import build_args, make_plan
from cleanrl_worker.plan.plan import Plan
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.schema import parameters
from mosaic.catalog import requirements
from mosaic.contract.errors import ConfigError
from mosaic.contract.paths import RunPaths

FLAT = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 10000, "run_id": "run-1"}

TYRO_SCRIPT = """
    import tyro
    from dataclasses import dataclass

    @dataclass
    class Args:
        env_id: str = "CartPole-v1"
        total_timesteps: int = 100
        seed: int = 1
        cuda: bool = True
        num_envs: int = 4
        layers: tuple[int, ...] = (64,)
        network: str = "mlp"

    if __name__ == "__main__":
        args = tyro.cli(Args)
"""
ARGPARSE_SCRIPT = """
    import argparse
    if __name__ == "__main__":
        parser = argparse.ArgumentParser()
        parser.add_argument("--env_id", default="CartPole-v1")
        parser.add_argument("--total-timesteps", type=int, default=100)
        parser.add_argument("--cuda", type=lambda x: bool(strtobool(x)), default=True, nargs="?", const=True)
        parser.add_argument("--track", action="store_true")
        parser.add_argument("--layers", type=int, nargs="+")
        args = parser.parse_args()
"""

MAIN_OF_ARGS = """
    def main(args: Args) -> None:
        pass
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MOSAIC_RUN_ID", "TRACK_TENSORBOARD", "TRACK_WANDB", "CLEANRL_NUM_ENVS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(algo: str = "ppo", env_id: str = "CartPole-v1", **extras: Any) -> CleanRLWorkerConfig:
    return parse_worker_config({**FLAT, "algo": algo, "env_id": env_id, "extras": extras})


def plan(algo: str = "ppo", env_id: str = "CartPole-v1", **extras: Any) -> Plan:
    return make_plan(config(algo, env_id, **extras), RunPaths("run-1"), DEFAULT_ALGO_REGISTRY)


def flags(algo: str = "ppo", **extras: Any) -> list[str]:
    """What the extras add to the flags that every run has."""
    return list(plan(algo, **extras).argv[4:])


def refusal(algo: str = "ppo", env_id: str = "CartPole-v1", **extras: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(algo, env_id, **extras)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))
    return path


def test_registry_name_becomes_our_module_with_its_run_folder(home: Path) -> None:
    made = plan()
    assert (made.module, made.script, made.callable) == ("cleanrl_worker.algorithms.ppo", None, "main")
    assert (made.ours, made.interpreter, made.num_threads, made.warnings) == (True, sys.executable, 1, ())
    folder = home / "var" / "trainer" / "runs" / "run-1"
    assert made.argv == ("--env-id=CartPole-v1", "--total-timesteps=10000", "--seed=1", f"--run-dir={folder}")
    assert not (home / "var").exists()


def test_every_registered_algorithm_takes_its_own_default_environment() -> None:
    for name, entry in parameters.describe().items():
        defaults = {field["name"]: field["default"] for field in entry["fields"]}
        steps = {"offline_steps": 100} if "offline_steps" in defaults else {}  # these count, too
        assert plan(name, defaults["env_id"], algo_params=steps).module == entry["module"]


def test_flags_alone_are_built_without_looking_at_the_environment() -> None:
    made = config(env_id="Nonsense-v0", algo_params={"num_envs": 8})
    assert build_args(made, RunPaths("run-1"), DEFAULT_ALGO_REGISTRY)[-1] == "--num-envs=8"


def test_parameters_and_extras_become_flags_by_their_rules() -> None:
    params = {"num_envs": 8, "learning_rate": 0.0003, "anneal_lr": False, "norm_adv": True, "target_kl": None}
    assert flags(algo_params=params) == ["--num-envs=8", "--learning-rate=0.0003", "--no-anneal-lr", "--norm-adv"]
    assert flags(num_envs=8, anneal_lr=False, norm_adv=True, exp_name="") == [
        *("--num-envs=8", "--anneal-lr=false", "--norm-adv=true"),
    ]
    assert flags(cuda=False, capture_video=False, save_model=True) == [
        *("--cuda=false", "--capture-video=false", "--save-model=true"),
    ]
    assert flags(use_cuda=True) == ["--cuda=true"]
    assert flags(gamma=0.9) == ["--gamma=0.9"]


def test_wandb_extras_become_flags() -> None:
    assert flags(track_wandb=True, wandb_project="p", wandb_entity="e", wandb_run_name="n", wandb_email="a@b.c") == [
        *("--track", "--wandb-project-name=p", "--wandb-entity=e", "--wandb-run-name=n"),
    ]
    assert flags(track_wandb=False, wandb_project_name="a", wandb_project="b") == ["--wandb-project-name=a"]


def test_the_workers_own_extras_are_never_forwarded() -> None:
    own = {
        "notes": "n",
        "agent_id": "a",
        "telemetry": "off",
        "fastlane_video_mode": "off",
        "supports_pause": True,
        "supports_checkpoint": True,
        "schema_version": 2,
        "eval_episodes": 3,
    }
    assert flags(**own) == []


def test_tensorboard_folder_is_absolute_and_inside_the_run_folder(home: Path) -> None:
    folder = home / "var" / "trainer" / "runs" / "run-1"
    assert flags(tensorboard_dir="tb/x") == [f"--tensorboard-dir={folder}/tb/x"]
    for outside in ("../x", "/tmp/x", "a/../../b"):
        assert "leads out of the run folder" in refusal(tensorboard_dir=outside)


def test_num_envs_of_the_environment_counts_unless_the_extras_say_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEANRL_NUM_ENVS", "6")
    assert flags() == ["--num-envs=6"]
    assert flags(algo_params={"num_envs": 2}) == ["--num-envs=2"]
    monkeypatch.setenv("CLEANRL_NUM_ENVS", "few")
    assert "CLEANRL_NUM_ENVS='few'" in refusal()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"learnin_rate": 1}, "algo 'ppo' has no such parameter; did you mean 'learning_rate'?"),
        ({"num_envs": "many"}, "extras.algo_params.num_envs: a whole number is needed, not 'many' (default 4)"),
        ({"num_envs": 2.5}, "a whole number is needed, not 2.5"),
        ({"num_envs": True}, "a whole number is needed, not True"),
        ({"num_envs": [1]}, "a whole number is needed"),
        ({"learning_rate": "fast"}, "a number is needed, not 'fast'"),
        ({"learning_rate": "nan"}, "a number is needed"),
        ({"learning_rate": {}}, "a number is needed"),
        ({"anneal_lr": "maybe"}, "true or false is needed"),
        ({"anneal_lr": 1}, "true or false is needed"),
        ({"exp_name": True}, "a text is needed"),
        ({"network": "sharde"}, "'sharde' is none of auto, shared, separate, grid; did you mean 'shared'?"),
        ({"env_backend": "gym"}, "is none of auto, gymnasium, envpool"),
        ({"seed": 2}, "extras.algo_params.seed is 2, but the config says 1; give it once"),
        ({"run_dir": "/tmp"}, "but the worker says"),
        ({"total_frames": 40000}, "algo 'ppo' has no such parameter"),
        ({"num_envs": 0}, "extras.algo_params.num_envs: 1 or more is needed, not 0 (default 4)"),
        ({"num_envs": -3}, "1 or more is needed, not -3"),
        ({"num_steps": 0}, "1 or more is needed, not 0 (default 128)"),
        ({"num_minibatches": "0"}, "a number between 1 and 512 (num_envs * num_steps) is needed, not 0"),
        ({"update_epochs": 0}, "1 or more is needed"),
        ({"learning_rate": -1}, "extras.algo_params.learning_rate: 0 or more is needed, not -1 (default 0.00025)"),
        ({"gamma": 1.5}, "gamma: a number between 0 and 1 is needed, not 1.5 (default 0.99)"),
        (
            {"num_minibatches": 3000},
            "a number between 1 and 512 (num_envs * num_steps) is needed, not 3000 (default 4)",
        ),
        ({"num_minibatches": 9, "num_envs": "2", "num_steps": 4}, "between 1 and 8 (num_envs * num_steps) is needed"),
        ({"num_envs": 1, "num_steps": 3}, "num_minibatches: a number between 1 and 3 (num_envs * num_steps) is needed"),
        ({"checkpoint_every": -1}, "checkpoint_every: 0 or more is needed, not -1"),
        ({"batch_size": 64}, "batch_size: the run computes it from other parameters; leave it out (given: 64)"),
    ],
)
def test_parameter_that_the_algorithm_would_choke_on_is_refused(params: dict[str, Any], message: str) -> None:
    assert message in refusal(algo_params=params)


@pytest.mark.parametrize(
    ("algo", "env_id", "params", "message"),
    [
        ("c51", "CartPole-v1", {"v_max": -100}, "v_max: more than -100 (v_min) is needed, not -100"),
        ("rainbow_atari", "Pong-v5", {"v_min": "-inf"}, "v_min: -1e+38 or more is needed, not -inf"),
        ("dqn", "CartPole-v1", {"buffer_size": 3, "num_envs": 4}, "buffer_size: 4 (num_envs) or more is needed"),
        ("dqn_atari", "Pong-v5", {"buffer_size": 4}, "buffer_size: 8 (8 * num_envs) or more is needed, not 4"),
        ("ppo_atari_lstm", "Pong-v5", {"num_minibatches": 3}, "a divisor of 8 (num_envs) is needed, not 3"),
        ("pqn_atari_envpool_lstm", "Pong-v5", {"num_minibatches": 3}, "a divisor of 8 (num_envs) is needed, not 3"),
        ("ppo", "CartPole-v1", {"num_envs": 1, "num_steps": 5}, "a minibatch has one row"),
        ("ppg_procgen", "starpilot", {"num_envs": 1, "num_steps": 1, "num_minibatches": 1}, "a batch of one row"),
        ("ppo_pettingzoo_ma_atari", "warlords_v3", {"num_envs": 6}, "warlords_v3 is for 4, and 6 is no multiple"),
        ("ppo_atari_multigpu", "Pong-v5", {"num_minibatches": 129}, "between 1 and 128 (num_steps) is needed"),
        ("ppo_procgen", "starpilot", {"distribution_mode": "memory"}, "no memory levels, only easy, hard, extreme"),
        ("ppg_procgen", "StarpilotHard-v0", {"distribution_mode": "easy"}, "it has hard levels, and distribution_mode"),
        ("qdagger_dqn_atari_impalacnn", "Pong-v5", {"temperature": 0, "offline_steps": 1}, "more than 0 is needed"),
    ],
)
def test_parameters_that_do_not_go_together_are_refused_before_anything_is_written(
    algo: str, env_id: str, params: dict[str, Any], message: str
) -> None:
    assert message in refusal(algo, env_id, algo_params=params)


GRID, GAME = "MiniGrid-Empty-5x5-v0", "Pong-v5"
ONE_STAGE = '[{"env_id": "%s"}]'


@pytest.mark.parametrize(
    ("algo", "env_id", "params", "message"),
    [
        ("ppo", GRID, {"memory": True, "num_envs": 4, "num_minibatches": 3}, "--num-envs (4) must be a multiple of --"),
        ("ppo", GRID, {"memory": True, "network": "shared"}, "--memory is for grids: use --network grid, not shared"),
        ("ppo", "CartPole-v1", {"memory": True}, "--memory is for grids, and this environment gives vector obs"),
        ("ppo", "CartPole-v1", {"mission": True}, "--mission is for grids, and this environment gives vector obs"),
        ("ppo", "CartPole-v1", {"network": "grid"}, "network: 'grid' is for grid observations, but 'CartPole-v1' giv"),
        ("ppo_jax", "CartPole-v1", {"network": "grid"}, "gives vector ones; set it to auto"),
        ("ppo_jax", "CartPole-v1", {"network": "image"}, "'image' is for image observations, but 'CartPole-v1' gives"),
        ("ppo_jax", GRID, {"network": "image"}, "gives grid ones; set it to auto"),
        ("ppo", "CartPole-v1", {"upload_model": True}, "upload_model needs save_model: there would be no policy to"),
        ("ppo_atari_multigpu", GAME, {"device_ids": [0, 1], "world_size": 1}, "--world-size 1 needs as many --device"),
        ("ppo_atari_multigpu", GAME, {"curriculum_schedule": ONE_STAGE % GAME}, "knows no curricula; ppo_atari does"),
    ],
)
def test_parameters_that_the_run_would_refuse_after_its_start_are_refused_before_it(
    algo: str, env_id: str, params: dict[str, Any], message: str
) -> None:
    extras = {name: params.pop(name) for name in list(params) if name == "curriculum_schedule"}
    assert message in refusal(algo, env_id, algo_params=params, **extras)


def test_parameters_that_do_go_together_are_taken() -> None:
    assert plan("ppo", GRID, algo_params={"memory": True, "mission": True}).argv
    assert plan("ppo", GRID, algo_params={"memory": True, "network": "grid", "num_minibatches": 2}).argv
    assert plan("ppo", GRID, algo_params={"network": "separate"}).argv
    assert plan(algo_params={"upload_model": True, "save_model": True}).argv
    for processes in ({"device_ids": [0, 1], "world_size": 2}, {"device_ids": [0, 1]}, {"world_size": 2}):
        assert plan("ppo_atari_multigpu", GAME, algo_params=processes).argv


def test_a_curriculum_of_a_game_for_several_players_is_refused() -> None:
    message = refusal("ppo_pettingzoo_ma_atari", "pong_v3", curriculum_schedule=ONE_STAGE % "pong_v3")
    assert message == "extras.curriculum_schedule: a curriculum is for one player, and pong_v3 is for 2"


def test_processes_and_curricula_are_refused_by_the_run_in_the_words_of_the_dry_run() -> None:
    module = importlib.import_module("cleanrl_worker.algorithms.ppo_atari_multigpu")
    for given in ({"device_ids": [0, 1], "world_size": 1}, {"curriculum_schedule": ONE_STAGE % GAME}):
        with pytest.raises(SystemExit, match=r"needs as many --device-ids|knows no curricula"):
            module.settle(module.Args(env_id=GAME, **given))


def test_what_a_saved_run_does_not_tell_is_not_judged(home: Path) -> None:
    (home / "policy").write_bytes(b"x")
    resumed = {"mode": "resume_training", "checkpoint_path": "policy", "algo_params": {"memory": True}}
    assert plan("ppo", GRID, **resumed).argv  # its network, and how many environments it had
    saved = {"network": "grid", "mission": False, "num_envs": 3, "num_minibatches": 2}
    (home / "policy.json").write_text(json.dumps({"args": saved}))
    assert "--num-envs (3) must be a multiple of --num-minibatches (2)" in refusal("ppo", GRID, **resumed)


def test_levels_that_a_game_of_procgen_has_are_taken() -> None:
    for env_id, mode in (("starpilot", "extreme"), ("procgen-heist-v0", "memory"), ("MazeEasy-v0", "easy")):
        assert plan("ppo_procgen", env_id, algo_params={"distribution_mode": mode}).argv


def test_limits_hang_on_the_parameters_that_are_given_or_saved(home: Path) -> None:
    many = {"num_minibatches": 3000, "num_envs": 100}
    assert flags(algo_params=many) == ["--num-minibatches=3000", "--num-envs=100"]
    (home / "policy").write_bytes(b"x")
    resumed = {"mode": "resume_training", "checkpoint_path": "policy"}  # its run may have had more environments
    assert "--num-minibatches=3000" in flags(**resumed, algo_params={"num_minibatches": 3000})
    assert "1 or more is needed, not 0" in refusal(**resumed, algo_params={"num_minibatches": 0})
    saved = {"num_envs": 2, "num_steps": 8, "batch_size": 16, "vectorization": "native"}
    (home / "policy.json").write_text(json.dumps({"args": saved}))
    assert "between 1 and 16 (num_envs * num_steps)" in refusal(**resumed, algo_params={"num_minibatches": 3000})
    game = ("ppo_atari", "Pong-v5")
    assert "a native vector is not filmed" in refusal(*game, **resumed, capture_video=True)
    assert plan(*game, **resumed).argv and plan(*game, **resumed, capture_video=True, vectorization="sync").argv
    (home / "policy.json").write_text(json.dumps({"args": None}))  # of a file of CleanRL's
    assert plan(**resumed).argv
    (home / "policy.json").write_text(json.dumps({"args": {"num_envs": "many"}}))
    assert "args.num_envs: a whole number from 0 to 131072 is needed, not 'many'" in refusal(**resumed)
    (home / "policy.json").write_text(json.dumps({"args": {"num_minibatches": "many"}}))
    assert "the saved run.num_minibatches: a whole number is needed, not 'many'" in refusal(**resumed)


def test_value_of_the_saved_run_is_not_called_the_persons(home: Path) -> None:
    (home / "policy").write_bytes(b"x")
    (home / "policy.json").write_text(json.dumps({"args": {"buffer_size": 100}}))
    resumed = {"mode": "resume_training", "checkpoint_path": "policy"}
    message = refusal("dqn_atari", "Pong-v5", **resumed, algo_params={"num_envs": 13})
    assert message == (
        "extras.algo_params.buffer_size is left as the saved run had it: 104 (8 * num_envs) or more is needed, "
        "not 100; give it, too"
    )
    asked = refusal("dqn_atari", "Pong-v5", **resumed, algo_params={"num_envs": 13, "buffer_size": 99})
    assert asked == "extras.algo_params.buffer_size: 104 (8 * num_envs) or more is needed, not 99 (default 1000000)"


def test_counts_of_which_none_is_too_few_are_refused_and_zeros_with_a_meaning_taken() -> None:
    for name in ("batch_size", "train_frequency", "target_network_frequency"):
        assert f"{name}: 1 or more is needed" in refusal("dqn", algo_params={name: 0})
    assert flags("dqn", learning_starts=0, num_threads=0) == ["--learning-starts=0", "--num-threads=0"]


def test_forwarded_extra_is_checked_like_a_parameter() -> None:
    assert "extras.track_wandbb: algo 'ppo' has no such parameter; did you mean 'track_wandb'?" in refusal(
        track_wandbb=True
    )
    assert "extras.num_envs: a whole number is needed" in refusal(num_envs="x")
    assert "s3cret" not in refusal(wandb_api_key="s3cret")
    assert "give it once" in refusal(cuda=True, algo_params={"cuda": False})


def test_values_given_twice_alike_or_as_text_are_taken() -> None:
    assert flags(algo_params={"seed": 1, "num_envs": "8", "anneal_lr": "False", "num_steps": 64.0}) == [
        *("--num-envs=8", "--no-anneal-lr", "--num-steps=64"),
    ]


def test_num_threads_is_in_the_plan() -> None:
    assert plan(algo_params={"num_threads": 0}).num_threads == 0
    assert plan(num_threads=3).num_threads == 3
    assert "num_threads: 0 or more is needed, not -1" in refusal(num_threads=-1)


def test_a_resumption_is_told_where_to_go_on_from_and_how_far(home: Path) -> None:
    (home / "policy").write_bytes(b"x")
    told = flags(mode="resume_training", checkpoint_path="policy", additional_timesteps=50, grace_seconds=5)
    assert told == [f"--resume={home / 'policy'}", "--additional-timesteps=50", "--grace-seconds=5"]


def test_a_curriculum_is_a_flag_and_none_is_none() -> None:
    stages = [{"env_id": "CartPole-v1"}]
    assert flags(curriculum_schedule=stages) == ['--curriculum-schedule=[{"env_id": "CartPole-v1"}]']
    assert flags(curriculum_schedule=None, curriculum=None) == []


def test_steps_of_a_script_of_ones_own_are_not_promised(tmp_path: Path) -> None:
    script = write(tmp_path / "mine.py", "print()\n")
    (warning,) = [line for line in plan(algo=str(script), telemetry="steps").warnings if "telemetry" in line]
    assert "only our own algorithms tell their steps" in warning
    assert plan(telemetry="steps").warnings == ()


def test_unknown_algorithm_is_refused_with_the_nearest() -> None:
    assert refusal("ppoo") == "unknown algo 'ppoo'; did you mean 'ppo'? List them with: cleanrl-worker --list"
    assert refusal("zzzzzz").startswith("unknown algo 'zzzzzz'. List them")
    for strange in ("..", "a..b", "ppo; rm", "os.path "):
        assert "unknown algo" in refusal(strange)


def test_action_space_that_the_algorithm_cannot_drive_is_refused_with_those_that_can() -> None:
    message = refusal("ppo", "Pendulum-v1")
    assert "'Pendulum-v1' takes continuous ones" in message
    assert "ppo_continuous_action" in message and "sac_continuous_action" in message and "dqn" not in message


def test_environment_is_checked_on_the_backend_that_will_make_it() -> None:
    for env_id in ("ALE/Pong-v5", "PongNoFrameskip-v4", "Pong-v5"):
        assert plan("ppo_atari_envpool", env_id).warnings == ()
        assert refusal("ppo", env_id).partition("gives image ones; ")[2].startswith("use ppo_atari, ")
    assert "is for atari and image-games environments only" in refusal("ppo_atari_envpool", "CartPole-v1")
    assert refusal("dqn", "CoinrunEasy-v0").endswith("use ppo_procgen, ppg_procgen or ppo_jax")
    assert refusal("dqn", "MiniGrid-Empty-5x5-v0").endswith("gives grid ones; use ppo or ppo_jax")
    for backend in ("gymnasium", "envpool"):
        assert plan("ppo", "BabyAI-GoTo-v0", algo_params={"mission": True, "env_backend": backend}).warnings == ()
    assert plan("ppo", "FrozenLake-v1").warnings == ()
    for name in ("env_backend", "env-backend"):
        assert "is made by gymnasium only" in refusal("ppo", "Taxi-v4", algo_params={name: "envpool"})


def test_environment_that_only_envpool_has_is_made_by_it_unless_another_is_asked_for() -> None:
    assert "--env-backend=envpool" in plan("sac_continuous_action", "CheetahRun-v1").argv
    assert "--env-backend=envpool" not in plan("sac_continuous_action", "HalfCheetah-v5").argv
    asked = refusal("sac_continuous_action", "CheetahRun-v1", algo_params={"env_backend": "gymnasium"})
    assert asked.endswith("is made by envpool only: set env_backend to envpool")


def test_vectorization_and_video_are_checked_with_the_environment_that_they_are_for() -> None:
    native: dict[str, Any] = {"vectorization": "native"}
    assert plan("ppo_atari", "ALE/Pong-v5", algo_params=native).warnings == ()
    assert "is not filmed" in refusal("ppo_atari", "ALE/Pong-v5", algo_params=native | {"capture_video": True})
    assert "is not filmed" in refusal("ppo_atari", "ALE/Pong-v5", algo_params=native, capture_video=True)
    assert "sync or native" in refusal("ppo_atari", "ALE/Pong-v5", algo_params={"vectorization": "async"})
    assert plan("ppo_atari", "Pong-v5", algo_params={"vectorization": "async", "env_backend": "envpool"}).warnings == ()


def evaluated(home: Path, algo: str, env_id: str, trained: dict[str, Any], **extras: Any) -> dict[str, Any]:
    """The config of an evaluation of a policy that nobody reads here, but its sidecar."""
    (home / "x.cleanrl_model").touch()
    (home / "x.cleanrl_model.json").write_text(json.dumps({"algo": algo, "env_id": env_id, "seed": 1, **trained}))
    return {"mode": "policy_eval", "policy_path": str(home / "x.cleanrl_model"), **extras}


def test_policy_is_evaluated_by_the_backend_of_its_training_or_who_has_the_environment(home: Path) -> None:
    pooled = evaluated(home, "sac_continuous_action", "HalfCheetah-v5", {"args": {"env_backend": "envpool"}})
    robot, game = "sac_continuous_action", "dm_control/cheetah-run-v0"
    assert "--env-backend=envpool" in plan(robot, "HalfCheetah-v5", **pooled).argv
    assert "--env-backend=gymnasium" in plan(robot, game, **pooled).argv
    assert "--env-backend=gymnasium" in plan(robot, "HalfCheetah-v5", **pooled, env_backend="gymnasium").argv
    assert "--env-backend=auto" in plan(robot, "HalfCheetah-v5", **pooled, env_backend="auto").argv
    assert "cannot film" in refusal(robot, "HalfCheetah-v5", **pooled, eval_capture_video=True)
    plain = evaluated(home, robot, game, {})
    assert "--env-backend=envpool" in plan(robot, "CheetahRun-v1", **plain).argv


def test_policy_is_evaluated_with_what_is_installed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def only(name: str) -> None:
        monkeypatch.setattr(requirements, "find_spec", lambda asked: asked if asked == name else None)

    only("envpool")
    assert plan("ppo_atari", "ALE/Breakout-v5", **evaluated(home, "ppo_atari", "ALE/Breakout-v5", {})).warnings == ()
    only("ale_py")
    assert plan("ppo_atari", "Breakout-v5", **evaluated(home, "ppo_atari", "Breakout-v5", {})).warnings == ()
    only("mujoco")
    pooled = evaluated(home, "td3_continuous_action", "Ant-v5", {"args": {"env_backend": "envpool"}})
    assert "envpool is not installed" in refusal("td3_continuous_action", "Ant-v5", **pooled)


def test_policy_is_not_evaluated_on_another_family(home: Path) -> None:
    extras = evaluated(home, "ppo_atari", "Breakout-v5", {})
    for algo, env_id in (("ppo_atari", "CartPole-v1"), ("ppo_atari", "starpilot"), ("ppo_procgen", "ALE/Breakout-v5")):
        assert f"{env_id!r} is none" in refusal(algo, env_id, **extras)
    assert "gives image ones" in refusal("ppo", "ALE/Breakout-v5", **extras)


def test_policy_of_levels_that_a_game_lacks_is_not_evaluated_on_it(home: Path) -> None:
    trained = evaluated(home, "ppo_procgen", "coinrun", {"args": {"distribution_mode": "memory"}})
    has_none = "has no memory levels, on which the policy was trained (distribution_mode); evaluate it on"
    other = refusal("ppo_procgen", "starpilot", **trained)
    assert has_none in other and other.endswith("or MinerMemory-v0") and "Starpilot" not in other
    assert refusal("ppo_procgen", "MazeHard-v0", **trained) == f"environment 'MazeHard-v0' {has_none} MazeMemory-v0"
    for env_id in ("maze", "MazeMemory-v0"):
        assert plan("ppo_procgen", env_id, **trained).argv


def test_constants_of_a_script_limit_its_actions_only(home: Path) -> None:
    constants = """
    ACTION_SPACES = ("discrete",)
    OBSERVATION_SPACES = ("mine",)
    FAMILIES = ("mine",)
    DEFAULT_BACKEND = "mine"
    """
    write(home / "my.py", constants + TYRO_SCRIPT)
    assert plan("my.py").warnings == ()
    assert "takes continuous ones" in refusal("my.py", "Pendulum-v1")


def test_algorithm_whose_package_is_missing_names_the_extra(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "package_exists", lambda name: name != "jax")
    line = "algo 'dqn_jax' needs jax, which is not installed: pip install 'mosaic-rl[jax]'"
    assert refusal("dqn_jax") == line
    (home / "x.cleanrl_model").touch()
    assert refusal("dqn_jax", mode="policy_eval", policy_path=str(home / "x.cleanrl_model")) == line


def test_cleanrl_module_that_is_not_installed_becomes_ours_with_a_warning() -> None:
    made = plan("cleanrl.ppo")
    assert (made.module, made.ours) == ("cleanrl_worker.algorithms.ppo", True)
    assert made.warnings == ("module 'cleanrl.ppo' is not installed; running our 'ppo' instead",)
    assert "did you mean 'ppo'?" in refusal("cleanrl.ppoo")


def test_cleanrl_module_that_is_installed_is_taken_and_not_imported(home: Path) -> None:
    write(home / "cleanrl" / "__init__.py", "raise RuntimeError('imported')")
    write(home / "cleanrl" / "ppo.py", TYRO_SCRIPT)
    made = plan("cleanrl.ppo")
    assert (made.module, made.callable, made.ours) == ("cleanrl.ppo", "__main__", False)
    assert made.argv == ("--env-id=CartPole-v1", "--total-timesteps=10000", "--seed=1")
    assert made.warnings == ()


def test_other_module_with_main_is_called_and_one_that_is_nowhere_refused(home: Path) -> None:
    write(home / "lab" / "algo.py", TYRO_SCRIPT + "\n    def main():\n        pass\n")
    assert plan("lab.algo").callable == "main"
    assert "module 'lab.none' cannot be found" in refusal("lab.none")
    assert plan("cleanrl_worker.algorithms.dqn").ours


def test_registry_may_name_a_module_of_the_users_own(home: Path) -> None:
    write(home / "lab_algo.py", TYRO_SCRIPT)
    made = make_plan(config("mine"), RunPaths("run-1"), {"mine": "lab_algo"})
    assert (made.module, made.ours, made.argv[0]) == ("lab_algo", False, "--env-id=CartPole-v1")
    with pytest.raises(ConfigError, match="'gone' cannot be found"):
        make_plan(config("mine"), RunPaths("run-1"), {"mine": "gone"})


def test_script_gets_the_flags_it_declares_in_tyros_dialect(home: Path) -> None:
    script = write(home / "my_ppo.py", TYRO_SCRIPT)
    made = plan("my_ppo.py", cuda=False, layers=[8, 4], save_model=True, num_threads=2, algo_params={"num_envs": 2})
    assert (made.module, made.script, made.callable, made.ours) == (None, script, "__main__", False)
    assert made.argv[3:] == ("--num-envs=2", "--no-cuda", "--layers", "8", "4")
    assert made.warnings == ("my_ppo.py declares no --save-model; save_model is not passed to it",)
    assert made.num_threads == 2
    assert "a whole number is needed" in refusal("my_ppo.py", algo_params={"num_envs": "x"})


def test_script_gets_the_flags_it_declares_in_argparses_dialect(home: Path) -> None:
    script = write(home / "old.py", ARGPARSE_SCRIPT)
    made = plan(str(script), cuda=False, layers=[8, 4], track_wandb=True, wandb_run_name="n")
    assert made.argv == (
        *("--env_id=CartPole-v1", "--total-timesteps=10000", "--track", "--cuda=false", "--layers", "8", "4"),
    )
    assert [warning.split(";")[0] for warning in made.warnings] == [
        f"{script} declares no --seed",
        f"{script} declares no --wandb-run-name",
    ]
    assert made.num_threads == 0


def test_script_gets_sequences_of_a_fixed_length_and_switches_of_a_group(home: Path) -> None:
    add = 'import argparse\nargparse.ArgumentParser().add_argument("--hidden", type=int, nargs=2, choices=[4, 5])\n'
    write(home / "fixed.py", add)
    assert plan("fixed.py", algo_params={"hidden": [4, 5]}).argv == ("--hidden", "4", "5")
    assert "is none of 4, 5" in refusal("fixed.py", algo_params={"hidden": [4, 6]})
    write(home / "group.py", TYRO_SCRIPT.replace("tyro.cli(Args)", "tyro.cli(main)") + MAIN_OF_ARGS)
    made = plan("group.py", cuda=False)
    assert made.argv[0] == "--args.env-id=CartPole-v1" and made.argv[-1] == "--args.no-cuda"
    assert made.warnings == ()


def test_script_whose_flags_cannot_be_read_gets_the_usual_ones_with_a_warning(home: Path) -> None:
    write(home / "clicks.py", "import click\n")
    made = plan("clicks.py", gamma=0.9)
    assert made.argv == ("--env-id=CartPole-v1", "--total-timesteps=10000", "--seed=1")
    assert made.warnings[0] == (
        "clicks.py: its source does not show its flags; only --env-id, --total-timesteps, --seed are passed"
    )
    assert "unknown environment" in plan("clicks.py", "Nonsense-v0").warnings[-1]


def test_environments_beside_a_script_are_found_from_another_folder(home: Path) -> None:
    write(home / "own" / "my.py", TYRO_SCRIPT)
    register = "import gymnasium\ngymnasium.register('Tiny-v0', entry_point='collections:OrderedDict')\n"
    write(home / "own" / "tiny_envs.py", register)
    assert plan("own/my.py", "tiny_envs:Tiny-v0").warnings == ()


def test_script_that_reads_no_flags_gets_none_and_may_be_tracked_by_the_worker(home: Path) -> None:
    write(home / "plain.py", "print('hello')")
    made = plan("plain.py", env_id="Nonsense-v0", track_wandb=True, wandb_entity="e", tensorboard_dir="tb")
    assert made.argv == ()
    assert [warning.split()[3].strip(";") for warning in made.warnings] == ["--env-id", "--total-timesteps", "--seed"]


def test_script_is_looked_for_in_this_folder_and_then_in_home(
    home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_home = write(home / "algos" / "mine.py", TYRO_SCRIPT)
    here = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(here)
    assert plan("algos/mine.py").script == in_home
    nearer = write(here / "algos" / "mine.py", TYRO_SCRIPT)
    assert plan("algos/mine.py").script == nearer
    assert "did you mean 'mine.py'?" in refusal("algos/mien.py")


def test_script_that_is_no_python_is_refused(home: Path) -> None:
    write(home / "bad.py", "def f(:\n")
    assert "bad.py line 1: no valid Python" in refusal("bad.py")


def test_script_runs_in_the_interpreter_that_is_given(home: Path) -> None:
    write(home / "my.py", "import argparse\nargparse.ArgumentParser().add_argument('--env-id')\n")
    link = home / "env" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(sys.executable)
    assert plan("my.py", python="env/bin/python").interpreter == str(link)
    assert "does not answer as a Python interpreter" in refusal("my.py", python="sh")


def test_our_algorithms_run_in_the_workers_interpreter() -> None:
    made = plan(python="sh")
    assert made.interpreter == sys.executable
    assert "extras.python is for scripts of your own" in made.warnings[0]


def test_module_is_looked_for_by_the_interpreter_that_will_run_it(home: Path) -> None:
    packages = home / "other" / "packages"
    write(packages / "lab" / "__init__.py", "print('noise')")
    algo = write(packages / "lab" / "algo.py", TYRO_SCRIPT)
    python = write(home / "other" / "python", f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    made = plan("lab.algo", python=str(python))
    assert (made.module, made.interpreter) == ("lab.algo", str(python))
    assert algo.is_file() and made.argv[0] == "--env-id=CartPole-v1"
    assert "cannot be found" in refusal("lab.none", python=str(python))
    python.write_text("#!/bin/sh\nexit 3\n")
    assert "does not answer as a Python interpreter" in refusal("lab.algo", python=str(python))


def test_unknown_config_keys_are_warned_about() -> None:
    made = make_plan(parse_worker_config({**FLAT, "zzz": 1}), RunPaths("run-1"), DEFAULT_ALGO_REGISTRY)
    assert made.warnings == ("config key 'zzz' is unknown and has no effect",)


@pytest.mark.parametrize("algo", ["qdagger_dqn_atari_impalacnn", "qdagger_dqn_atari_jax_impalacnn"])
def test_a_teacher_that_is_not_there_is_refused_and_one_that_is_is_found_from_the_run_folder(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lesson = {"offline_steps": 100, "teacher_policy_path": "teacher.cleanrl_model"}
    line = refusal(algo, "mosaic/Catch-v0", algo_params=lesson)
    assert line == (
        "extras.algo_params.teacher_policy_path: 'teacher.cleanrl_model' is not there "
        f"(looked for {tmp_path / 'teacher.cleanrl_model'})"
    )
    folder = refusal(algo, "mosaic/Catch-v0", algo_params=lesson | {"teacher_policy_path": str(tmp_path)})
    assert folder.endswith("is no file that can be read")
    (tmp_path / "teacher.cleanrl_model").touch()
    argv = plan(algo, "mosaic/Catch-v0", algo_params=lesson).argv
    assert f"--teacher-policy-path={tmp_path / 'teacher.cleanrl_model'}" in argv
