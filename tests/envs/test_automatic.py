"""Automatic curricula of Syllabus through the real worker; most of it needs the extra `curriculum`."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cleanrl_worker.run import checkpoint
from mosaic.contract import metrics
from mosaic.contract.checkpoints import find_all
from mosaic.contract.events import decode
from mosaic.contract.paths import RunPaths

needs_syllabus = pytest.mark.skipif(importlib.util.find_spec("syllabus") is None, reason="needs mosaic-rl[curriculum]")
TASKS = ["MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-6x6-v0", "MiniGrid-DoorKey-5x5-v0"]
SMALL = {
    "num_envs": 2,
    "num_steps": 32,
    "num_minibatches": 2,
    "checkpoint_every": 256,
    "checkpoint_episodes": 0,
    "cuda": False,
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    return tmp_path


def words(run_id, method, total=768, **extras):
    plan = {"method": method, "tasks": TASKS, "episodes": 3, "steps": 128}
    extras = {"curriculum": plan, "algo_params": SMALL, "fastlane_video_mode": "off", **extras}
    config = {
        "run_id": run_id,
        "algo": "ppo",
        "env_id": TASKS[0],
        "seed": 3,
        "total_timesteps": total,
        "extras": extras,
    }
    path = Path(f"{run_id}.json")
    path.write_text(json.dumps(config))
    return [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(path)]


@pytest.mark.skipif(importlib.util.find_spec("syllabus") is not None, reason="Syllabus is installed")
def test_without_syllabus_the_dry_run_says_which_extra_to_install():
    done = subprocess.run([*words("a", "plr"), "--dry-run"], capture_output=True, text=True)
    assert done.returncode == 2 and "pip install 'mosaic-rl[curriculum]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_algorithm_alone_says_that_the_worker_is_needed():
    plan = json.dumps({"method": "lp", "tasks": TASKS})
    flags = [f"--env-id={TASKS[0]}", f"--curriculum={plan}", "--run-dir=alone"]
    done = subprocess.run(
        [sys.executable, "-m", "cleanrl_worker.algorithms.ppo", *flags], capture_output=True, text=True
    )
    assert done.returncode == 1 and "--curriculum needs the worker" in done.stderr


def shared_memory():
    """What Python's and Syllabus's shared memory is called there; other tests' rings have other names."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("psm_")}


@needs_syllabus
@pytest.mark.parametrize("method", ["plr", "lp", "domain_randomization"])
def test_tasks_are_chosen_told_and_resumed_exactly_without_a_trace(method):
    before = shared_memory()
    done = subprocess.run(words("whole", method), capture_output=True, check=True, timeout=400)
    events = [decode(line) for line in done.stdout.splitlines(keepends=True)]
    assert events[-1].event == "run_completed"
    chosen = [event.payload["env_id"] for event in events if event.event == "stage"]
    assert len(chosen) >= 6 and len(set(chosen)) > 1 and set(chosen) <= set(TASKS)
    paths = RunPaths("whole")
    rows = [row for row in metrics.read_rows(paths.metrics) if f"curriculum/{TASKS[0]}_prob" in row]
    for row in rows:
        assert sum(row[f"curriculum/{task}_prob"] for task in TASKS) == pytest.approx(1.0)
    assert "syllabus" not in (paths.logs / "cleanrl.stdout.log").read_text().lower()

    process = subprocess.Popen(words("killed", method, total=768), stdout=subprocess.DEVNULL, process_group=0)
    end = time.monotonic() + 400
    killed = RunPaths("killed")
    while not find_all(killed.folder / "checkpoints"):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    resume = {"mode": "resume_training", "checkpoint_path": str(killed.folder)}
    subprocess.run(words("killed", method, **resume), check=True, stdout=subprocess.DEVNULL, timeout=400)
    assert metrics.comparable(killed.metrics) == metrics.comparable(paths.metrics)
    states = [checkpoint.newest(each.folder, print) for each in (paths, killed)]
    assert states[0].document["numbers"] == states[1].document["numbers"]
    assert all((states[0].arrays[name] == states[1].arrays[name]).all() for name in states[0].arrays)
    end = time.monotonic() + 60  # the resource tracker of what was killed tidies up by itself
    while shared_memory() - before and time.monotonic() < end:
        time.sleep(0.1)
    assert not shared_memory() - before
