"""A worker in the foreground: signals that reach it, files that it gets."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from mosaic.foreground import ForegroundWorker, next_slot, passing_signals
from mosaic.wire.errors import ConfigError, WorkerError
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


def test_login_of_a_proxy_reaches_the_worker_and_no_file(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import os, sys\nprint(os.environ.get('HTTPS_PROXY'), open(sys.argv[-1]).read())\n")
    extras = {"wandb_use_vpn_proxy": True, "wandb_https_proxy": "http://me:hush@p:1", "algo_params": {"gamma": 0.9}}
    process = ForegroundWorker(capabilities(sys.executable, str(script)), {"run_id": "R1", "extras": extras}, tmp_path)
    assert list(process.events()) == [] and process.strays[0].startswith("http://me:hush@p:1 {")
    files = sorted(process.paths.configs_folder.iterdir())
    assert [file.name for file in files] == ["config-R1.json", "worker-R1-1.json"]
    for file in files:
        found = json.loads(file.read_text())["extras"]
        assert found == {**extras, "wandb_https_proxy": "http://***@p:1"}


@pytest.mark.parametrize("extras", [{"optuna_db": "mysql://me:hush@h/d"}, {"algo_params": {"url": "http://a:b@h"}}])
def test_any_other_login_is_refused_before_a_file_is_written(tmp_path: Path, extras: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="holds a login or another secret"):
        ForegroundWorker(capabilities(sys.executable), {"run_id": "R1", "extras": extras}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_refusal_is_told_without_the_name_of_the_workers_program(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import sys\nprint('stub-worker: unknown algo: x', file=sys.stderr)\nsys.exit(2)\n")
    process = ForegroundWorker(capabilities(sys.executable, str(script)), {"run_id": "R1"}, tmp_path)
    with pytest.raises(ConfigError, match=r"^unknown algo: x$"):
        list(process.events())


def test_slots_count_up_over_all_runs(tmp_path: Path) -> None:
    assert next_slot(tmp_path / "not there yet") == 1
    for name in ("worker-A-1.json", "worker-B-12.json", "worker-C-x.json", "config-A.json"):
        (tmp_path / name).touch()
    assert next_slot(tmp_path) == 13
