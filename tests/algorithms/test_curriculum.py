"""Training through the stages of a curriculum: all algorithms and backends, and exact when it was killed on the way."""

import importlib
import json
import shutil
import signal
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
import tiny_envs

from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.run import checkpoint
from mosaic.contract import metrics
from mosaic.contract.checkpoints import find_all
from mosaic.contract.sidecars import read_sidecar

tiny_envs.register()


def schedule(*env_ids, **stage):
    return json.dumps([{"env_id": env_id, **stage} for env_id in env_ids[:-1]] + [{"env_id": env_ids[-1]}])


POLES = schedule("CartPole-v1", "CartPole-v0", steps=192)
ROOMS = ("Tiny/TwoRoomsContinuous-v0", "Tiny/TruncatingScaledContinuous-v0")
SMALL_PPO = {"total_timesteps": 512, "num_envs": 2, "num_steps": 32, "num_minibatches": 2, "update_epochs": 2}
SMALL_PPO |= {"checkpoint_every": 128, "checkpoint_episodes": 0, "curriculum_schedule": POLES}
SMALL_DQN = {
    "total_timesteps": 700,
    "learning_starts": 100,
    "buffer_size": 300,
    "checkpoint_every": 200,
    "checkpoint_episodes": 0,
}
SMALL_DQN |= {"batch_size": 32}
SMALL_DQN |= {"curriculum_schedule": schedule("CartPole-v1", "CartPole-v0", "CartPole-v1", episodes=2)}
CONTINUOUS = {"env_id": ROOMS[0], "checkpoint_every": 128, "checkpoint_episodes": 0}
SMALL_SAC = {"total_timesteps": 330, "learning_starts": 60, "buffer_size": 200, "batch_size": 32}
GRIDS = schedule("MiniGrid-DoorKey-5x5-v0", "MiniGrid-DoorKey-6x6-v0", steps=192)
PONG = {
    "env_id": "Pong-v5",
    "total_timesteps": 96,
    "num_steps": 16,
    "checkpoint_every": 32,
    "checkpoint_episodes": 0,
    "num_threads": 1,
}
CASES = {
    "ppo": SMALL_PPO,
    "ppo on envpool": SMALL_PPO | {"env_backend": "envpool"},
    "ppo on async": SMALL_PPO | {"vectorization": "async"},
    "ppo on native": SMALL_PPO
    | {"env_id": "Tiny/TruncatingScaled-v0", "vectorization": "native"}
    | {"curriculum_schedule": schedule("Tiny/TruncatingScaled-v0", "Tiny/TerminatingScaled-v0", steps=192)},
    "ppo on grids with memory": SMALL_PPO
    | {"env_id": "MiniGrid-DoorKey-5x5-v0", "memory": True, "curriculum_schedule": GRIDS},
    "ppo_continuous_action": SMALL_PPO | CONTINUOUS | {"curriculum_schedule": schedule(*ROOMS, steps=192)},
    "sac_continuous_action": SMALL_SAC | CONTINUOUS | {"curriculum_schedule": schedule(*ROOMS, steps=100)},
    "dqn": SMALL_DQN,
    "dqn_jax": SMALL_DQN,
    "ppo_jax": SMALL_PPO,
    "ppo_jax on envpool": SMALL_PPO | {"env_backend": "envpool", "total_timesteps": 384},
    # Pong has lives of its own kind: a second game of the same six actions is Q*bert
    "ppo_atari_envpool": SMALL_PPO | PONG | {"curriculum_schedule": schedule("Pong-v5", "Qbert-v5", steps=32)},
}


def train(case, folder, **options):
    if "async" in case:  # forks, which must not happen in a process where other tests have imported JAX
        subprocess.run(command(case, folder, **options), check=True, stdout=subprocess.DEVNULL, timeout=300)
        return
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY[case.split()[0]])
    module.main(module.Args(run_dir=folder, cuda=False, **(CASES[case] | options)))


def command(case, folder, **options):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in (CASES[case] | options).items()]
    return [sys.executable, "-m", DEFAULT_ALGO_REGISTRY[case.split()[0]], f"--run-dir={folder}", "--cuda=false", *flags]


def final_state(folder):
    found = checkpoint.newest(folder / "checkpoints", print)
    arrays = {name: (array.shape, array.tobytes()) for name, array in found.arrays.items()}
    return found.step, arrays, found.document["numbers"], found.document["random"]


def stages(folder):
    """(step, stage) where the stage changed."""
    rows = [
        (row["step"], row["curriculum/stage"])
        for row in metrics.read_rows(folder / "metrics.jsonl")
        if "curriculum/stage" in row
    ]
    return [row for before, row in zip([(0, None), *rows], rows, strict=False) if before[1] != row[1]]


