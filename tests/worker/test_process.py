"""The algorithm's process: stops, pauses, memory, environment, and what its end means."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cleanrl_worker.command import Plan
from cleanrl_worker.process import AlgorithmProcess, Vitals, child_environment, describe_end, signal_name
from mosaic.wire.errors import StorageError, WorkerError
from mosaic.wire.paths import RunPaths

Start = Callable[..., AlgorithmProcess]


def plan_of(script: Path, *argv: str, interpreter: str = sys.executable, num_threads: int = 0) -> Plan:
    return Plan(None, script, "__main__", False, interpreter, argv, num_threads, ())


@pytest.fixture
def paths(home: Path) -> RunPaths:
    paths = RunPaths("run-1", home)
    paths.create()
    return paths


@pytest.fixture
def start(paths: RunPaths, tmp_path: Path) -> Iterator[Start]:
    """Starts a script with this text in the run folder."""
    started: list[AlgorithmProcess] = []

    def start(text: str, **environment: str) -> AlgorithmProcess:
        script = tmp_path / "script.py"
        script.write_text(f"import os, pathlib, signal, subprocess, sys, time\n{text}\n")
        started.append(AlgorithmProcess(plan_of(script, "--x=1"), paths, {**os.environ, **environment}))
        return started[-1]

    yield start
    for process in started:
        process.close()


def end_of(process: AlgorithmProcess, seconds: float = 15.0) -> int:
    until = time.monotonic() + seconds
    while (code := process.poll()) is None:
        assert time.monotonic() < until
        process.wait(0.1)
    return code


def ready(paths: RunPaths, until: Callable[..., None]) -> None:
    until((paths.folder / "ready").exists, 15, "the script")


def test_output_goes_to_the_logs_and_a_second_process_appends(start: Start, paths: RunPaths) -> None:
    for number in (1, 2):
        process = start(f"print('out', {number}, sys.argv[1:], os.getcwd()); print('err {number}', file=sys.stderr)")
        assert end_of(process) == 0
        assert process.last_lines() == [f"err {number}"]
    expected = [f"out {number} ['--x=1'] {paths.folder}" for number in (1, 2)]
    assert paths.stdout_log.read_text().splitlines() == expected
    assert paths.stderr_log.read_text() == "err 1\nerr 2\n"


def test_last_lines_are_the_last_twenty(start: Start) -> None:
    process = start("sys.stderr.write('x' * 100_000 + '\\n' + ''.join(f'line {n}\\n' for n in range(30)))")
    end_of(process)
    assert process.last_lines() == [f"line {n}" for n in range(10, 30)]


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGSEGV)", -11)])
def test_exit_code_or_signal_is_reported(start: Start, ending: str, code: int) -> None:
    assert end_of(start(ending)) == code


def test_stop_asks_the_algorithm_but_not_its_children(
    start: Start, paths: RunPaths, until: Callable[..., None]
) -> None:
    process = start(
        "child = subprocess.Popen(['sleep', '60'])\n"
        "def end(*_):\n    print('child', child.poll()); sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "pathlib.Path('ready').touch()\ntime.sleep(60)"
    )
    ready(paths, until)
    process.stop(10)
    assert end_of(process) == 75
    assert paths.stdout_log.read_text() == "child None\n"


def test_nothing_of_the_group_is_left_when_the_algorithm_ends(
    start: Start, paths: RunPaths, lives: Callable[[int], bool], until: Callable[..., None]
) -> None:
    process = start("print(subprocess.Popen(['sleep', '60']).pid)")
    assert end_of(process) == 0
    child = int(paths.stdout_log.read_text())
    until(lambda: not lives(child), 5, "the child's end")


STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\npathlib.Path('ready').touch()\ntime.sleep(60)"


def test_who_ignores_the_request_is_killed_after_the_grace_period(
    start: Start, paths: RunPaths, until: Callable[..., None]
) -> None:
    process = start(STUBBORN)
    ready(paths, until)
    began = time.monotonic()
    process.stop(0.6)
    assert end_of(process) == -signal.SIGKILL
    assert 0.5 < time.monotonic() - began < 5


def test_second_stop_kills_at_once(start: Start, paths: RunPaths, until: Callable[..., None]) -> None:
    process = start(STUBBORN)
    ready(paths, until)
    process.stop(60)
    process.stop(60)
    assert end_of(process, 5) == -signal.SIGKILL


def test_pause_stops_the_group_and_leaves_the_missed_seconds_in_a_file(
    start: Start, paths: RunPaths, until: Callable[..., None]
) -> None:
    process = start(
        "def missed(*_):\n    print(pathlib.Path('logs/paused_seconds').read_text()); sys.exit(0)\n"
        "signal.signal(signal.SIGCONT, missed)\npathlib.Path('ready').touch()\ntime.sleep(60)"
    )
    ready(paths, until)
    assert process.pause() and not process.pause() and process.paused
    status = Path(f"/proc/{process.pid}/status")
    until(lambda: "State:\tT" in status.read_text(), 5, "the stop")
    time.sleep(0.3)
    assert process.go_on() and not process.go_on()
    assert end_of(process) == 0
    assert float(paths.stdout_log.read_text()) == pytest.approx(process.paused_seconds, abs=0.001)
    assert 0.3 <= process.paused_seconds < 5


def test_stop_reaches_a_paused_algorithm(start: Start, paths: RunPaths, until: Callable[..., None]) -> None:
    process = start(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\npathlib.Path('ready').touch()\ntime.sleep(60)"
    )
    ready(paths, until)
    process.pause()
    process.stop(10)
    assert end_of(process) == 9
    assert not process.pause()


def test_interpreter_that_is_none_is_named(paths: RunPaths, tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"cannot start /no/python: No such file"):
        AlgorithmProcess(plan_of(tmp_path / "x.py", interpreter="/no/python"), paths, {})


def test_log_that_cannot_be_opened_is_a_storage_error(paths: RunPaths, tmp_path: Path) -> None:
    paths.stderr_log.mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*stderr\.log: Is a directory"):
        AlgorithmProcess(plan_of(tmp_path / "x.py"), paths, {})


def test_no_descriptor_is_left_open(paths: RunPaths, start: Start) -> None:
    before = len(os.listdir("/proc/self/fd"))
    end_of(start("pass"))
    with pytest.raises(WorkerError):
        AlgorithmProcess(plan_of(Path("x.py"), interpreter="/no/python"), paths, {})
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_counts_children_and_asks_no_gpu_that_is_not_there(
    start: Start, paths: RunPaths, until: Callable[..., None]
) -> None:
    eat = "'import time; x = bytearray(80_000_000); print(1, flush=True); time.sleep(60)'"
    process = start(
        f"child = subprocess.Popen([sys.executable, '-c', {eat}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\npathlib.Path('ready').touch()\ntime.sleep(60)"
    )
    ready(paths, until)
    measured = Vitals().measure(process.pid)
    assert measured["rss_mb"] is not None and 85 < measured["rss_mb"] < 200
    assert measured["gpu_memory_mb"] is None
    process.close()
    assert Vitals().measure(process.pid) == {"rss_mb": None, "gpu_memory_mb": None}


def test_gpu_memory_is_that_of_the_processes_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the driver's library: not every machine has a GPU."""
    entries = [
        SimpleNamespace(pid=os.getpid(), usedGpuMemory=3 * 2**20),
        SimpleNamespace(pid=os.getpid(), usedGpuMemory=None),
        SimpleNamespace(pid=1, usedGpuMemory=2**30),
    ]
    driver = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetComputeRunningProcesses=lambda gpu: entries,
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert Vitals().measure(os.getpid())["gpu_memory_mb"] == 6.0

    def broken(*_: object) -> None:
        raise RuntimeError("Driver Not Loaded")

    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlInit"):
        monkeypatch.setattr(driver, name, broken)
        assert Vitals().measure(os.getpid())["gpu_memory_mb"] is None


