"""Whole runs: real shells, real algorithm processes, tiny sizes."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cleanrl_worker.config.config import parse_worker_config
from cleanrl_worker.foreign.where import LAUNCHER
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.runtime import CleanRLWorkerRuntime, RuntimeSummary
from mosaic.contract.errors import ConfigError
from mosaic.contract.events import decode
from mosaic.contract.stopping import TOGETHER_SECONDS
from mosaic.contract.tensorboard import ScalarReader

StartRun = Callable[..., Any]
Until = Callable[..., None]
Lives = Callable[[int], bool]

LEARN = """
print("learning")
for step in (10, 20, 30):
    episode(step, step / 10)
row(30, charts__SPS=123, losses__value=0.5)
"""
WHOSE = {"algo", "env_id", "agent_id", "worker_id"}


def config_of(tmp_path: Path, **fields: Any) -> Any:
    flat = {"run_id": "run-1", "algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100, "seed": 1, **fields}
    return parse_worker_config(flat)


def stderr_of(run: Any) -> str:
    text = run.process.stderr.read().decode()
    assert isinstance(text, str)
    return text


# What a run says and leaves behind


def test_completed_run_tells_its_story(start_run: StartRun) -> None:
    run = start_run(LEARN, {"agent_id": "a1"}, stdout=subprocess.PIPE)
    stdout = run.process.communicate(timeout=120)[0]
    assert run.process.returncode == 0
    events = run.events()
    assert [event.event for event in events] == ["run_started", *["episode"] * 3, "metrics", "run_completed"]
    assert [event.seq for event in run.log()] == list(range(7))
    assert stdout == run.paths.events.read_bytes()
    started, completed = events[0].payload, events[-1].payload
    assert started.keys() >= WHOSE | {"seed", "mode", "config_digest", "pid"}
    assert (started["agent_id"], started["worker_id"], started["mode"]) == ("a1", "cleanrl-worker-run-1", "train")
    assert started["pid"] == run.process.pid and re.fullmatch("[0-9a-f]{64}", started["config_digest"])
    assert completed.keys() == WHOSE | {"manifest"}
    assert completed["manifest"] == json.loads(run.paths.analytics.read_bytes())
    summary = completed["manifest"]["summary"]
    assert (summary["final_return"], summary["best_return"], summary["steps"], summary["sps"]) == (2.0, None, 30, 123)
    assert events[1].payload == {"step": 10, "return": 1.0, "length": 10}
    assert events[4].payload == {"step": 30, "charts/SPS": 123, "losses/value": 0.5}
    assert run.paths.stdout_log.read_text() == "learning\n"


def test_digest_tells_configs_apart_but_not_their_secrets(start_run: StartRun) -> None:
    digests = []
    for number, extras in enumerate(
        ({"notes": "x", "hub_token": "t1"}, {"notes": "x", "hub_token": "t2"}, {"notes": "y"})
    ):
        run = start_run("pass", extras, run_id="same")
        run.wait()
        digests.append(run.events("run_started")[number].payload["config_digest"])
    assert digests[0] == digests[1] != digests[2]
    assert b"t1" not in run.paths.events.read_bytes()


def test_algorithm_knows_where_it_is(start_run: StartRun) -> None:
    run = start_run(
        "print(json.dumps([os.getcwd(), os.environ['MOSAIC_RUN_ID'], os.environ['MOSAIC_HOME'], "
        "os.environ['MOSAIC_SHELL_PID'] == str(os.getppid()), os.environ['SDL_NO_SIGNAL_HANDLERS'], sys.argv[1:]]))"
    )
    assert run.wait() == 0, stderr_of(run)
    flags = ["--env-id=CartPole-v1", "--total-timesteps=100", "--seed=1"]
    expected = [str(run.paths.folder), "run-1", str(run.paths.home), True, "1", flags]
    assert json.loads(run.paths.stdout_log.read_text()) == expected


def test_failing_run_gives_code_lines_and_advice(start_run: StartRun) -> None:
    run = start_run("episode(5, 1.0)\nfor n in range(30): print('line', n, file=sys.stderr)\nimport no_such_package")
    assert run.wait() == 1
    failed = run.events()[-1]
    assert failed.event == "run_failed" and failed.payload.keys() >= WHOSE
    assert (failed.payload["exit_code"], failed.payload["signal"], failed.payload["step"]) == (1, None, 5)
    assert len(failed.payload["stderr_tail"]) == 20
    assert failed.payload["stderr_tail"][-1] == "ModuleNotFoundError: No module named 'no_such_package'"
    assert "install the missing package 'no_such_package'" in failed.payload["hint"]
    assert json.loads(run.paths.analytics.read_bytes())["summary"]["steps"] == 5


@pytest.mark.parametrize(
    ("ending", "code", "named"),
    [
        ("sys.exit(42)", 42, None),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "SIGKILL"),
        ("os.abort()", 134, "SIGABRT"),
    ],
)
def test_exit_code_is_the_algorithms_own(start_run: StartRun, ending: str, code: int, named: str | None) -> None:
    run = start_run(ending)
    assert run.wait() == code
    payload = run.events("run_failed")[0].payload
    assert (payload["exit_code"], payload["signal"]) == (None if named else code, named)


def test_heartbeats_and_the_manifest_come_during_the_run(start_run: StartRun, until: Until) -> None:
    run = start_run("forever()", heartbeat_seconds=0.3)
    until(lambda: len([e for e in run.events("heartbeat") if e.payload["step"]]) >= 2, 90, "heartbeats with steps")
    beat = run.events("heartbeat")[-1].payload
    assert beat.keys() == WHOSE | {"step", "sps", "last_return", "rss_mb", "gpu_memory_mb", "paused"}
    assert beat["step"] > 0 and beat["sps"] > 0 and beat["last_return"] == beat["step"]
    assert 5 < beat["rss_mb"] < 100 and beat["paused"] is False
    assert json.loads(run.paths.analytics.read_bytes())["summary"]["steps"] > 0


@pytest.mark.parametrize("extras", [{"telemetry": "off"}, {"fastlane_only": True}])
def test_telemetry_can_be_turned_off(start_run: StartRun, extras: dict[str, Any]) -> None:
    run = start_run(LEARN, extras)
    assert run.wait() == 0
    assert [event.event for event in run.events()] == ["run_started", "run_completed"]
    assert run.events()[-1].payload["manifest"]["summary"]["final_return"] == 2.0


def test_second_run_under_an_id_appends(start_run: StartRun) -> None:
    extras = {"tensorboard_dir": "tensorboard"}
    first = start_run(LEARN, extras)
    assert first.wait() == 0
    with first.paths.metrics.open("ab") as file:
        file.write(b'{"step": 99, "ti')  # as a killed algorithm leaves it
    second = start_run("episode(40, 7.0)", extras)
    assert second.wait() == 0, stderr_of(second)
    events = second.events()
    assert [event.seq for event in second.log()] == list(range(11))
    assert [event.event for event in events[6:]] == ["run_started", "episode", "run_completed"]
    assert [row["step"] for row in second.rows()] == [10, 20, 30, 30, 40]
    files = sorted(second.paths.tensorboard.iterdir())
    steps = [[step for _, step, _, _ in ScalarReader(file).read()] for file in files]
    assert steps == [[10, 10, 20, 20, 30, 30, 30, 30], [40, 40]]
    assert events[-1].payload["manifest"]["artifacts"]["tensorboard"] == {
        "enabled": True,
        "relative_path": "tensorboard",
    }


def test_run_that_is_still_alive_takes_no_second_shell(start_run: StartRun, tmp_path: Path) -> None:
    run = start_run("forever()")
    run.first("episode")
    before = set(run.paths.home.rglob("*"))
    with pytest.raises(ConfigError, match=rf"run run-1 is still alive \(pid {run.process.pid}\)"):
        CleanRLWorkerRuntime(config_of(tmp_path)).run()
    assert set(run.paths.home.rglob("*")) == before
    assert [event.event for event in run.events()].count("run_started") == 1
    run.process.kill()
    run.wait()
    assert start_run("pass").wait() == 0


def test_variable_asks_for_tensorboard(start_run: StartRun) -> None:
    run = start_run(LEARN, environment={"TRACK_TENSORBOARD": "1"})
    assert run.wait() == 0
    assert len(list(run.paths.tensorboard.iterdir())) == 1


def test_interpreter_that_cannot_be_started_is_refused_in_one_line_before_the_run(
    start_run: StartRun, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_bytes(b"\x7fELF no program")
    python.chmod(0o755)
    (tmp_path / "plain.py").write_text("print('hello')\n")
    run = start_run(extras={"python": str(python)}, algo=str(tmp_path / "plain.py"))
    assert run.wait() == 1
    (line,) = stderr_of(run).splitlines()
    assert line == f"extras.python: {python} does not answer as a Python interpreter (Exec format error)"
    assert not run.paths.folder.exists()


def test_secrets_that_an_algorithm_prints_stay_out_of_the_events(start_run: StartRun) -> None:
    run = start_run("sys.exit('the token is ' + os.environ['HF_TOKEN'])", environment={"HF_TOKEN": "hush-hush-hush"})
    assert run.wait() == 1
    assert run.events("run_failed")[0].payload["stderr_tail"] == ["the token is ***"]


# Stops and deaths

GENTLE = """
def end(*_):
    episode(999, 1.0)
    sys.exit(75)
