"""A run that was killed goes on as if nothing had happened: proven per algorithm and backend, bit for bit."""

import importlib
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tiny_envs
import torch
from needs import needed
from safetensors.numpy import load_file

from cleanrl_worker.algorithms import ppo
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.run import checkpoint
from cleanrl_worker.run.args import parse
from mosaic.contract import metrics
from mosaic.contract.checkpoints import find_all, read_checkpoint, write_checkpoint

tiny_envs.register()
SMALL_PPO = {"total_timesteps": 512, "num_envs": 2, "num_steps": 32, "num_minibatches": 2, "update_epochs": 2}
SMALL_PPO |= {"checkpoint_every": 128, "checkpoint_episodes": 0}
GRID = SMALL_PPO | {"env_id": "MiniGrid-DoorKey-5x5-v0", "total_timesteps": 384, "env_backend": "gymnasium"}
MISSION = GRID | {"env_id": "BabyAI-GoToLocal-v0", "mission": True, "memory": True}
PENDULUM = SMALL_PPO | {"env_id": "Pendulum-v1"}
CATCH = {"env_id": "mosaic/Catch-v0", "total_timesteps": 96, "num_steps": 16, "num_minibatches": 2}
CATCH |= {"update_epochs": 1, "checkpoint_every": 32, "checkpoint_episodes": 0, "num_threads": 1}
# Whole episodes with other returns before the checkpoint than after it: what is told of the last ones must go on, too.
ENDING = CATCH | {
    "num_envs": 2,
    "num_steps": 32,
    "total_timesteps": 192,
    "checkpoint_every": 128,
    "checkpoint_episodes": 0,
    "seed": 3,
}
FRAMES = {
    "total_timesteps": 48,
    "num_envs": 2,
    "num_steps": 8,
    "num_minibatches": 2,
    "checkpoint_every": 32,
    "checkpoint_episodes": 0,
}
FRAMES |= {"num_threads": 1}  # another number of threads adds in another order
PONG = FRAMES | {"env_id": "Pong-v5", "update_epochs": 1}
PHASES = {"n_iteration": 3, "e_auxiliary": 1, "total_timesteps": 112, "checkpoint_every": 64, "checkpoint_episodes": 0}
# JAX compiles for each size of a batch: the other tests of these files have 32, too
SMALL_DQN = {
    "total_timesteps": 700,
    "learning_starts": 100,
    "buffer_size": 300,
    "checkpoint_every": 200,
    "checkpoint_episodes": 0,
}
SMALL_DQN |= {"batch_size": 32}
SMALL_SAC = {"env_id": "Pendulum-v1", "total_timesteps": 330, "learning_starts": 60}
SMALL_SAC |= {"buffer_size": 200, "batch_size": 32, "checkpoint_every": 100, "checkpoint_episodes": 0}
IMAGES = {"env_id": "mosaic/Catch-v0", "total_timesteps": 110, "learning_starts": 60, "batch_size": 2}
IMAGES |= {"buffer_size": 70, "checkpoint_every": 40, "checkpoint_episodes": 0, "num_threads": 1}
JAX_IMAGES = IMAGES | {"batch_size": 4}  # what is compiled serves the other tests, too
SHORT = {"total_timesteps": 24, "learning_starts": 8, "checkpoint_every": 9, "checkpoint_episodes": 0}
# Which algorithm runs on which of Gymnasium's vectors (sync, async, native) and on EnvPool, each at least once.
CASES = {
    "ppo": SMALL_PPO,
    "ppo on envpool": SMALL_PPO | {"env_backend": "envpool"},
    "ppo on async": SMALL_PPO | {"checkpoint_every": 256, "checkpoint_episodes": 0, "vectorization": "async"},
    "ppo on native": SMALL_PPO | {"env_id": "Tiny/TruncatingScaled-v0", "vectorization": "native"},
    "ppo on grids": GRID,
    "ppo on grids of envpool": GRID | {"env_backend": "envpool"},
    "ppo on grids with mission and memory": MISSION,
    "ppo on grids of envpool with mission and memory": MISSION | {"env_backend": "envpool"},
    "ppo_continuous_action": PENDULUM,
    "ppo_continuous_action on envpool": PENDULUM | {"env_backend": "envpool"},
    "ppo_continuous_action on async": PENDULUM
    | {"checkpoint_every": 256, "checkpoint_episodes": 0, "vectorization": "async"},
    "ppo_atari_envpool": PONG,
    "ppo_atari_envpool on gymnasium": PONG | {"env_backend": "gymnasium", "vectorization": "native"},
    "ppo_atari_envpool with episodes": ENDING,
    "ppo_atari": PONG | {"env_backend": "gymnasium"},
    "ppo_atari_lstm": CATCH | {"num_envs": 2},
    "ppo_atari_multigpu": CATCH | {"local_num_envs": 2},
    "dqn": SMALL_DQN,
    "dqn with 3 environments": SMALL_DQN | {"num_envs": 3},
    "dqn on envpool": SMALL_DQN | {"env_backend": "envpool"},
    "dqn_jax": SMALL_DQN,
    "dqn_jax on envpool": SMALL_DQN | {"env_backend": "envpool"},
    "c51": SMALL_DQN,
    "pqn": SMALL_PPO,
    "pqn on envpool": SMALL_PPO | {"env_backend": "envpool"},
    "ppo_rnd_envpool": PONG | {"num_iterations_obs_norm_init": 1},
    "ppo_rnd_envpool with episodes": ENDING | {"num_iterations_obs_norm_init": 1, "repeat_action_probability": 0.0},
    "ppo_procgen": FRAMES | {"env_id": "starpilot", "update_epochs": 1},
    # phases end at 48 and 96, and checkpoints lie between two
    "ppg_procgen": FRAMES | PHASES | {"env_id": "starpilot"},
    "ppo_pettingzoo_ma_atari": FRAMES | {"env_id": "pong_v3", "update_epochs": 1},
    "pqn_atari_envpool": PONG,
    "pqn_atari_envpool_lstm": PONG,
    "pqn_atari_envpool with episodes": ENDING,
    "pqn_atari_envpool_lstm with episodes": ENDING,
    "rpo_continuous_action": PENDULUM,
    "sac_continuous_action": SMALL_SAC,
    "sac_continuous_action on envpool": SMALL_SAC | {"env_backend": "envpool"},
    "td3_continuous_action": SMALL_SAC,
    "td3_continuous_action with 3 environments": SMALL_SAC | {"num_envs": 3},
    "ddpg_continuous_action": SMALL_SAC,
    "dqn_atari": IMAGES | {"target_network_frequency": 20},
    "dqn_atari with 3 environments on envpool": IMAGES | {"env_id": "Pong-v5", "num_envs": 3},
    "dqn_atari on gymnasium's Breakout": IMAGES | {"env_id": "Breakout-v5", "env_backend": "gymnasium"},
    "c51_atari": IMAGES,
    "rainbow_atari": IMAGES,
    "rainbow_atari with 3 environments": IMAGES | {"num_envs": 3},
    "sac_atari": IMAGES,
    "qdagger_dqn_atari_impalacnn": IMAGES | tiny_envs.small_lesson() | {"offline_steps": 70},
    "qdagger_dqn_atari_impalacnn in its offline phase": IMAGES | tiny_envs.small_lesson() | {"offline_steps": 100},
    "ppo_jax": SMALL_PPO,
    "ppo_jax on pendulums": PENDULUM,
    "ppo_jax on envpool": SMALL_PPO | {"env_backend": "envpool", "total_timesteps": 256},
    "ppo_jax on grids": GRID,
    "dqn_atari_jax": JAX_IMAGES | {"target_network_frequency": 20},
    "c51_atari_jax": JAX_IMAGES,
    "qdagger_dqn_atari_jax_impalacnn": JAX_IMAGES | tiny_envs.small_lesson(offline_steps=6) | SHORT,
    "ppo_jax on images": FRAMES | {"env_id": "mosaic/Catch-v0", "update_epochs": 1},
    "ppo_atari_envpool_xla_jax": PONG,
    "ppo_atari_envpool_xla_jax_scan": FRAMES | {"env_id": "mosaic/Catch-v0", "update_epochs": 1},
    "c51_jax": SMALL_DQN,
    "sac_continuous_action_jax": SMALL_SAC,
    "td3_continuous_action_jax": SMALL_SAC,
    "ddpg_continuous_action_jax": SMALL_SAC,
}
# Long enough that a kill within the time of an uninterrupted training hits it.
KILLED = {
    "ppo": {"total_timesteps": 6400},
    "ppo on envpool": {"total_timesteps": 6400},
    "ppo on async": {"total_timesteps": 2560},
    "ppo on grids with mission and memory": {"total_timesteps": 768},
    "ppo_continuous_action": {"total_timesteps": 6400},
    "ppo_atari_envpool": {"total_timesteps": 160, "checkpoint_every": 32, "checkpoint_episodes": 0},
    "dqn": {"total_timesteps": 6000},
    "dqn_jax": {"total_timesteps": 6000},
    "c51": {"total_timesteps": 3000},
    "pqn": {"total_timesteps": 6400},
    "sac_continuous_action": {"total_timesteps": 730},
    "rainbow_atari": {"total_timesteps": 200, "learning_starts": 150},
    "td3_continuous_action": {"total_timesteps": 1030},
    "ppo_jax": {"total_timesteps": 25600},
}
# One of each kind: on and off policy, torch and JAX, images, each backend; the others only with --full.
KILLED_ALWAYS = ("ppo", "ppo on envpool", "ppo on async", "ppo_atari_envpool", "dqn", "dqn_jax")
KILLED_ALWAYS += ("sac_continuous_action",)
FULL = pytest.mark.full
# Of the same algorithm and the same backend as others: only with --full, too.
MORE = ("ppo on grids of envpool", "ppo_continuous_action on async", "sac_continuous_action on envpool")
MORE += ("ppo_jax on pendulums",)