def test_environment_of_the_algorithm(paths: RunPaths) -> None:
    extras: dict[str, Any] = {"agent_id": "a1", "algo_params": {"num_envs": 8}, "video_mode": "grid", "grid_limit": 0}
    found = child_environment(
        extras, plan_of(Path("x.py"), num_threads=2), paths, {"PATH": "/bin", "MUJOCO_GL": "osmesa"}
    )
    assert found == {
        "PATH": "/bin",
        "MUJOCO_GL": "osmesa",
        "MOSAIC_HOME": str(paths.home),
        "MOSAIC_RUN_ID": "run-1",
        "MOSAIC_SHELL_PID": str(os.getpid()),
        "PYTHONUNBUFFERED": "1",
        "SDL_NO_SIGNAL_HANDLERS": "1",
        "CLEANRL_AGENT_ID": "a1",
        "CLEANRL_NUM_ENVS": "8",
        "GYM_GUI_FASTLANE_ENABLED": "1",
        "GYM_GUI_FASTLANE_VIDEO_MODE": "grid",
        "GYM_GUI_FASTLANE_GRID_LIMIT": "0",
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "2"),
    }


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="EGL is Linux's")
def test_headless_mujoco_draws_through_egl(paths: RunPaths) -> None:
    plan = plan_of(Path("x.py"))
    assert child_environment({}, plan, paths, {})["MUJOCO_GL"] == "egl"
    assert "MUJOCO_GL" not in child_environment({}, plan, paths, {"DISPLAY": ":0"})
    off = child_environment({"fastlane_video_mode": "off"}, plan, paths, {})
    assert off["GYM_GUI_FASTLANE_ENABLED"] == "0" and "OMP_NUM_THREADS" not in off