signal.signal(signal.SIGTERM, end)
forever()
"""
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nforever()"


def test_sigterm_lets_the_algorithm_save_and_passes_its_code_on(start_run: StartRun) -> None:
    run = start_run(GENTLE)
    run.first("episode")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 75
    payload = run.events()[-1].payload
    assert (payload["exit_code"], payload["stopped_by"], payload["step"]) == (75, "SIGTERM", 999)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_algorithm_that_just_dies_gives_the_code_of_the_signal(
    start_run: StartRun, number: signal.Signals, code: int
) -> None:
    run = start_run("forever()")
    run.first("episode")
    run.process.send_signal(number)
    assert run.wait() == code
    payload = run.events("run_failed")[0].payload
    assert (payload["signal"], payload["stopped_by"], payload["hint"]) == (number.name, number.name, None)


def stuck_in_its_imports(start_run: StartRun, folder: Path, until: Until, **options: Any) -> Any:
    """A real ppo whose `import torch` never ends."""
    (folder / "torch.py").write_text(
        f"import pathlib, time\npathlib.Path({str(folder)!r}, 'here').touch()\ntime.sleep(600)"
    )
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    registry = {"ppo": DEFAULT_ALGO_REGISTRY["ppo"]}
    run = start_run(None, algo="ppo", algo_registry=registry, environment={"PYTHONPATH": path}, **options)
    until(lambda: (folder / "here").exists(), 120, "the import of torch")
    return run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_training_that_is_stopped_while_it_starts_asks_to_be_started_again(
    start_run: StartRun, tmp_path: Path, until: Until, number: signal.Signals
) -> None:
    run = stuck_in_its_imports(start_run, tmp_path, until)
    run.process.send_signal(number)
    assert run.wait(120) == 75
    payload = run.events("run_failed")[0].payload
    assert (payload["exit_code"], payload["signal"], payload["stopped_by"]) == (75, None, number.name)
    assert "nothing new to save: start it again" in payload["hint"]


def test_a_whole_group_that_is_told_to_stop_at_the_start_asks_to_be_started_again(
    start_run: StartRun, tmp_path: Path, until: Until
) -> None:
    run = stuck_in_its_imports(start_run, tmp_path, until)
    os.kill(run.algorithm_pid, signal.SIGTERM)  # as a cluster does, to every process of a job
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(120) == 75


def test_grace_period_comes_from_the_extras(start_run: StartRun) -> None:
    run = start_run(STUBBORN, {"grace_seconds": 0.5}, grace_seconds=None)
    run.first("episode")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(60) == 137
    assert run.events("run_failed")[0].payload["signal"] == "SIGKILL"


def tell_until_it_ends(run: Any, number: signal.Signals, lives: Lives) -> None:
    """However late a busy machine let it hear the first signal: one of these comes more than a moment after that."""
    end = time.monotonic() + 60
    while lives(run.algorithm_pid):
        assert time.monotonic() < end
        run.process.send_signal(number)
        time.sleep(1.0)  # one more would end a shell that has let go of its handlers


def test_second_signal_ends_at_once(start_run: StartRun, lives: Lives) -> None:
    run = start_run(STUBBORN, grace_seconds=600)
    run.first("episode")
    for _ in range(3):  # from a terminal, and from a parent that passes it on
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    time.sleep(TOGETHER_SECONDS + 0.5)
    assert run.process.poll() is None
    tell_until_it_ends(run, signal.SIGINT, lives)
    assert run.wait() == 137
    assert not lives(run.algorithm_pid)


def test_a_training_whose_every_process_is_told_twice_at_once_saves_its_state(start_run: StartRun) -> None:
    """So do a cluster that ends a job, and systemd; each parent passes it on besides."""
    params = {"num_envs": 2, "vectorization": "async", "num_steps": 32, "num_minibatches": 1, "checkpoint_every": 0}
    registry = {"ppo": DEFAULT_ALGO_REGISTRY["ppo"]}
    run = start_run(None, {"algo_params": params}, algo="ppo", total_timesteps=10**9, algo_registry=registry)
    run.first("metrics", 120)
    everybody = [psutil.Process(run.process.pid), *psutil.Process(run.process.pid).children(recursive=True)]
    assert len(everybody) >= 4, "shell, algorithm and an environment each"
    for _ in range(2):
        for process in everybody:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
    assert run.wait(120) == 75
    assert run.events("checkpoint") and run.events("run_failed")[0].payload["stopped_by"] == "SIGTERM"


def test_second_signal_ends_a_real_training_that_waits_for_its_checkpoint(start_run: StartRun, lives: Lives) -> None:
    far = {"algo_params": {"checkpoint_every": 10**7}, "grace_seconds": 10**9}
    registry = {"ppo": DEFAULT_ALGO_REGISTRY["ppo"]}
    run = start_run(None, far, algo="ppo", total_timesteps=10**9, algo_registry=registry, grace_seconds=None)
    run.first("metrics", 120)
    run.process.send_signal(signal.SIGTERM)
    time.sleep(TOGETHER_SECONDS + 0.5)
    assert run.process.poll() is None and lives(run.algorithm_pid)
    tell_until_it_ends(run, signal.SIGTERM, lives)
    assert run.wait() == 137
    assert not lives(run.algorithm_pid)
    assert run.events()[-1].payload["stopped_by"] == "SIGTERM"


def test_nohup_is_respected(start_run: StartRun, tmp_path: Path) -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = start_run("episode(1, 1.0)\ntime.sleep(1.0)")
    finally:
        signal.signal(signal.SIGHUP, previous)
    run.first("episode")
    run.process.send_signal(signal.SIGHUP)
    assert run.wait() == 0


FAMILY = """
forked = os.fork()
if not forked:
    time.sleep(600)
    os._exit(0)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), forked, child.pid, flush=True)
