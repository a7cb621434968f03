"""Files of other eras, run unchanged by the worker: a small one for each interface that changed."""

import ast
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import cleanrl_worker
from mosaic.contract.frames import FastLaneReader, Frame, RingError
from mosaic.contract.metrics import read_rows
from mosaic.contract.paths import RunPaths
from mosaic.contract.sidecars import read_sidecar

FILES = Path(__file__).parent / "files"
FOREIGN = Path(cleanrl_worker.__file__).with_name("foreign")
RETURN = "charts/episodic_return"


def command(home: Path, run_id: str, name: str, env_id: str, steps: int, **extras: Any) -> list[str]:
    """The command that runs one of the files."""
    file = home / f"{run_id}.json"
    config = {"run_id": run_id, "algo": str(FILES / name), "env_id": env_id, "seed": 5, "total_timesteps": steps}
    file.write_text(json.dumps({**config, "extras": extras}))
    return [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(file)]


class Finished:
    """A run of a script that has ended."""

    def __init__(self, home: Path, name: str, env_id: str, steps: int, **extras: Any) -> None:
        self.paths = RunPaths("run", home)
        self.done = subprocess.run(
            command(home, "run", name, env_id, steps, **extras),
            capture_output=True,
            text=True,
            timeout=240,
        )

    def check(self) -> "Finished":
        assert self.done.returncode == 0, self.done.stderr + self.paths.stderr_log.read_text()
        return self

    @property
    def returns(self) -> list[float]:
        return [row[RETURN] for row in read_rows(self.paths.metrics) if RETURN in row]

    @property
    def warnings(self) -> list[str]:
        events = map(json.loads, self.paths.events.read_text().splitlines())
        found = [event["payload"]["message"] for event in events if event["event"] == "warning"]
        return [message for message in found if "no live view" not in message]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_continuous_wrappers_show_returns_and_leave_statistics_in_the_sidecar(tmp_path: Path) -> None:
    run = Finished(tmp_path, "continuous_029.py", "Pendulum-v1", 800).check()
    assert len(run.returns) == 4 and max(run.returns) < 0
    (policy,) = run.paths.folder.glob("runs/**/*.cleanrl_model")
    sidecar = read_sidecar(policy)
    assert (sidecar["env_id"], sidecar["seed"]) == ("Pendulum-v1", 5)
    assert Path(sidecar["script"]).name == "continuous_029.py" and sidecar["args"]["total_timesteps"] == 800
    assert len(sidecar["observation_statistics"]["mean"]) == 3
    (warning,) = run.warnings
    assert warning.startswith("continuous_029.py was written for Gymnasium 0.29: it runs on Gymnasium 1.")


def test_environments_in_processes_reset_in_the_same_step_and_their_episodes_are_counted(tmp_path: Path) -> None:
    run = Finished(tmp_path, "processes_029.py", "CartPole-v1", 200).check()
    assert run.paths.stdout_log.read_text() == f"episodes {len(run.returns)}\n" and len(run.returns) > 10


def test_frames_are_resized_greyed_and_stacked(tmp_path: Path) -> None:
    Finished(tmp_path, "images_029.py", "BreakoutNoFrameskip-v4", 80).check()


def test_films_are_written_without_moviepy(tmp_path: Path) -> None:
    run = Finished(tmp_path, "films_029.py", "CartPole-v1", 30).check()
    films = list(run.paths.folder.glob("videos/films/*.mp4"))
    assert [film.name for film in films] == ["rl-video-episode-1.mp4"] and films[0].stat().st_size > 500


def test_saved_policy_is_evaluated_by_the_stand_in(tmp_path: Path) -> None:
    run = Finished(tmp_path, "evaluated_029.py", "CartPole-v1", 100).check()
    assert read_sidecar(run.paths.folder / "evaluated.cleanrl_model")["args"]["end_e"] == 0.05
    assert list(run.paths.folder.glob("videos/eval/*.mp4"))


def test_gym_023_plays_a_newer_version_and_says_so(tmp_path: Path) -> None:
    run = Finished(tmp_path, "classic_023.py", "Pendulum-v0", 250).check()
    assert len(run.returns) == 1
    assert any(message.startswith("Pendulum-v0 is played as Pendulum-v1") for message in run.warnings)


def test_gym_023_environment_of_ones_own_is_counted(tmp_path: Path) -> None:
    run = Finished(tmp_path, "own_023.py", "Corridor-v0", 60).check()
    assert run.returns == [1.0] * 12  # the environment's own reward, not a wrapper's
    assert [row["step"] for row in read_rows(run.paths.metrics)] == list(range(5, 61, 5))


def test_envpool_as_gym_023_knew_it(tmp_path: Path) -> None:
    run = Finished(tmp_path, "pool_023.py", "CartPole-v1", 300).check()
    assert len(run.returns) > 15 and set(run.returns) <= set(range(7, 13))


def test_file_of_gymnasium_1_is_left_alone(tmp_path: Path) -> None:
    run = Finished(tmp_path, "modern.py", "CartPole-v1", 40).check()
    assert run.warnings == [] and run.returns == []


def test_live_view_shows_an_environment_and_a_cancel_leaves_no_process(tmp_path: Path) -> None:
    run_id = f"compat-{os.getpid()}"
    started = command(tmp_path, run_id, "processes_029.py", "CartPole-v1", 10_000_000, grace_seconds=5)
    worker = subprocess.Popen(started, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        assert first_frame(RunPaths(run_id, tmp_path).fastlane).array.any()
        others = psutil.Process(worker.pid).children(recursive=True)
        assert len(others) >= 3  # the script and an environment's process each
        worker.terminate()
        assert worker.wait(60) != 0
        assert [process for process in others if process.is_running() and process.status() != "zombie"] == []
    finally:
        worker.kill()
        worker.wait()


def first_frame(record: Path) -> Frame:
    end = time.monotonic() + 90
    while time.monotonic() < end:
        time.sleep(0.1)
        with contextlib.suppress(RingError), FastLaneReader.open(record) as reader:
            while time.monotonic() < end:
                if (frame := reader.latest_frame()) is not None:
                    return frame
                time.sleep(0.05)
    raise AssertionError("no frame within 90 s")


@pytest.mark.parametrize("path", sorted(FOREIGN.glob("*.py")), ids=lambda path: path.stem)
def test_what_runs_in_foreign_interpreters_is_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))