@pytest.mark.parametrize(
    ("code", "line", "advice"),
    [
        (1, "OSError: [Errno 28] No space left on device", "disk is full"),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "GPU's memory"),
        (1, "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 26.9 GiB", "machine's memory"),
        (-9, "", "machine's memory"),
        (1, "ModuleNotFoundError: No module named 'envpool.registration'", "'envpool.registration'"),
        (1, "mujoco.FatalError: an OpenGL platform library has not been loaded", "MUJOCO_GL=egl"),
        (1, "ImportError: Cannot initialize a EGL device display", "MUJOCO_GL=egl"),
        (1, "Exception: ROM is missing for pong, see the documentation", "Atari ROMs"),
        (-7, "", "/dev/shm"),
        (
            1,
            "ValueError: Expected parameter logits ... but found invalid values:\ntensor([[nan",
            "NaN",
        ),
        (1, "gymnasium.error.NameNotFound: Environment `Foo` doesn't exist.", "env_id"),
        (1, "TypeError: Tiny.__init__() got an unexpected keyword argument 'render_mode'", "capture_video=false"),
        (
            1,
            "UserWarning: render_mode='rgb_array' that is not in the possible render_modes ([])",
            "capture_video=false",
        ),
        (1, "OSError: [Errno 24] Too many open files", "ulimit"),
        (-11, "", "native code"),
        (75, "", "started again"),
    ],
)
def test_known_causes_come_with_advice(tmp_path: Path, code: int, line: str, advice: str) -> None:
    described = describe_end(code, line.splitlines(), tmp_path)
    assert advice in (described["hint"] or ""), described


def test_unknown_cause_comes_without_advice(tmp_path: Path) -> None:
    lines = ["Traceback:", "ValueError: FROM here on, illegal"]
    assert describe_end(4, lines, tmp_path) == {"exit_code": 4, "signal": None, "stderr_tail": lines, "hint": None}
    assert describe_end(-15, [], tmp_path) == {"exit_code": None, "signal": "SIGTERM", "stderr_tail": [], "hint": None}


def test_signals_have_names() -> None:
    assert [signal_name(code) for code in (0, 3, -9, -15, -64, -200)][:4] == [None, None, "SIGKILL", "SIGTERM"]
    assert signal_name(-200) == "signal 200"