forever()
"""


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_no_process_outlives_a_killed_shell(start_run: StartRun, until: Until, lives: Lives, paused: bool) -> None:
    run = start_run(FAMILY)
    run.first("episode")
    pids = [int(pid) for pid in run.paths.stdout_log.read_text().split()]
    assert len(pids) == 3 and all(lives(pid) for pid in pids)
    if paused:
        run.process.send_signal(signal.SIGUSR1)
        run.first("paused")
    run.process.kill()
    run.wait()
    until(lambda: not any(lives(pid) for pid in pids), 90, "the end of all")


def test_no_process_outlives_a_crashed_shell(start_run: StartRun, until: Until, lives: Lives) -> None:
    run = start_run(FAMILY)
    run.first("episode")
    pids = [int(pid) for pid in run.paths.stdout_log.read_text().split()]
    run.process.send_signal(signal.SIGSEGV)
    run.wait()
    until(lambda: not any(lives(pid) for pid in pids), 90, "the end of all")


@pytest.mark.parametrize("ending", ["sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_no_child_outlives_its_algorithm(start_run: StartRun, until: Until, lives: Lives, ending: str) -> None:
    run = start_run(FAMILY.replace("forever()", ending))
    run.wait()
    pids = [int(pid) for pid in run.paths.stdout_log.read_text().split()]
    until(lambda: not any(lives(pid) for pid in pids), 90, "the end of all")


def test_pause_and_continue(start_run: StartRun, until: Until) -> None:
    body = """
    missed = []
    def woken(*_):
        missed.append(float(open("logs/paused_seconds").read()))
        print(missed[-1], flush=True)
    signal.signal(signal.SIGCONT, woken)
    forever()
    """
    run = start_run(body, heartbeat_seconds=0.2)
    run.first("episode")
    asked = time.monotonic()
    run.process.send_signal(signal.SIGUSR1)
    step = run.first("paused").payload["step"]
    stood = time.monotonic()
    assert step > 0
    until(lambda: sum(event.payload["paused"] for event in run.events("heartbeat")) >= 3, 90, "heartbeats in the pause")
    rows = len(run.rows())
    time.sleep(1.0)
    assert len(run.rows()) == rows
    run.process.send_signal(signal.SIGUSR1)
    least = time.monotonic() - stood
    run.process.send_signal(signal.SIGUSR2)
    continued = run.first("continued").payload
    most = time.monotonic() - asked
    until(lambda: len(run.rows()) > rows + 2, 90, "more rows")
    assert len(run.events("paused")) == 1
    assert float(run.paths.stdout_log.read_text()) == continued["paused_seconds"]
    assert least - 0.01 <= continued["paused_seconds"] <= most + 0.01
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143
    total = run.events()[-1].timestamp - run.events("run_started")[0].timestamp
    summary = json.loads(run.paths.analytics.read_bytes())["summary"]
    # the clock starts a little before the event that tells of it, a busy machine's little included
    assert summary["seconds"] < total - 0.3 * continued["paused_seconds"], "the pause is no time of training"


def test_paused_run_can_be_stopped(start_run: StartRun) -> None:
    run = start_run(GENTLE)
    run.first("episode")
    run.process.send_signal(signal.SIGUSR1)
    run.first("paused")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(120) == 75


# Disks and readers


def test_unwritable_folder_is_one_clear_line(start_run: StartRun, home: Path) -> None:
    (home / "var").write_text("a file where a folder should be")
    run = start_run("pass", stdout=subprocess.PIPE)
    stdout, stderr = run.process.communicate(timeout=120)
    assert run.process.returncode == 1 and stdout == b""
    (line,) = stderr.decode().splitlines()
    assert line.startswith(f"cannot write {run.paths.var}: ")


@pytest.fixture
def small_disk(home: Path) -> Iterator[Path]:
    """A file system of 1 MB under the home's var/."""
    folder = home / "var"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_disk_that_is_full_from_the_start_is_one_clear_line(start_run: StartRun, small_disk: Path) -> None:
    with pytest.raises(OSError), (small_disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    run = start_run("forever()", stdout=subprocess.PIPE)
    _, stderr = run.process.communicate(timeout=120)
    assert run.process.returncode == 1
    (line,) = stderr.decode().splitlines()
    assert "No space left on device" in line


FILL = """
def fill():
    try:
        with open("ballast", "wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))
    except OSError:
        pass
"""


@pytest.mark.parametrize("notices", [True, False], ids=["algorithm-crashes", "algorithm-goes-on"])
def test_disk_that_fills_up_ends_the_run_with_one_clear_line(
    start_run: StartRun, small_disk: Path, lives: Lives, notices: bool
) -> None:
    goes_on = "time.sleep(60)" if not notices else "forever()"
    body = FILL + "episode(1, 1.0)\ntime.sleep(0.6)\nfill()\n" + goes_on
    run = start_run(body, stdout=subprocess.PIPE, heartbeat_seconds=0.2)
    stdout, stderr = run.process.communicate(timeout=120)
    events = [decode(line) for line in stdout.splitlines()]
    assert run.process.returncode == 1
    assert [event.event for event in events].count("run_failed") == 1
    assert events[-1].event == "run_failed"
    (line,) = stderr.decode().splitlines()
    assert "No space left on device" in line or "the disk is full" in line
    assert not lives(events[0].payload["algorithm_pid"])


def test_reader_that_goes_away_does_not_end_the_run(start_run: StartRun) -> None:
    run = start_run("for step in range(1, 40):\n    episode(step, 1.0)\n    time.sleep(0.03)", stdout=subprocess.PIPE)
    run.process.stdout.readline()
    run.process.stdout.close()
    assert run.wait() == 0
    assert len(run.events("episode")) == 39 and run.events()[-1].event == "run_completed"
    assert stderr_of(run) == ""


def test_stdout_that_is_closed_from_the_start_does_not_end_the_run(home: Path, start_run: StartRun) -> None:
    (home / "close.py").write_text(
        "import os, sys\nos.close(1)\nos.execv(sys.executable, [sys.executable, *sys.argv[1:]])\n"
    )
    run = start_run(LEARN, through=home / "close.py")
    assert run.wait() == 0, stderr_of(run)
    assert run.events()[-1].event == "run_completed"


# The daemon that is not there, and what tracks


def test_silent_daemon_is_one_warning_and_no_reason_not_to_train(start_run: StartRun) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{unused.getsockname()[1]}"
        run = start_run(LEARN, use_grpc=True, grpc_target=target)
        assert run.wait() == 0
    (warning,) = run.events("warning")
    assert warning.seq == 0 and f"no trainer daemon answered at {target}" in warning.payload["message"]


def test_answering_daemon_is_told_from_a_silent_one(start_run: StartRun) -> None:
    from concurrent.futures import ThreadPoolExecutor

    grpc = pytest.importorskip("grpc")
    server = grpc.server(ThreadPoolExecutor(1))
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        run = start_run(LEARN, use_grpc=True, grpc_target=target)
        assert run.wait() == 0
    finally:
        server.stop(None)
    (warning,) = run.events("warning")
    assert "refused this worker" in warning.payload["message"]


KEY = "0123456789abcdef0123456789abcdef01234567"


def test_wandb_that_hangs_neither_slows_nor_stops_training(
    start_run: StartRun, until: Until, lives: Lives, tmp_path: Path
) -> None:
    body = """
    began = time.time()
    for step in range(20):
        episode(step, 1.0)
        time.sleep(0.02)
    print(time.time() - began)
    """
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "wandb.py").write_text("import time\ntime.sleep(600)\n")
    run = start_run(body, {"track_wandb": True}, environment={"WANDB_API_KEY": KEY})
    until(lambda: run.paths.stdout_log.exists() and run.paths.stdout_log.read_text(), 90, "the algorithm's last word")
    until(lambda: not lives(run.algorithm_pid), 90, "the algorithm's end")
    time.sleep(0.5)  # the shell looks four times a second
    run.process.send_signal(signal.SIGTERM)  # impatient: the run is over, only W&B is waited for
    assert run.wait(15) == 0
    assert float(run.paths.stdout_log.read_text()) < 60
    said = [event.payload["message"] for event in run.events("warning") if "W&B" in event.payload["message"]]
    assert len(said) == 1 and "was ended" in said[0]
    assert run.events()[-1].payload["manifest"]["artifacts"]["wandb"]["enabled"] is True


