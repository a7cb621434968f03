"""Several processes that train one agent: the same as one, and a dead one ends them all by name."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
from safetensors.numpy import load_file

from mosaic.contract import metrics
from mosaic.contract.checkpoints import find_all

MODULE = "cleanrl_worker.algorithms.ppo_atari_multigpu"
TINY = "--env-id=mosaic/Catch-v0 --num-steps=16 --num-minibatches=2 --update-epochs=2 --num-threads=1 --no-cuda"
PATIENCE = 240.0  # a loaded machine imports torch in tens of seconds


def start(folder: Path, *flags: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", MODULE, f"--run-dir={folder}", *TINY.split(), *flags]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "MOSAIC_SHELL_PID")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(command, env=environment, text=True, **pipes)


def curve(folder: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in metrics.read_rows(folder / "metrics.jsonl"):
        for tag in row:
            if tag not in ("time", "charts/SPS") and not tag.startswith("perf/"):
                found.setdefault(tag, []).append(row[tag])
    return found


def test_two_ranks_learn_what_one_process_with_the_joint_batch_learns(tmp_path: Path) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    shared = ("--total-timesteps=256", "--checkpoint-every=128", "--checkpoint-episodes=0")
    processes = [
        start(two, *shared, "--world-size=2", "--local-num-envs=2"),
        start(one, *shared, "--world-size=1", "--local-num-envs=4"),
    ]
    for process in processes:
        told, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0 and "(100 %)" in told, errors
    ours, theirs = curve(two), curve(one)
    assert ours.keys() == theirs.keys() and len(ours["charts/episodic_return"]) == 16
    for tag, values in theirs.items():
        assert np.allclose(ours[tag], values, rtol=1e-3, atol=1e-5), tag
    weights = [load_file(find_all(folder / "checkpoints")[0] / "state.safetensors") for folder in (two, one)]
    learned = [name for name in weights[0] if name.startswith("policy/")]
    assert learned and all(np.allclose(weights[0][name], weights[1][name], atol=1e-5) for name in learned)
    assert [path.name for path in find_all(two / "checkpoints")] == ["256", "128"], "one checkpoint for both ranks"


def test_a_stopped_run_goes_on_with_both_ranks_and_a_dead_one_ends_it_by_name(tmp_path: Path) -> None:
    flags = (
        "--total-timesteps=100000000",
        "--world-size=2",
        "--local-num-envs=2",
        "--checkpoint-every=64",
        "--checkpoint-episodes=0",
    )
    process = start(tmp_path, *flags)
    wait_for_checkpoint(tmp_path, process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 75 and "Traceback" not in errors, errors
    saved = int(find_all(tmp_path / "checkpoints")[0].name)

    again = start(tmp_path, f"--resume={tmp_path}")
    wait_for_checkpoint(tmp_path, again, after=saved)
    (other,) = psutil.Process(again.pid).children()
    other.send_signal(signal.SIGKILL)
    told, errors = again.communicate(timeout=PATIENCE)
    assert again.returncode == 1 and f"resumed exactly at step {saved:,}" in told
    assert f"rank 1 of 2 (process {other.pid}) died of SIGKILL, which ends the run" in errors.splitlines()
    assert "Traceback" not in errors


def wait_for_checkpoint(folder: Path, process: "subprocess.Popen[str]", after: int = 0) -> None:
    until = time.monotonic() + PATIENCE
    while not any(int(path.name) > after for path in find_all(folder / "checkpoints")):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)
