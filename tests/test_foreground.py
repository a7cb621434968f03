"""A worker in the foreground: signals that reach it, files that it gets."""

import os
import signal
import sys
from pathlib import Path

import pytest

from mosaic.foreground import ForegroundWorker, next_slot, passing_signals
from mosaic.wire.errors import WorkerError
from mosaic.wire.workers import WorkerCapabilities

# Says each signal that reaches it as an event; a polite one ends at the first, a stubborn one never.
WORKER = """
import json, signal, sys, time
run_id = json.load(open(sys.argv[-1]))["run_id"]
seq = 0
def say(**payload):
    global seq
    line = {"event": "warning", "run_id": run_id, "seq": seq, "timestamp": time.time(), "payload": payload}
    print(json.dumps(line), flush=True)
    seq += 1
def on_signal(number, frame):
    say(message=signal.Signals(number).name)
    if sys.argv[1] == "polite":
        sys.exit(130)
signal.signal(signal.SIGINT, on_signal)
say(message="ready")
while True:
    time.sleep(60)
"""


def worker(tmp_path: Path, manner: str) -> ForegroundWorker:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    return ForegroundWorker(capabilities(sys.executable, str(script), manner), {"run_id": "R1"}, tmp_path)


def capabilities(*command: str) -> WorkerCapabilities:
    return WorkerCapabilities(
        worker_type="stub",
        label="Stub",
        supported_paradigms=(),
        env_families=(),
        action_spaces=(),
        observation_spaces=(),
        command=command,
        schema=dict,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_any_ending_signal_becomes_a_gentle_interrupt_of_the_worker(tmp_path: Path, number: int) -> None:
    process = worker(tmp_path, "polite")
    seen: list[str] = []
    said: list[str] = []
    before = signal.getsignal(number)
    with passing_signals(process, said.append):
        for event in process.events():
            seen.append(event.payload["message"])
            if seen == ["ready"]:
                os.kill(os.getpid(), number)
    assert seen == ["ready", "SIGINT"] and process.exit_code == 130
    assert said == ["Stopping: asked the run to end. Ctrl-C again ends it at once."]
    assert signal.getsignal(number) == before


def test_second_interrupt_is_passed_on_and_third_kills(tmp_path: Path) -> None:
    process = worker(tmp_path, "stubborn")
    seen: list[str] = []
    said: list[str] = []
    with passing_signals(process, said.append):
        for event in process.events():
            seen.append(event.payload["message"])
            os.kill(os.getpid(), signal.SIGINT)
    assert seen == ["ready", "SIGINT", "SIGINT"] and process.exit_code == -signal.SIGKILL
    assert said[1:] == ["Ending the run now.", "Killed the worker."]


def test_ignored_signal_stays_ignored_as_under_nohup(tmp_path: Path) -> None:
    process = worker(tmp_path, "polite")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with passing_signals(process, pytest.fail):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
        process.kill()
        assert [event.payload["message"] for event in process.events()] in (["ready"], [])


def test_command_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="cannot start the worker '/nowhere/python': No such file"):
        ForegroundWorker(capabilities("/nowhere/python"), {"run_id": "R1"}, tmp_path)


def test_slots_count_up_over_all_runs(tmp_path: Path) -> None:
    assert next_slot(tmp_path / "not there yet") == 1
    for name in ("worker-A-1.json", "worker-B-12.json", "worker-C-x.json", "config-A.json"):
        (tmp_path / name).touch()
    assert next_slot(tmp_path) == 13