def test_key_reaches_the_tracker_and_never_the_algorithm(start_run: StartRun, tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    # Stands in for W&B, and tells which key it was given.
    (tmp_path / "modules" / "wandb.py").write_text(
        "import os, pathlib\npathlib.Path(os.environ['MOSAIC_HOME'], 'key').write_text(os.environ['WANDB_API_KEY'])\n"
        "os._exit(1)\n"
    )
    body = "print(sorted(name for name in os.environ if 'WANDB' in name or 'PROXY' in name))"
    extras = {
        "track_wandb": True,
        "wandb_email": "me@lab.org",
        "wandb_use_vpn_proxy": True,
        "wandb_http_proxy": "http://proxy:3128",
    }
    run = start_run(body, extras, payload={"environment": {"WANDB_API_KEY": KEY}})
    assert run.wait() == 0, stderr_of(run)
    assert (run.paths.home / "key").read_text() == KEY
    assert run.paths.stdout_log.read_text() == "['HTTP_PROXY', 'NO_PROXY', 'WANDB_EMAIL']\n"
    (run.paths.home / "key").unlink()
    for file in run.paths.home.rglob("*"):
        assert file.is_dir() or KEY.encode() not in file.read_bytes(), file


# Scripts of the user's own

CLEANRL_STYLE = """
import argparse, os, time
import config
from torch.utils.tensorboard import SummaryWriter

def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--exp-name", type=str, default=os.path.basename(__file__).rstrip(".py"))
    parser.add_argument("--env-id", type=str, default="CartPole-v1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-timesteps", type=int, default=500)
    return parser.parse_args()

if __name__ == "__main__":
    args = parse_args()
    writer = SummaryWriter(f"runs/{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}")
    for step in range(10, args.total_timesteps + 1, 10):
        writer.add_scalar("charts/episodic_return", step / 10, step)
        writer.add_scalar("charts/episodic_length", 10, step)
        writer.add_scalar("losses/value_loss", 0.5, step)
    writer.close()
    print(config.WHOSE)
"""


def test_cleanrl_style_script_runs_unmodified_with_events_and_metrics(start_run: StartRun, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.py").write_text("WHOSE = 'mine'\n")
    script = tmp_path / "mine" / "my_ppo.py"
    script.write_text(CLEANRL_STYLE)
    run = start_run(algo=str(script))
    assert run.wait() == 0, run.paths.stderr_log.read_text()
    assert run.paths.stdout_log.read_text() == "mine\n"
    episodes = run.events("episode")
    assert [event.payload for event in episodes[:1]] == [{"step": 10, "return": 1.0, "length": 10.0}]
    assert (len(episodes), len(run.events("metrics"))) == (10, 10)
    manifest = run.events("run_completed")[0].payload["manifest"]
    assert manifest["summary"]["best_return"] is None  # of ten episodes
    assert manifest["artifacts"]["tensorboard"] == {"enabled": True, "relative_path": "runs"}


def test_script_runs_in_its_own_interpreter_without_our_packages(start_run: StartRun, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    script = tmp_path / "plain.py"
    script.write_text(
        "import argparse, sys\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--seed', type=int, default=0)\n"
        "print(parser.parse_args().seed, sys.prefix)\n"
        "for name in ('mosaic', 'orjson', 'telemetry', 'cleanrl_worker'):\n"
        "    try:\n        __import__(name)\n        print('found', name)\n"
        "    except ImportError:\n        pass\n"
    )
    extras = {"python": str(tmp_path / "venv" / "bin" / "python")}
    nothing = {"PYTHONPATH": ""}  # what the tests themselves are run with is not the script's
    run = start_run(extras=extras, algo=str(script), environment=nothing)
    assert run.wait() == 0, run.paths.stderr_log.read_text() + stderr_of(run)
    assert run.paths.stdout_log.read_text() == f"1 {tmp_path / 'venv'}\n"


# What the shell costs


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_shell_is_small_and_idle_and_imports_nothing_heavy(start_run: StartRun) -> None:
    body = """
    def cost(pid):
        fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    shell = os.getppid()
    episode(1, 1.0)
    time.sleep(1.0)
    before = cost(shell)
    time.sleep(2.0)
    used = cost(shell) - before
    status = open(f"/proc/{shell}/status").read()
    resident = int(status.split("VmRSS:")[1].split()[0]) / 1024
    maps = open(f"/proc/{shell}/maps").read()
    heavy = [name for name in ("torch", "gymnasium", "numpy", "grpc", "jax") if f"/{name}/" in maps]
    print(json.dumps([used / 2.0, resident, heavy]))
    """
    run = start_run(body, {"tensorboard_dir": "tensorboard"}, payload={})
    assert run.wait() == 0, run.paths.stderr_log.read_text()
    busy, resident, heavy = json.loads(run.paths.stdout_log.read_text())
    # less than one per cent where nobody else works; it is counted in hundredths of a second, and cores differ
    assert busy <= 0.04 and resident <= 80 and heavy == []


# Dry runs


def test_dry_run_writes_nothing_and_masks_secrets(home: Path, tmp_path: Path) -> None:
    extras = {"notes": "x", "wandb_https_proxy": "http://me:hush@proxy:1"}
    runtime = CleanRLWorkerRuntime(config_of(tmp_path, extras=extras, hub_token="hush"), dry_run=True)
    summary = runtime.run()
    shown = json.loads(summary.to_json())
    assert shown.keys() == {"status", "module", "callable", "argv", "config", "extras", "warnings", "needs"}
    assert (shown["status"], shown["module"], shown["callable"]) == ("dry-run", "cleanrl_worker.algorithms.ppo", "main")
    assert shown["argv"] == runtime.build_cleanrl_args()
    assert shown["argv"][:3] == ["--env-id=CartPole-v1", "--total-timesteps=100", "--seed=1"]
    assert "hush" not in summary.to_json()
    assert list(home.iterdir()) == []


def test_secret_flags_are_masked_too() -> None:
    argv = ("--seed=1", "--hf-token=hush", "--proxy=http://a:hush@p:1", "--track")
    summary = RuntimeSummary("dry-run", "m", "main", argv, {"api_key": "hush"}, {"x": [{"password": "hush"}]})
    shown = json.loads(summary.to_json())
    assert shown["argv"] == ["--seed=1", "--hf-token=***", "--proxy=http://***@p:1", "--track"]
    assert "hush" not in summary.to_json()


def test_refusal_comes_before_anything_is_written(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'ppo'"):
        CleanRLWorkerRuntime(config_of(tmp_path, algo="ppoo")).run()
    assert list(home.iterdir()) == []


def test_registry_names_modules_by_their_names() -> None:
    assert DEFAULT_ALGO_REGISTRY["dqn_jax"] == "cleanrl_worker.algorithms.dqn_jax"
    assert all(module.rpartition(".")[2] == name for name, module in DEFAULT_ALGO_REGISTRY.items())
    assert LAUNCHER.is_file()


def test_segments_of_an_algorithm_that_was_killed_before_its_checkpoint_are_removed(start_run: StartRun) -> None:
    body = """
    os.makedirs("checkpoints/replay")
    open("checkpoints/replay/000000000000-000000000005-deadbeef.safetensors", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
    """
    run = start_run(body)
    assert run.wait() == 128 + signal.SIGKILL
    assert not list((run.paths.checkpoints / "replay").iterdir())
