"""The shell's part in the live view: which settings count, and what is left of a run's rings."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.fastlane import settings
from mosaic.contract import ring
from mosaic.contract.errors import ConfigError
from mosaic.contract.frames import FastLaneReader, FastLaneWriter
from mosaic.contract.paths import RunPaths

ON = {"GYM_GUI_FASTLANE_ENABLED": "1", "GYM_GUI_FASTLANE_VIDEO_MODE": "single"}


@pytest.mark.parametrize(
    ("extras", "inherited", "mode"),
    [
        ({}, {}, "single"),
        ({"video_mode": "grid"}, {}, "grid"),
        ({"fastlane_video_mode": "off"}, {"GYM_GUI_FASTLANE_ENABLED": "1"}, "off"),
        ({}, {"GYM_GUI_FASTLANE_VIDEO_MODE": "grid"}, "grid"),
        ({}, {"GYM_GUI_FASTLANE_ENABLED": "0"}, "off"),
        ({"fastlane_video_mode": "single"}, {"GYM_GUI_FASTLANE_ENABLED": "0"}, "single"),
    ],
)
def test_extras_beat_the_environment_and_the_environment_the_default(
    extras: dict[str, Any], inherited: dict[str, str], mode: str
) -> None:
    found = settings.fastlane_variables(extras, inherited)
    assert found["GYM_GUI_FASTLANE_VIDEO_MODE"] == mode
    assert settings.is_on(found) == (mode != "off")


@pytest.mark.parametrize(
    ("extras", "inherited", "words"),
    [
        ({"fastlane_video_mode": "grid", "video_mode": "off"}, {}, "give one"),
        ({}, {"GYM_GUI_FASTLANE_VIDEO_MODE": "gird"}, "did you mean 'grid'"),
        ({}, {"GYM_GUI_FASTLANE_ENABLED": "maybe"}, "0 or 1 is needed"),
        ({}, {"CLEANRL_FASTLANE_MAX_DIM": "8"}, "a number from 16 to 8192 is needed"),
        ({}, {"CLEANRL_FASTLANE_INTERVAL_MS": "often"}, "a number from 0 to 86400000 is needed"),
        ({}, {"CLEANRL_FASTLANE_INTERVAL_MS": "inf"}, "a number from 0"),
        ({}, {"CLEANRL_FASTLANE_MAX_DIM": "1e9"}, "a number from 16 to 8192 is needed"),
        ({"grid_limit": 100_000}, {}, "a number from 0 to 256 is needed"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(
    extras: dict[str, Any], inherited: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        settings.fastlane_variables(extras, inherited)
    assert "\n" not in str(refused.value)


def test_a_run_that_is_off_has_a_ring_that_says_so_as_long_as_it_runs(tmp_path: Path) -> None:
    paths = RunPaths("live-off", tmp_path)
    paths.create()
    with settings.keeping_clean(paths, {"GYM_GUI_FASTLANE_ENABLED": "0"}):
        with FastLaneReader.open(paths.fastlane) as reader:
            assert reader.status().reason == settings.OFF
    assert not list(Path("/dev/shm").glob(f"fl-{ring.run_digest('live-off')}-*"))


def test_the_ring_of_a_killed_algorithm_is_swept_up(tmp_path: Path) -> None:
    paths = RunPaths("live-killed", tmp_path)
    code = "import os; from mosaic.contract.ring import FastLaneWriter as W; W.create('live-killed'); os.abort()"
    with settings.keeping_clean(paths, ON):
        subprocess.run([sys.executable, "-c", code], check=False)
        assert list(Path("/dev/shm").glob(f"fl-{ring.run_digest('live-killed')}-*"))
    assert not list(Path("/dev/shm").glob(f"fl-{ring.run_digest('live-killed')}-*"))


def test_the_ring_of_a_killed_worker_is_removed_without_a_daemon(tmp_path: Path, until: Callable[..., None]) -> None:
    code = """if True:
        import os, sys
        from pathlib import Path
        from cleanrl_worker.fastlane import settings
        from mosaic.contract.paths import RunPaths
        from mosaic.contract.ring import FastLaneWriter
        with settings.keeping_clean(RunPaths("live-alone", Path(sys.argv[1])), {"GYM_GUI_FASTLANE_ENABLED": "1"}):
            FastLaneWriter.create("live-alone")
            os.abort()
    """
    rings = f"fl-{ring.run_digest('live-alone')}-*"
    made = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert made.returncode == -signal.SIGABRT and list(Path("/dev/shm").glob(rings))
    until(lambda: not list(Path("/dev/shm").glob(rings)), 60, "the removal of the ring")


def test_a_script_that_runs_on_unseen_is_told_of_once(tmp_path: Path) -> None:
    paths = RunPaths("silent-run", tmp_path)
    paths.create()
    said: list[str] = []
    settings.Silence(paths, said.append, seconds=0.0).poll()
    assert said == [], "without a ring there is nothing to tell"
    writer = FastLaneWriter.create(paths.run_id, paths.fastlane)
    try:
        writer.tell(reason="Blind-v0 has no rgb_array render mode")
        settings.Silence(paths, said.append, seconds=0.0).poll()
        assert said == [], "that one has said so itself"
        writer.tell(reason=settings.WAITING + "made with gymnasium.make yet")
        settings.Silence(paths, said.append, seconds=3600.0).poll()
        assert said == [], "it may still make one"
        silence = settings.Silence(paths, said.append, seconds=0.0)
        silence.poll()
        silence.poll()
        assert said == ["no live view: no environment has been made with gymnasium.make yet"]
        assert not writer.watched, "looking at the reason is no looking on"
    finally:
        writer.close()


def test_a_run_that_starts_sweeps_up_what_a_killed_shell_of_another_left(tmp_path: Path) -> None:
    code = "import os; from mosaic.contract.ring import FastLaneWriter as W; W.create('live-orphan'); os.abort()"
    subprocess.run([sys.executable, "-c", code], check=False)
    with settings.keeping_clean(RunPaths("live-next", tmp_path), ON):
        assert not list(Path("/dev/shm").glob(f"fl-{ring.run_digest('live-orphan')}-*"))