def test_every_algorithm_is_among_those_that_are_tried_here():
    assert {case.split()[0] for case in CASES} == set(DEFAULT_ALGO_REGISTRY)


def train(case, folder, **options):
    needed(case)
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY[case.split()[0]])
    module.main(module.Args(run_dir=folder, cuda=False, **(CASES[case] | options)))


def command(case, folder, **options):
    """The same training as a process of its own."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in (CASES[case] | options).items()]
    return [sys.executable, "-m", DEFAULT_ALGO_REGISTRY[case.split()[0]], f"--run-dir={folder}", "--cuda=false", *flags]


def final_state(folder):
    """Everything a run leaves: step, every array, number and generator, and the bytes of the replay memory."""
    found = checkpoint.newest(folder / "checkpoints", print)
    arrays = {name: (array.shape, array.tobytes()) for name, array in found.arrays.items()}
    return found.step, arrays, found.document["numbers"], found.document["random"], replay_bytes(found)


def replay_bytes(found):
    """The newest transitions that the memory holds; how they are cut into segments depends on the kills."""
    if "replay" not in found.document:
        return {}
    folder = found.path.parent / "replay"
    pieces = [load_file(folder / segment["file"]) for segment in found.document["replay"]["segments"]]
    held = min(found.document["replay"]["added"], found.document["args"]["buffer_size"])
    return {name: np.concatenate([piece[name] for piece in pieces])[-held:].tobytes() for name in pieces[0]}


@pytest.mark.parametrize("case", [pytest.param(one, marks=FULL) if one in MORE else one for one in CASES])
def test_going_on_from_any_scheduled_checkpoint_gives_the_same_bytes_as_never_stopping(case, tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train(case, whole)
    scheduled = [path for path in find_all(whole / "checkpoints") if checkpoint.read(path).exact]
    source = scheduled[-1]
    last = checkpoint.newest(whole / "checkpoints", print)
    assert int(source.name) < last.step
    if "replay" in last.document and "qdagger" not in case:  # its offline steps play nothing
        assert last.document["replay"]["added"] == last.step, "every step is in the memory, the last one, too"
    train(case, resumed, resume=source)
    assert metrics.comparable(resumed / "metrics.jsonl") == metrics.comparable(whole / "metrics.jsonl")
    assert final_state(resumed) == final_state(whole)


@pytest.mark.parametrize("case", [one if one in KILLED_ALWAYS else pytest.param(one, marks=FULL) for one in KILLED])
def test_a_run_killed_at_a_random_moment_goes_on_in_its_own_folder_bit_for_bit(case, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    began = time.monotonic()
    train(case, whole, **KILLED[case])
    seconds = time.monotonic() - began
    assert killed_at_a_random_moment(command(case, killed, **KILLED[case]), killed, seconds)
    assert find_all(killed / "checkpoints"), "there must be something to go on from"
    train(case, killed, resume=killed, **KILLED[case])
    assert metrics.comparable(killed / "metrics.jsonl") == metrics.comparable(whole / "metrics.jsonl")
    assert final_state(killed) == final_state(whole)


def killed_at_a_random_moment(words, folder, seconds):
    """Start it and kill it after its first checkpoint; again, sooner, if it was too fast."""
    for patience in (0.7, 0.3, 0.1, 0.0):
        shutil.rmtree(folder, ignore_errors=True)
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        while not find_all(folder / "checkpoints") and process.poll() is None:
            time.sleep(0.002)
        time.sleep(random.random() * patience * seconds)
        process.kill()
        if process.wait() == -signal.SIGKILL:
            return True
    return False


def test_sigterm_saves_and_asks_to_be_started_again(tmp_path):
    process = started(command("ppo", tmp_path, total_timesteps=10**9, checkpoint_every=0), tmp_path)
    process.terminate()
    assert process.wait(180) == 75
    (path,) = find_all(tmp_path / "checkpoints")
    assert not checkpoint.read(path).exact


def started(words, folder, seconds=120):
    """A training that has logged its first row."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, process_group=0)
    end = time.monotonic() + seconds
    while not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").stat().st_size:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(number, tmp_path):
    # the next checkpoint is minutes away and the grace period allows for it, however slow the machine
    long = {"total_timesteps": 10**9, "checkpoint_every": 10**7, "grace_seconds": 1e9}
    process = started(command("ppo", tmp_path, **long), tmp_path)
    process.send_signal(number)
    time.sleep(1.0)
    assert process.poll() is None, "it goes on to the next scheduled checkpoint"
    process.send_signal(number)
    assert process.wait(180) == -number
    assert not find_all(tmp_path / "checkpoints")


