"""The algorithm's process: stops, pauses, environment."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.plan.plan import Plan
from cleanrl_worker.supervise.process import AlgorithmProcess, child_environment
from mosaic.contract.errors import StorageError, WorkerError
from mosaic.contract.paths import RunPaths

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


def end_of(process: AlgorithmProcess, seconds: float = 90.0) -> int:
    until = time.monotonic() + seconds
    while (code := process.poll()) is None:
        assert time.monotonic() < until
        process.wait(0.1)
    return code


def ready(paths: RunPaths, until: Callable[..., None]) -> None:
    until((paths.folder / "ready").exists, 90, "the script")


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
        "child = subprocess.Popen(['sleep', '600'])\n"
        "def end(*_):\n    print('child', child.poll()); sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "pathlib.Path('ready').touch()\ntime.sleep(600)"
    )
    ready(paths, until)
    process.stop(90)
    assert end_of(process) == 75
    assert paths.stdout_log.read_text() == "child None\n"


def test_nothing_of_the_group_is_left_when_the_algorithm_ends(
    start: Start, paths: RunPaths, lives: Callable[[int], bool], until: Callable[..., None]
) -> None:
    process = start("print(subprocess.Popen(['sleep', '600']).pid)")
    assert end_of(process) == 0
    child = int(paths.stdout_log.read_text())
    until(lambda: not lives(child), 90, "the child's end")


STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\npathlib.Path('ready').touch()\ntime.sleep(600)"


def test_who_ignores_the_request_is_killed_after_the_grace_period(
    start: Start, paths: RunPaths, until: Callable[..., None]
) -> None:
    process = start(STUBBORN)
    ready(paths, until)
    began = time.monotonic()
    process.stop(0.6)
    assert end_of(process) == -signal.SIGKILL
    assert time.monotonic() - began > 0.5


def test_second_stop_kills_at_once(start: Start, paths: RunPaths, until: Callable[..., None]) -> None:
    process = start(STUBBORN)
    ready(paths, until)
    process.stop(600)
    process.stop(600)
    assert end_of(process) == -signal.SIGKILL


def test_pause_stops_the_group_and_leaves_the_missed_seconds_in_a_file(
    start: Start, paths: RunPaths, until: Callable[..., None]
) -> None:
    process = start(
        "def missed(*_):\n    print(pathlib.Path('logs/paused_seconds').read_text()); sys.exit(0)\n"
        "signal.signal(signal.SIGCONT, missed)\npathlib.Path('ready').touch()\ntime.sleep(600)"
    )
    ready(paths, until)
    assert process.pause() and not process.pause() and process.paused
    status = Path(f"/proc/{process.pid}/status")
    until(lambda: "State:\tT" in status.read_text(), 90, "the stop")
    time.sleep(0.3)
    assert process.go_on() and not process.go_on()
    assert end_of(process) == 0
    assert float(paths.stdout_log.read_text()) == pytest.approx(process.paused_seconds, abs=0.001)
    assert 0.3 <= process.paused_seconds < 90


def test_stop_reaches_a_paused_algorithm(start: Start, paths: RunPaths, until: Callable[..., None]) -> None:
    process = start(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\npathlib.Path('ready').touch()\ntime.sleep(600)"
    )
    ready(paths, until)
    process.pause()
    process.stop(90)
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
        "OMP_WAIT_POLICY": "passive",
        "JAX_COMPILATION_CACHE_DIR": str(paths.home / "var" / "cache" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        "CLEANRL_AGENT_ID": "a1",
        "CLEANRL_NUM_ENVS": "8",
        "GYM_GUI_FASTLANE_ENABLED": "1",
        "GYM_GUI_FASTLANE_VIDEO_MODE": "grid",
        "GYM_GUI_FASTLANE_GRID_LIMIT": "0",
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "2"),
    }


def test_all_cores_are_for_xla_where_numpy_only_acts(paths: RunPaths) -> None:
    in_jax, in_torch = (
        Plan(f"cleanrl_worker.algorithms.{name}", None, "main", True, sys.executable, (), 0, ())
        for name in ("dqn_jax", "dqn_atari")
    )
    assert child_environment({}, in_jax, paths, {})["OPENBLAS_NUM_THREADS"] == "1"
    assert child_environment({}, in_jax, paths, {"OPENBLAS_NUM_THREADS": "3"})["OPENBLAS_NUM_THREADS"] == "3"
    assert "OPENBLAS_NUM_THREADS" not in child_environment({}, in_torch, paths, {})


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="EGL is Linux's")
def test_headless_mujoco_draws_through_egl(paths: RunPaths) -> None:
    plan = plan_of(Path("x.py"))
    assert child_environment({}, plan, paths, {})["MUJOCO_GL"] == "egl"
    assert "MUJOCO_GL" not in child_environment({}, plan, paths, {"DISPLAY": ":0"})
    assert child_environment({}, plan, paths, {"OMP_WAIT_POLICY": "active"})["OMP_WAIT_POLICY"] == "active"
    off = child_environment({"fastlane_video_mode": "off"}, plan, paths, {})
    assert off["GYM_GUI_FASTLANE_ENABLED"] == "0" and "OMP_NUM_THREADS" not in off
