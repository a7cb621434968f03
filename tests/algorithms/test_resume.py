"""A run that was killed goes on as if nothing had happened: proven per algorithm and backend, bit for bit."""

import importlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cleanrl_worker.kit import checkpoint
from cleanrl_worker.runtime import DEFAULT_ALGO_REGISTRY
from mosaic.wire import metrics
from mosaic.wire.checkpoints import find_all

SMALL_PPO = {"total_timesteps": 512, "num_envs": 2, "num_steps": 32, "num_minibatches": 2, "update_epochs": 2}
SMALL_DQN = {"total_timesteps": 700, "learning_starts": 100, "buffer_size": 300, "checkpoint_every": 200}
CASES = {
    "ppo": SMALL_PPO | {"checkpoint_every": 128},
    "ppo on envpool": SMALL_PPO | {"checkpoint_every": 128, "env_backend": "envpool"},
    "ppo on async": SMALL_PPO | {"checkpoint_every": 256, "vectorization": "async"},
    "ppo_continuous_action": SMALL_PPO | {"env_id": "Pendulum-v1", "checkpoint_every": 128},
    "ppo_atari_envpool": SMALL_PPO
    | {"env_id": "Pong-v5", "total_timesteps": 128, "num_steps": 16, "checkpoint_every": 64},
    "ppo_atari_envpool on gymnasium": SMALL_PPO
    | {"env_id": "Pong-v5", "total_timesteps": 96, "num_steps": 16, "checkpoint_every": 32, "env_backend": "gymnasium"},
    "dqn": SMALL_DQN,
    "dqn with 3 environments": SMALL_DQN | {"num_envs": 3},
    "dqn_jax": SMALL_DQN,
    "sac_continuous_action": {"env_id": "Pendulum-v1", "total_timesteps": 330, "learning_starts": 60}
    | {"buffer_size": 200, "batch_size": 32, "checkpoint_every": 100},
}


def train(case, folder, **options):
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY[case.split()[0]])
    module.main(module.Args(run_dir=folder, cuda=False, **(CASES[case] | options)))


def final_state(folder):
    found = checkpoint.newest(folder / "checkpoints", print)
    numbers, replay = found.document["numbers"], found.document.get("replay", {}).get("segments", [])
    arrays = {name: (array.shape, array.tobytes()) for name, array in found.arrays.items()}
    return found.step, arrays, numbers, found.document["random"], [segment["sha256"] for segment in replay]


@pytest.mark.parametrize("case", CASES)
def test_going_on_from_any_scheduled_checkpoint_gives_the_same_bytes_as_never_stopping(case, tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train(case, whole)
    scheduled = [path for path in find_all(whole / "checkpoints") if checkpoint.read(path).exact]
    source = scheduled[-1]
    assert int(source.name) < final_state(whole)[0]
    train(case, resumed, resume=source)
    assert metrics.comparable(resumed / "metrics.jsonl") == metrics.comparable(whole / "metrics.jsonl")
    assert final_state(resumed) == final_state(whole)


@pytest.mark.parametrize("case", ["ppo", "dqn", "dqn_jax"])
def test_a_run_killed_at_a_random_moment_goes_on_in_its_own_folder_bit_for_bit(case, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(case, whole, checkpoint_every=100)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in (CASES[case] | {"checkpoint_every": 100}).items()]
    command = [sys.executable, "-m", DEFAULT_ALGO_REGISTRY[case], f"--run-dir={killed}", "--cuda=false", *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not find_all(killed / "checkpoints") and process.poll() is None:
        time.sleep(0.002)
    time.sleep(random.random() * 0.3)
    process.kill()
    process.wait()
    train(case, killed, resume=killed, checkpoint_every=100)
    assert metrics.comparable(killed / "metrics.jsonl") == metrics.comparable(whole / "metrics.jsonl")
    assert final_state(killed)[:4] == final_state(whole)[:4]


def test_sigterm_saves_and_asks_to_be_started_again(tmp_path):
    module = DEFAULT_ALGO_REGISTRY["ppo"]
    flags = ["--total-timesteps=10000000", "--cuda=false", "--checkpoint-every=0", f"--run-dir={tmp_path}"]
    process = subprocess.Popen([sys.executable, "-m", module, *flags], stdout=subprocess.DEVNULL)
    while not (tmp_path / "metrics.jsonl").exists() or not (tmp_path / "metrics.jsonl").stat().st_size:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) == 75
    (path,) = find_all(tmp_path / "checkpoints")
    assert not checkpoint.read(path).exact


def test_a_policy_file_is_a_warm_start_from_step_zero(tmp_path):
    train("ppo", tmp_path / "first", save_model=True)
    (policy,) = (tmp_path / "first").glob("runs/*/ppo.cleanrl_model")
    train("ppo", tmp_path / "second", resume=policy)
    rows = metrics.read_rows(tmp_path / "second" / "metrics.jsonl")
    assert rows[0]["step"] < 512
    assert metrics.comparable(tmp_path / "first" / "metrics.jsonl") != metrics.comparable(
        tmp_path / "second" / "metrics.jsonl"
    )


def test_additional_timesteps_add_to_what_was_done(tmp_path):
    train("ppo", tmp_path / "first")
    train("ppo", tmp_path / "second", resume=tmp_path / "first", additional_timesteps=128)
    assert final_state(tmp_path / "second")[0] == 512 + 128
    steps = [row["step"] for row in metrics.read_rows(tmp_path / "second" / "metrics.jsonl")]
    assert steps == sorted(steps)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resume": Path("/nowhere")}, "no checkpoint in /nowhere"),
        ({"checkpoint_budget_mb": 1, "buffer_size": 300000}, "one checkpoint takes up to .* MB, more than"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(options, message, tmp_path):
    with pytest.raises(SystemExit, match=message):
        train("dqn", tmp_path, **options)


def test_a_checkpoint_of_another_algorithm_is_refused_in_one_line(tmp_path):
    train("dqn", tmp_path / "dqn")
    with pytest.raises(SystemExit, match="does not fit ppo on CartPole-v1"):
        train("ppo", tmp_path / "ppo", resume=Path(tmp_path / "dqn"))


def test_a_full_disk_costs_a_checkpoint_and_one_line_not_the_run(tmp_path, monkeypatch, capsys):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_checkpoint", full)
    train("ppo", tmp_path)
    assert "no checkpoint at step 128: No space left on device; training goes on" in capsys.readouterr().err
    assert metrics.read_rows(tmp_path / "metrics.jsonl")[-1]["step"] == 512