def test_an_interrupt_of_the_whole_group_still_saves(tmp_path):
    """Ctrl-C in a terminal reaches the processes of an async vector, too: they must live on while it saves."""
    process = started(command("ppo on async", tmp_path, total_timesteps=10**9, checkpoint_every=0), tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(180) == 75
    assert len(find_all(tmp_path / "checkpoints")) == 1


def test_a_policy_file_is_a_warm_start_from_step_zero(tmp_path):
    train("ppo", tmp_path / "first", save_model=True)
    (policy,) = (tmp_path / "first").glob("runs/*/ppo.cleanrl_model")
    train("ppo", tmp_path / "second", resume=policy)
    rows = metrics.read_rows(tmp_path / "second" / "metrics.jsonl")
    assert rows[0]["step"] < 512
    assert metrics.comparable(tmp_path / "first" / "metrics.jsonl") != metrics.comparable(
        tmp_path / "second" / "metrics.jsonl"
    )


def test_signals_are_the_callers_again_when_a_training_has_ended(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    train("ppo", tmp_path)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_future_that_was_left_goes_with_the_first_save_and_not_before(tmp_path):
    train("dqn", tmp_path)
    steps = [int(path.name) for path in find_all(tmp_path / "checkpoints")]
    assert steps == [700, 600]
    with pytest.raises(SystemExit):  # restored, then refused: restoring deletes nothing
        train("dqn", tmp_path, resume=tmp_path / "checkpoints" / "600", env_id="Acrobot-v1")
    assert [int(path.name) for path in find_all(tmp_path / "checkpoints")] == steps
    train("dqn", tmp_path, resume=tmp_path / "checkpoints" / "600", gamma=0.5, total_timesteps=650)
    assert [int(path.name) for path in find_all(tmp_path / "checkpoints")] == [650, 600]


@pytest.mark.parametrize("where", ["own", "new"])
def test_a_line_that_was_left_goes_on_with_its_own_curve(where, tmp_path):
    run, left = tmp_path / "own", tmp_path / "own" / "checkpoints" / "384"
    train("ppo", run)
    before = curve(run)
    (left / "pinned").touch()
    shutil.copytree(left, tmp_path / "kept")
    train("ppo", tmp_path / "early", total_timesteps=128)
    train("ppo", run, resume=tmp_path / "early", learning_rate=0.1, total_timesteps=448)
    shutil.rmtree(left)
    shutil.copytree(tmp_path / "kept", left)
    assert curve(run) != before
    train("ppo", tmp_path / where, resume=left, total_timesteps=640)
    assert curve(tmp_path / where) == before
    steps = [row["step"] for row in metrics.read_rows(tmp_path / where / "metrics.jsonl")]
    assert steps == sorted(steps) and steps[-1] == 640


def curve(folder):
    """What counts up to the checkpoint at 384, times and all."""
    return [row for row in metrics.read_rows(folder / "metrics.jsonl") if row["step"] <= 384]


def test_additional_timesteps_add_to_what_was_done(tmp_path):
    train("ppo", tmp_path / "first")
    train("ppo", tmp_path / "second", resume=tmp_path / "first", additional_timesteps=128)
    assert final_state(tmp_path / "second")[0] == 512 + 128
    steps = [row["step"] for row in metrics.read_rows(tmp_path / "second" / "metrics.jsonl")]
    assert steps == sorted(steps)


@pytest.fixture
def told(tmp_path, monkeypatch):
    """The events that runs in tmp_path/again hand to their shell, of one kind."""
    monkeypatch.setenv("MOSAIC_SHELL_PID", str(os.getppid()))
    for name in ("first", "again"):
        (tmp_path / name / "logs").mkdir(parents=True)

    def events(kind):
        notes = (tmp_path / "again" / "logs" / "notes.jsonl").read_text().splitlines()
        return [note["payload"] for note in map(json.loads, notes) if note["event"] == kind]

    return events


def test_an_environment_with_the_same_spaces_is_taken_and_told_and_nothing_exact_is_claimed(tmp_path, told):
    train("ppo", tmp_path / "first", env_id="Tiny/TwoRooms-v0")
    train("ppo", tmp_path / "again", resume=tmp_path / "first", env_id="Tiny/TerminatingScaled-v0", total_timesteps=640)
    (event,) = told("resumed")
    assert event["changed"]["env_id"] == ["Tiny/TwoRooms-v0", "Tiny/TerminatingScaled-v0"]
    assert (event["step"], event["exact"]) == (512, False)
    assert final_state(tmp_path / "again")[0] == 640


@pytest.mark.parametrize(
    ("case", "before", "after", "reason"),
    [
        ("ppo", "CartPole-v1", "Acrobot-v1", "size mismatch"),
        ("ppo_jax", "CartPole-v1", "Acrobot-v1", "size mismatch"),
        ("ppo_continuous_action", "Tiny/TruncatingScaledContinuous-v0", "Tiny/WideContinuous-v0", "3.0, 3.0"),
        ("sac_continuous_action", "Tiny/TruncatingScaledContinuous-v0", "Tiny/WideContinuous-v0", "3.0, 3.0"),
    ],
)
def test_other_spaces_are_refused_in_one_line_before_anything_is_written(case, before, after, reason, tmp_path):
    train(case, tmp_path / "run", env_id=before)
    before_it = contents(tmp_path / "run")
    with pytest.raises(SystemExit, match=rf"does not fit {case} on {after}: .*{reason}") as refused:
        train(case, tmp_path / "run", resume=tmp_path / "run", env_id=after, total_timesteps=900)
    assert "\n" not in refused.value.code
    assert contents(tmp_path / "run") == before_it


@pytest.mark.parametrize("case", ["c51", "c51_atari", "c51_jax", "c51_atari_jax", "rainbow_atari"])
def test_other_atoms_than_the_weights_are_for_are_refused_in_one_line(case, tmp_path, monkeypatch):
    compiled = uncompiled(case, monkeypatch)
    small = {"total_timesteps": 40, "checkpoint_every": 0}
    train(case, tmp_path / "run", save_model=case == "c51", **small)
    sources = [tmp_path / "run", *(tmp_path / "run").glob(f"runs/*/{case}.cleanrl_model")]
    for source, (flag, other) in zip(sources, (("--v-min", -7.0), ("--n-atoms", 11)), strict=False):
        with pytest.raises(SystemExit, match=rf"it was trained with {flag} .*, which its weights are for, not") as no:
            name = flag.removeprefix("--").replace("-", "_")
            train(case, tmp_path / "again", resume=source, **small, **{name: other})
        assert "\n" not in no.value.code and f"leave {flag} out" in no.value.code
    assert len(compiled) == ("_jax" in case), "only what trains is worth compiling"


def uncompiled(case, monkeypatch):
    """What would have been compiled: where nothing is learned, an update need not be."""
    told = []
    if "_jax" in case:
        module = importlib.import_module(DEFAULT_ALGO_REGISTRY[case])
        monkeypatch.setattr(module, "compiled", lambda what, _: told.append(what))
    return told


def test_no_checkpoint_costs_an_auxiliary_phase(tmp_path, told):
    """Asked for amid a phase, it is made at its end; what is stopped amid one goes on to the same end."""
    train("ppg_procgen", tmp_path / "first", total_timesteps=64, checkpoint_every=16, checkpoint_episodes=0)
    exact = {int(path.name): checkpoint.read(path).exact for path in find_all(tmp_path / "first" / "checkpoints")}
    assert exact == {48: True, 64: False}
    train("ppg_procgen", tmp_path / "again", resume=tmp_path / "first", checkpoint_every=16, checkpoint_episodes=0)
    rows = metrics.read_rows(tmp_path / "again" / "metrics.jsonl")
    assert [row["step"] for row in rows if "losses/aux/kl_loss" in row] == [48, 96]
    said = [event["message"] for event in told("warning") if "checkpoint_every=" not in event["message"]]
    assert said == [
        "checkpoints are made between phases of 48 steps: every 48 steps, not 16",
        "the first 1 of this phase's 3 batches were not saved; its auxiliary phase learns from the others",
    ]


def contents(folder):
    """Every file but TensorBoard's, whose writer opens one before anything is known."""
    files = (path for path in folder.rglob("*") if path.is_file() and "tensorboard" not in path.parts)
    return {path: path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("ppo", {"learning_rate": 1e-5, "num_envs": 4}),
        ("ppo_continuous_action", {"gamma": 0.5, "num_envs": 4}),
        ("dqn", {"batch_size": 16, "buffer_size": 1000}),
        ("c51", {"batch_size": 16}),
        ("sac_continuous_action", {"tau": 0.5, "buffer_size": 50}),
    ],
)
def test_changed_hyper_parameters_are_listed_and_train_on(case, changes, tmp_path, told):
    train(case, tmp_path / "first")
    train(case, tmp_path / "again", resume=tmp_path / "first", additional_timesteps=256, **changes)
    (event,) = told("resumed")
    assert event["changed"].keys() == {*changes, "total_timesteps"} and not event["exact"]
    assert {name: event["changed"][name][1] for name in changes} == changes
    assert final_state(tmp_path / "again")[0] == final_state(tmp_path / "first")[0] + 256


def test_schedules_run_over_the_new_total_and_this_is_told(tmp_path, told):
    train("ppo", tmp_path / "first", learning_rate=1.0)
    train("ppo", tmp_path / "again", learning_rate=1.0, resume=tmp_path / "first", total_timesteps=1024)
    (event,) = told("resumed")
    assert event["changed"] == {"total_timesteps": [512, 1024]} and "recomputed" in event["schedules"]
    rows = metrics.read_rows(tmp_path / "again" / "metrics.jsonl")
    rates = {row["step"]: row["charts/learning_rate"] for row in rows if "charts/learning_rate" in row}
    assert rates[512] == pytest.approx(1 / 8), "the parent's last of 8 iterations"
    assert rates[576] == pytest.approx(1 / 2), "the ninth of 16"


def test_the_backend_that_was_really_used_is_part_of_the_recipe(tmp_path, told):
    train("dqn", tmp_path / "first", env_backend="auto")
    scheduled = [path for path in find_all(tmp_path / "first" / "checkpoints") if checkpoint.read(path).exact]
    train("dqn", tmp_path / "again", env_backend="gymnasium", resume=scheduled[0])
    assert told("resumed")[0]["exact"], "auto took gymnasium"
    (tmp_path / "again" / "metrics.jsonl").unlink()
    train("dqn", tmp_path / "again", env_backend="envpool", resume=scheduled[0])
    assert told("resumed")[1]["changed"] == {"env_backend": ["gymnasium", "envpool"]}


def test_the_device_and_the_file_that_were_really_used_are_part_of_the_recipe(tmp_path, told):
    train("dqn", tmp_path / "first")
    scheduled = [path for path in find_all(tmp_path / "first" / "checkpoints") if checkpoint.read(path).exact]
    document, files = read_checkpoint(scheduled[0])
    assert document["device"] == "cpu"
    elsewhere = {name: value for name, value in document.items() if name not in ("files", "saved_at")}
    elsewhere |= {"device": "cuda", "algo": "mine"}
    path = write_checkpoint(tmp_path / "gpu", int(scheduled[0].name), elsewhere, files)
    shutil.copytree(scheduled[0].parent / "replay", tmp_path / "gpu" / "replay")
    train("dqn", tmp_path / "again", resume=path)
    assert told("resumed")[0]["changed"] == {"algo": ["mine", "dqn"], "device": ["cuda", "cpu"]}
    assert not told("resumed")[0]["exact"]


ANY_SHAPE = ["c51", "pqn", "rpo_continuous_action", "td3_continuous_action", "dqn_jax", "ppo_jax"]


@pytest.mark.parametrize("case", [*ANY_SHAPE, "td3_continuous_action_jax"])
def test_a_warm_start_takes_the_acting_network_out_of_a_file_of_any_shape(case, tmp_path):
    train(case, tmp_path / "first", save_model=True)
    (policy,) = (tmp_path / "first").glob(f"runs/*/{case}.cleanrl_model")
    # nothing is learned in the steps after it, so the weights are still those of the file
    lazily = {"total_timesteps": 64, "learning_rate": 0.0}
    train(case, tmp_path / "again", resume=policy, **lazily)
    before, after = (checkpoint.newest(tmp_path / name, print).arrays for name in ("first", "again"))
    beside = ("policy/target", "policy/optimizer", "policy/actor_optimizer", "policy/q_optimizer")  # not in JAX's files
    names = [name for name in before if name.startswith("policy/") and not name.startswith(beside)]
    assert names and all(np.array_equal(before[name], after[name]) for name in names)
    for target, online in (("target/", "policy/"), ("target_actor/", "policy/"), ("policy/target/", "policy/params/")):
        for name in (name for name in after if name.startswith(target)):
            np.testing.assert_allclose(after[name], after[online + name.removeprefix(target)], rtol=1e-5, err_msg=name)


def test_a_warm_start_with_other_limits_of_actions_is_refused_in_one_line(tmp_path):
    train("sac_continuous_action", tmp_path / "first", env_id="Tiny/TruncatingScaledContinuous-v0", save_model=True)
    (policy,) = (tmp_path / "first").glob("runs/*/sac_continuous_action.cleanrl_model")
    with pytest.raises(
        SystemExit, match=r"does not fit .* on Tiny/WideContinuous-v0: it was trained with .*3\.0, 3\.0"
    ):
        train("sac_continuous_action", tmp_path / "again", env_id="Tiny/WideContinuous-v0", resume=policy)


def test_a_hostile_policy_is_no_warm_start(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    (tmp_path / "ppo.cleanrl_model").write_bytes(pickle.dumps({"actor": Trap()}))
    with pytest.raises(SystemExit, match="loading it could run code"):
        train("ppo", tmp_path / "run", resume=tmp_path / "ppo.cleanrl_model")
    assert not (tmp_path / "sprung").exists()


def test_a_policy_of_torch_is_no_warm_start_in_jax_and_torch_is_not_imported_to_say_so(tmp_path, monkeypatch):
    train("dqn", tmp_path / "first", save_model=True, total_timesteps=40, checkpoint_every=0)
    (policy,) = (tmp_path / "first").glob("runs/*/dqn.cleanrl_model")
    monkeypatch.delitem(sys.modules, "torch")  # as in a process of JAX's own
    monkeypatch.setattr("cleanrl_worker.algorithms.dqn_jax.compiled", lambda *_: None)
    with pytest.raises(SystemExit, match="does not fit dqn_jax on CartPole-v1: policies of the algorithms in JAX are"):
        train("dqn_jax", tmp_path / "again", resume=policy)
    assert "torch" not in sys.modules


@pytest.mark.parametrize("content", [b"", b"hello world\n" * 20])
def test_a_file_that_is_no_policy_is_no_warm_start(content, tmp_path):
    (tmp_path / "x.cleanrl_model").write_bytes(content)
    with pytest.raises(SystemExit, match="neither a torch nor a safetensors file"):
        train("ppo", tmp_path / "run", resume=tmp_path / "x.cleanrl_model")


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


def test_a_checkpoint_that_fits_in_part_is_refused_before_anything_is_compiled(tmp_path, monkeypatch):
    """DDPG's actor and critic are those of TD3, but its optimizer is of one critic."""
    small = {"total_timesteps": 40, "checkpoint_every": 0}
    uncompiled("ddpg_continuous_action_jax", monkeypatch)
    train("ddpg_continuous_action_jax", tmp_path / "ddpg", **small)
    compiled = uncompiled("td3_continuous_action_jax", monkeypatch)
    with pytest.raises(SystemExit, match=r"does not fit td3_continuous_action_jax on .*: it has no q_optimizer"):
        train("td3_continuous_action_jax", tmp_path / "td3", resume=tmp_path / "ddpg", **small)
    assert not compiled


def test_a_full_disk_costs_a_checkpoint_and_one_line_not_the_run(tmp_path, monkeypatch, capsys):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_checkpoint", full)
    train("ppo", tmp_path)
    lines = [line for line in capsys.readouterr().err.splitlines() if "checkpoint_every=" not in line]
    full_disk = f"the disk of {tmp_path}/checkpoints is full (No space left on device): free space there, or start with"
    assert f"no checkpoint at step 128: {full_disk} a MOSAIC_HOME elsewhere; training continues" in lines[0]
    assert lines[-1].endswith("what was learned since the last checkpoint is not saved")
    assert metrics.read_rows(tmp_path / "metrics.jsonl")[-1]["step"] == 512


def test_the_curve_of_a_run_that_was_moved_goes_on_too(tmp_path):
    train("ppo", tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "moved")
    train("ppo", tmp_path / "after", resume=tmp_path / "moved", additional_timesteps=64)
    steps = [row["step"] for row in metrics.read_rows(tmp_path / "after" / "metrics.jsonl")]
    assert (steps[0] <= 64, steps[-1]) == (True, 576)


@pytest.mark.parametrize("where", ["first", "again"])
def test_a_finished_run_resumes_only_with_more_steps(where, tmp_path, capsys):
    train("ppo", tmp_path / "first")
    for total in (512, 100):
        with pytest.raises(SystemExit) as refused:
            train("ppo", tmp_path / where, resume=tmp_path / "first", total_timesteps=total)
        line = capsys.readouterr().err.splitlines()[-1]
        assert refused.value.code == 2 and f"step 512 of {total} is done" in line
        assert line.endswith("add --additional-timesteps=100000")
    train("ppo", tmp_path / where, resume=tmp_path / "first", additional_timesteps=64)
    assert checkpoint.newest(tmp_path / where, print).step == 576


def test_a_run_that_was_killed_after_its_last_checkpoint_may_end_in_its_own_folder(tmp_path):
    train("ppo", tmp_path)
    (tmp_path / "checkpoints" / ".finished").unlink()  # as a kill amid the closing evaluation leaves it
    train("ppo", tmp_path, resume=tmp_path)
    assert (tmp_path / "checkpoints" / ".finished").read_text() == "512"
    with pytest.raises(SystemExit):
        train("ppo", tmp_path, resume=tmp_path)


@pytest.mark.parametrize("case", ["ppo", "dqn", "ppg_procgen", "dqn_jax"])
@pytest.mark.parametrize("every", [0, 10**9])
def test_every_resumed_run_ends_with_a_checkpoint_that_can_be_resumed(case, every, tmp_path):
    more = {"additional_timesteps": 16, "checkpoint_every": every}
    train(case, tmp_path / "0", save_model=True)
    for number in range(2):
        train(case, tmp_path / str(number + 1), resume=tmp_path / str(number), **more)
    before, after = (checkpoint.newest(tmp_path / name, print).step for name in "12")
    assert before < after
    (policy,) = (tmp_path / "0").glob(f"runs/*/{case}.cleanrl_model")
    train(case, tmp_path / "warm", resume=policy, **more)
    train(case, tmp_path / "warmer", resume=tmp_path / "warm", **more)


def test_a_run_that_starts_again_removes_the_segments_of_the_process_that_was_killed(tmp_path):
    train("dqn", tmp_path / "first", total_timesteps=400)
    left = tmp_path / "second" / "checkpoints" / "replay" / "000000000400-000000000500-deadbeef.safetensors"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half a checkpoint")
    train("dqn", tmp_path / "second", resume=tmp_path / "first", additional_timesteps=50)
    used = [s["file"] for path in find_all(tmp_path / "second" / "checkpoints") for s in segments(path)]
    assert sorted(file.name for file in left.parent.iterdir()) == sorted(set(used)) and left.name not in used
    for path in find_all(tmp_path / "first" / "checkpoints"):
        checkpoint.read(path)  # whose segments are its own


def segments(path):
    return checkpoint.read(path).document["replay"]["segments"]


def forged(tmp_path, name, change):
    """A checkpoint of ppo with another array, and checksums that fit."""
    train("ppo", tmp_path / "first")
    (path,) = (tmp_path / "first" / "checkpoints").glob("512")
    found = checkpoint.read(path)
    arrays = checkpoint.save_arrays({**found.arrays, name: change(found.arrays[name])})
    return write_checkpoint(tmp_path / "forged", 512, found.document, {checkpoint.STATE: arrays})


@pytest.mark.parametrize("name", ["policy/actor.0.weight", "optimizer/mean", "run/recent_returns", "random/torch"])
@pytest.mark.parametrize("kind", [np.float16, np.complex64, np.int64])
def test_arrays_of_another_type_are_refused_in_one_line(name, kind, tmp_path):
    path = forged(tmp_path, name, lambda array: np.ascontiguousarray(array.astype(kind)))
    with pytest.raises(SystemExit, match=r"does not fit ppo on CartPole-v1: ") as refused:
        train("ppo", tmp_path / "again", resume=path, additional_timesteps=64)
    assert "\n" not in str(refused.value) and (name in str(refused.value) or name == "random/torch")


@pytest.mark.parametrize("name", ["policy/actor.0.weight", "optimizer/mean", "random/torch"])
def test_arrays_of_another_shape_are_refused_in_one_line(name, tmp_path):
    path = forged(tmp_path, name, lambda array: array[:1])
    with pytest.raises(SystemExit, match="does not fit ppo on CartPole-v1: "):
        train("ppo", tmp_path / "again", resume=path, additional_timesteps=64)


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (
            {"env_id": "evilmod:X-v0"},
            "names the environment 'evilmod:X-v0', which would import 'evilmod'; add --env",
        ),
        ({"curriculum_schedule": '[{"env_id": "CartPole-v1"}, {"env_id": "evilmod:X-v0"}]'}, "would import 'evilmod'"),
        ({"curriculum": '{"method": "plr", "tasks": ["CartPole-v1", "evilmod:X-v0"]}'}, "would import 'evilmod'"),
        ({"num_steps": "2"}, "argument num_steps is '2', which its type does not allow"),
        ({"gamma": [0.9]}, "argument gamma is"),
    ],
)
def test_an_algorithm_alone_takes_no_code_and_no_other_types_from_a_checkpoint(args, reason, tmp_path):
    train("ppo", tmp_path / "first")
    found = checkpoint.newest(tmp_path / "first", print)
    document = {**found.document, "args": {**found.document["args"], **args}}
    forged = write_checkpoint(tmp_path / "forged", 512, document, {checkpoint.STATE: b""})
    with pytest.raises(SystemExit, match=reason):
        parse(ppo.Args, [f"--resume={forged}", "--run-dir", str(tmp_path / "again")])
    if "env_id" in args:
        assert parse(ppo.Args, ["--resume", str(forged), "--env-id", "evilmod:X-v0"]).env_id == "evilmod:X-v0"
        assert parse(ppo.Args, ["--resume", str(forged), "--env_id=Acrobot-v1"]).env_id == "Acrobot-v1"