@pytest.mark.parametrize("case", [case for case in CASES if "async" not in case])  # that one is killed below
def test_going_on_from_a_checkpoint_of_a_later_stage_gives_the_same_bytes_as_never_stopping(case, tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train(case, whole)
    changes = stages(whole)
    assert [stage for _, stage in changes][:2] == [0, 1]
    later = [path for path in find_all(whole / "checkpoints") if checkpoint.read(path).exact]
    source = next(path for path in later if int(path.name) < final_state(whole)[0])
    assert checkpoint.read(source).document["numbers"]["curriculum/stage"] > 0
    train(case, resumed, resume=source)
    assert metrics.comparable(resumed / "metrics.jsonl") == metrics.comparable(whole / "metrics.jsonl")
    assert final_state(resumed) == final_state(whole)


FULL = pytest.mark.full  # what goes on in the same way above


@pytest.mark.parametrize(
    "case", [pytest.param("ppo", marks=FULL), "ppo on async", pytest.param("ppo on envpool", marks=FULL), "dqn"]
)
def test_a_curriculum_killed_in_its_second_stage_goes_on_there_bit_for_bit(case, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    longer = {
        "total_timesteps": 6400 if case != "ppo on async" else 2560,
        "checkpoint_every": 256,
        "checkpoint_episodes": 0,
    }
    longer |= {"curriculum_schedule": POLES}
    train(case, whole, **longer)
    (_, (changed, second)) = stages(whole)
    assert (changed, second) == (192, 1)
    assert killed_after(command(case, killed, **longer), killed, changed)
    assert checkpoint.newest(killed, print).document["numbers"]["curriculum/stage"] == 1
    train(case, killed, resume=killed, **longer)
    assert metrics.comparable(killed / "metrics.jsonl") == metrics.comparable(whole / "metrics.jsonl")
    assert final_state(killed) == final_state(whole)


def killed_after(words, folder, step):
    """Start it and kill it once there is a checkpoint after this step; again if it was too fast."""
    for _ in range(5):
        shutil.rmtree(folder, ignore_errors=True)
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        while process.poll() is None and not any(int(path.name) > step for path in find_all(folder / "checkpoints")):
            time.sleep(0.002)
        process.kill()
        if process.wait() == -signal.SIGKILL:
            return True
    return False


def test_a_kill_before_the_change_repeats_it_at_the_same_step(tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    options = {"checkpoint_every": 128, "checkpoint_episodes": 0, "total_timesteps": 384}
    train("ppo", whole, **options)
    train("ppo", tmp_path / "first", **options | {"total_timesteps": 128})
    assert stages(tmp_path / "first") == [(0, 0)]
    train("ppo", resumed, resume=tmp_path / "first" / "checkpoints" / "128", **options)
    # the learning rate falls over the total, which differed: what counts is where the stage changed
    assert stages(resumed) == stages(whole) == [(0, 0), (192, 1)]


class Counted(tiny_envs.Corridor):
    """Tells how many of its kind are open."""

    open_ones = 0

    def __init__(self, **options):
        super().__init__(**options)
        Counted.open_ones += 1
        np.random.random()  # as careless environments do

    def close(self):
        Counted.open_ones -= 1


def test_environments_of_a_stage_that_was_left_are_closed(tmp_path):
    for length in (3, 4):
        if f"Tiny/Counted{length}-v0" not in gym.registry:
            gym.register(f"Tiny/Counted{length}-v0", entry_point=Counted, kwargs={"length": length})
    names = schedule("Tiny/Counted3-v0", "Tiny/Counted4-v0", "Tiny/Counted3-v0", steps=128)
    train("ppo", tmp_path, env_id="Tiny/Counted3-v0", curriculum_schedule=names)
    assert Counted.open_ones == 0
    rows = [row for row in metrics.read_rows(tmp_path / "metrics.jsonl") if "charts/episodic_length" in row]
    lengths = {(row["step"] - 1) // 128: set() for row in rows}
    for row in rows:
        lengths[(row["step"] - 1) // 128].add(row["charts/episodic_length"])
    assert lengths == {0: {3}, 1: {4}, 2: {3}, 3: {3}}, "an episode that the change has cut is no episode"


def test_the_policy_is_for_the_last_stage_and_evaluated_there(tmp_path):
    names = schedule("Tiny/Terminating-v0", "Tiny/TruncatingScaled-v0", steps=128)
    train("ppo", tmp_path, env_id="Tiny/Terminating-v0", curriculum_schedule=names, save_model=True)
    (policy,) = tmp_path.glob("runs/*/ppo.cleanrl_model")
    assert read_sidecar(policy)["env_id"] == "Tiny/TruncatingScaled-v0"
    assert [
        row["eval/episodic_return"]
        for row in metrics.read_rows(tmp_path / "metrics.jsonl")
        if "eval/episodic_return" in row
    ] == [5.0] * 10


def test_a_warm_start_from_its_policy_does_not_repeat_the_curriculum(tmp_path):
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY["ppo"])
    train("ppo", tmp_path / "first", save_model=True)
    (policy,) = (tmp_path / "first").glob("runs/*/ppo.cleanrl_model")
    args = module.parse(module.Args, [f"--resume={policy}", "--env-id=CartPole-v0"])
    assert args.curriculum_schedule == "" and args.num_steps == 32


REFUSED = [
    (schedule("CartPole-v1", "Acrobot-v1", steps=10**6), "stage Acrobot-v1 has observations of shape (6,)"),
    (schedule("CartPole-v1", "CartPole-v77", steps=10**6), "cannot make the environment 'CartPole-v77'"),
    (schedule("Acrobot-v1", "CartPole-v0"), "--env-id 'CartPole-v1' is no stage of the curriculum"),
    ("[1]", "--curriculum-schedule, stage 1: an object"),
]


@pytest.mark.parametrize(("stages", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_trained_through_is_refused_before_the_first_step(stages, message, tmp_path):
    with pytest.raises(SystemExit) as refused:
        train("ppo", tmp_path, curriculum_schedule=stages)
    assert message in str(refused.value) and "\n" not in str(refused.value)
    assert not metrics.read_rows(tmp_path / "metrics.jsonl")
