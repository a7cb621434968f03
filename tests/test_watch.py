"""`mosaic watch` and `mosaic snapshot`: which run is meant, what a terminal gets, what a file holds."""

import fcntl
import io
import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mosaic import cli, watch
from mosaic.contract.errors import ConfigError, WorkerError
from mosaic.contract.frames import FastLaneWriter, sweep
from mosaic.contract.paths import RunPaths


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three runs; the first was started last."""
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    names = ["01AAA", "01AAB", "02BBB"]
    for age, name in enumerate(names):
        paths = RunPaths(name)
        paths.create()
        paths.fastlane.write_text('{"name": "fl-0000000000-1-1"}')
        os.utime(paths.fastlane, (1e9 - age, 1e9 - age))
    return names


class Shown:
    """A run that shows grey pictures, one a moment, each brighter."""

    def __init__(self, run_id: str, record: Path | None = None, rolling_return: float = 20) -> None:
        self.writer = FastLaneWriter.create(run_id, record or RunPaths(run_id).fastlane)
        self._return = rolling_return
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._show)
        self._thread.start()

    def _show(self) -> None:
        value = 0
        while not self._stop.wait(0.02):
            value += 1
            if self.writer.watched:
                self.writer.publish(
                    bytes([value % 250]) * 4 * 6 * 3, 6, 4, last_reward=1.5, rolling_return=self._return, step=value
                )

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self.writer.close()


@pytest.fixture
def shown(runs: list[str]) -> Iterator[Shown]:
    run = Shown("01AAB")
    yield run
    if run._thread.is_alive():
        run.end()


def test_a_run_is_found_by_its_id_its_beginning_or_as_the_latest(runs: list[str]) -> None:
    assert watch.find_run("01AAB").run_id == "01AAB"
    assert watch.find_run("02").run_id == watch.find_run("02b").run_id == "02BBB"
    assert watch.find_run("latest").run_id == "01AAA"
    with pytest.raises(ConfigError, match=r"2 runs begin with '01' \(01AAA, 01AAB\)"):
        watch.find_run("01")
    with pytest.raises(ConfigError, match=r"no run begins with 'zz'.*latest"):
        watch.find_run("zz")


def test_without_runs_it_says_how_to_start_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="mosaic train"):
        watch.find_run("latest")


def test_a_snapshot_is_a_png_of_a_frame_drawn_after_it_was_asked_for(
    shown: Shown, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    target = tmp_path / "out.png"
    assert cli.main(["snapshot", "01AAB", str(target)]) == 0
    picture = np.asarray(Image.open(target))
    assert picture.shape == (4, 6, 3) and picture[0, 0, 0] > 0
    assert "6×4, reward 1.50   return 20.0" in capsys.readouterr().out


def test_a_snapshot_says_why_there_is_none(runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["snapshot", "02BBB", str(tmp_path / "out.png")]) == 1
    assert "02BBB cannot be watched" in capsys.readouterr().err
    assert cli.main(["snapshot", "02BBB", str(tmp_path / "out.jpg")]) == 2
    assert "ends in .png" in capsys.readouterr().err
    writer = FastLaneWriter.create("02BBB", RunPaths("02BBB").fastlane)
    writer.tell(reason="no paint")
    with pytest.raises(WorkerError, match="no picture of 02BBB: no paint"):
        watch.snapshot("02BBB", tmp_path / "out.png", seconds=0.2)
    writer.close()
    assert not (tmp_path / "out.png").exists()


def test_watching_needs_a_terminal(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["watch", "latest"]) == 2
    assert "mosaic snapshot 01AAA out.png" in capsys.readouterr().err


def test_a_terminal_shows_the_picture_and_its_numbers_until_the_run_ends(shown: Shown) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "60", "LINES": "20", "TERM": "xterm"}
    command = [sys.executable, "-m", "mosaic.cli", "watch", "01AAB"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    deadline = time.monotonic() + 60
    while b"return 20.0" not in seen:
        assert time.monotonic() < deadline, seen[-500:]
        seen += os.read(ours, 65536)
    assert "▀".encode() in seen and b"\x1b[38;2;" in seen
    shown.end()
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not part:
            break
        seen += part
    assert process.wait(60) == 0
    assert b"\x1b[?1049l" in seen and b"Run 01AAB has ended." in seen, "the person's own screen is back"
    os.close(ours)


def test_a_view_goes_on_into_the_runs_next_start(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "20")
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    again: list[Shown] = []
    view = threading.Thread(target=watch.watch, args=("01AAB", screen, lambda: len(again) < 2), daemon=True)

    def until(text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in screen.getvalue():
            assert time.monotonic() < deadline, screen.getvalue()[-500:]
            time.sleep(0.02)

    view.start()
    until("return 20.0")
    shown.end()
    until("This start of the run has ended")
    # another process's ring has another name; this process may have only one of each run's
    again.append(Shown("01AAB-again", RunPaths("01AAB").fastlane, rolling_return=33))
    until("return 33.0")
    again.append(again[0])
    again[0].end()
    view.join(60)
    assert not view.is_alive() and "Run 01AAB has ended." in screen.getvalue()


def test_the_view_goes_on_from_a_scripts_phase_to_its_next(shown: Shown) -> None:
    paths = RunPaths("01AAB")
    paths.phases.touch()
    script = os.open(paths.lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(script, fcntl.LOCK_SH)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "60", "LINES": "20", "TERM": "xterm"}
    command = [sys.executable, "-m", "mosaic.cli", "watch", "01AAB"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    _read_until(ours, b"return 20.0")
    shown.end()
    # A phase is a process of its own, and so is its ring.
    code = (
        "import os, sys, time; from mosaic.contract.frames import FastLaneWriter\n"
        "from mosaic.contract.paths import RunPaths\n"
        "writer = FastLaneWriter.create('01AAB', RunPaths('01AAB').fastlane)\n"
        "while os.getppid() == int(sys.argv[1]):\n"
        "    time.sleep(0.02)\n"
        "    writer.publish(bytes(72), 6, 4, last_reward=1.5, rolling_return=33, step=7)\n"
    )
    phase = subprocess.Popen([sys.executable, "-c", code, str(os.getpid())], env=environment)
    _read_until(ours, b"return 33.0")
    os.close(script)
    phase.kill()
    phase.wait(60)
    _read_until(ours, b"Run 01AAB has ended.")
    assert process.wait(60) == 0
    os.close(ours)
    sweep("01AAB")


def _read_until(terminal: int, text: bytes) -> None:
    seen, deadline = b"", time.monotonic() + 90
    while text not in seen:
        assert time.monotonic() < deadline, seen[-500:]
        if select.select([terminal], [], [], 1.0)[0]:
            seen += os.read(terminal, 65536)


def test_thin_lines_survive_shrinking() -> None:
    picture = np.zeros((40, 40, 3), np.uint8)
    picture[:, 7] = 255
    small = watch.shrunk(picture, 10, 10)
    assert small.shape == (10, 10, 3) and (small[:, 1] == 63).all() and (small[:, 0] == 0).all()
    assert (watch.shrunk(picture, 80, 80)[:, 14] == 255).all(), "it grows, too"


def test_a_cell_is_two_pixels_one_above_the_other() -> None:
    picture = np.zeros((2, 1, 3), np.uint8)
    picture[0, 0], picture[1, 0] = (1, 2, 3), (4, 5, 6)
    assert watch.half_blocks(picture, 1, 1) == ["\x1b[38;2;1;2;3;48;2;4;5;6m▀"]


def test_why_no_frame_comes_is_said_beneath(runs: list[str]) -> None:
    writer = FastLaneWriter.create("02BBB", RunPaths("02BBB").fastlane)
    writer.tell(reason="no paint")
    screen = io.StringIO()
    with watch.FastLaneReader.attach(writer.name) as reader:
        watch.TerminalPicture(screen).show(None, reader.status())
    writer.close()
    assert "No picture: no paint" in screen.getvalue()


def test_a_stalled_run_is_marked_beneath_its_picture(runs: list[str]) -> None:
    writer = FastLaneWriter.create("02BBB", RunPaths("02BBB").fastlane)
    screen = io.StringIO()
    with watch.FastLaneReader.attach(writer.name) as reader:
        canvas = watch.TerminalPicture(screen)
        canvas.mark = "STALLED 1:15"
        canvas.show(None, reader.status())
    writer.close()
    assert "STALLED 1:15" in screen.getvalue()


def test_a_picture_is_drawn_once_and_again_when_the_terminal_changes(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, int]] = []
    half_blocks = watch.half_blocks

    def counted(picture: np.ndarray, columns: int, rows: int) -> list[str]:
        drawn.append((columns, rows))
        return half_blocks(picture, columns, rows)

    monkeypatch.setattr(watch, "half_blocks", counted)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "10")
    canvas = watch.TerminalPicture(io.StringIO())
    with watch.FastLaneReader.attach(shown.writer.name) as reader:
        deadline = time.monotonic() + 60
        while (frame := reader.latest_frame()) is None:
            assert time.monotonic() < deadline
        canvas.show(frame, reader.status())
        canvas.show(None, reader.status())
        monkeypatch.setenv("COLUMNS", "50")
        canvas.show(None, reader.status())
    assert drawn == [(40, 7), (50, 7)]


def test_a_run_that_has_just_been_accepted_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    RunPaths("03CCC").create()
    started: list[Shown] = []
    later = threading.Timer(0.5, lambda: started.append(Shown("03CCC")))
    later.start()
    try:
        assert "reward 1.50" in watch.snapshot("03CCC", tmp_path / "out.png", seconds=60)
    finally:
        later.join()
        started[0].end()


def test_a_run_that_ended_without_a_ring_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    paths = RunPaths("03CCC")
    paths.create()
    paths.analytics.write_text("{}")
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: pytest.fail("it waits"))
    with pytest.raises(WorkerError, match="03CCC cannot be watched"):
        watch.snapshot("03CCC", tmp_path / "out.png")