def test_a_warm_start_with_weights_of_another_type_or_shape_is_refused_in_one_line(tmp_path):
    train("ppo", tmp_path / "first", save_model=True)
    (policy,) = (tmp_path / "first").glob("runs/*/ppo.cleanrl_model")
    state = torch.load(policy, weights_only=True)
    for change, reason in (
        (torch.Tensor.half, "actor.0.weight is float16 of shape .*, not float32 of shape"),
        (lambda weight: weight.to(torch.complex64), "is complex64 of shape"),
        (lambda weight: weight[:1], "size mismatch for actor.0.weight"),
        (lambda weight: weight / 0, "actor.0.weight holds NaN or an infinity"),
    ):
        torch.save(state | {"actor.0.weight": change(state["actor.0.weight"])}, policy)
        with pytest.raises(SystemExit, match=reason):
            train("ppo", tmp_path / "again", resume=policy)


def test_a_warm_start_has_the_network_and_parameters_of_its_policy_and_trains_what_is_added(tmp_path):
    train("ppo", tmp_path / "before", save_model=True, network="shared", gamma=0.9)
    (model,) = (tmp_path / "before" / "runs").rglob("ppo.cleanrl_model")
    args = parse(ppo.Args, [f"--resume={model}", f"--run-dir={tmp_path / 'after'}", "--additional-timesteps=128"])
    assert (args.network, args.gamma, args.total_timesteps) == ("shared", 0.9, 512)
    ppo.main(args)
    assert metrics.read_rows(tmp_path / "after" / "metrics.jsonl")[-1]["step"] == 128


@pytest.mark.parametrize("case", ["td3_continuous_action", "ddpg_continuous_action"])
def test_a_warm_start_loads_the_critics_that_the_file_has(case, tmp_path, capsys):
    train(case, tmp_path / "first", save_model=True)
    (policy,) = (tmp_path / "first").glob(f"runs/*/{case}.cleanrl_model")
    train(case, tmp_path / "again", resume=policy, total_timesteps=40, learning_starts=100)
    line = f"warm start from {policy.name}: policy, critic loaded; the file has no q_optimizer, actor_optimizer, replay"
    assert line in capsys.readouterr().out
    before, after = (checkpoint.newest(tmp_path / name, print).arrays for name in ("first", "again"))
    names = [name for name in before if name.startswith("critic/")]
    assert names and all(np.array_equal(before[name], after[name]) for name in names)
    assert all(np.array_equal(before[name], after[f"target_{name}"]) for name in names)


def test_a_loaded_policy_takes_the_place_of_random_first_steps(tmp_path, monkeypatch):
    """Nothing is learned, and nothing explored in the end: each action is the greedy one of the file."""
    train("dqn", tmp_path / "first", save_model=True, end_e=0.0)
    (policy,) = (tmp_path / "first").glob("runs/*/dqn.cleanrl_model")
    module = importlib.import_module(DEFAULT_ALGO_REGISTRY["dqn"])
    make, seen = module.vectors.vector, []

    def recorded(*given):
        made = make(*given)
        step, reset, shown = made.step, made.reset, []
        made.reset = lambda *seeds: shown.append(reset(*seeds)) or shown[-1]

        def taken(actions):
            seen.append((shown[-1].copy(), actions.copy()))
            reached = step(actions)
            shown.append(reached.obs)
            return reached

        made.step = taken
        return made

    monkeypatch.setattr(module.vectors, "vector", recorded)
    train("dqn", tmp_path / "again", resume=policy, total_timesteps=40, learning_starts=10**6, end_e=0.0)
    q_network = module.QNetwork(make(module.Args()))
    q_network.load_state_dict(torch.load(policy, weights_only=True))
    for obs, actions in seen:
        assert q_network(torch.from_numpy(obs)).argmax(dim=1).tolist() == actions.tolist()


def test_a_resumed_warm_start_is_still_one(tmp_path):
    train("dqn", tmp_path / "first", save_model=True)
    (policy,) = (tmp_path / "first").glob("runs/*/dqn.cleanrl_model")
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train("dqn", whole, resume=policy)
    source = [path for path in find_all(whole / "checkpoints") if checkpoint.read(path).exact][-1]
    train("dqn", resumed, resume=source)
    assert metrics.comparable(resumed / "metrics.jsonl") == metrics.comparable(whole / "metrics.jsonl")
