"""logs and events: files, tails, following to the end, lines for people and for programs."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mosaic.commands.inspect import logs
from mosaic.contract.events import Event


def write_log(run: Any, text: str, name: str = "cleanrl.stdout.log") -> Path:
    path = Path(run.folder) / "logs" / name
    with path.open("a") as file:
        file.write(text)
    return path


def test_log_is_printed_whole_by_its_tail_and_as_json(mosaic: Callable[..., Any], start: Callable[..., Any]) -> None:
    run = start()
    path = write_log(run, "one\ntwo\nthree\n")
    assert mosaic("logs", run.run_id).out == "one\ntwo\nthree\n"
    assert mosaic("logs", run.run_id, "-n", "2").out == "two\nthree\n"
    assert json.loads(mosaic("logs", run.run_id, "--json").out) == {
        "run_id": run.run_id,
        "file": str(path),
        "lines": ["one", "two", "three"],
    }


def test_errors_and_the_workers_own_words_are_chosen_by_flags(
    mosaic: Callable[..., Any], start: Callable[..., Any]
) -> None:
    run = start(say="COLUMNS")
    write_log(run, "ValueError\n", "cleanrl.stderr.log")
    assert mosaic("logs", run.run_id, "--stderr").out == "ValueError\n"
    assert mosaic("logs", run.run_id, "--worker").out == "100\n"


def test_log_that_is_not_there_or_empty_says_why(mosaic: Callable[..., Any], start: Callable[..., Any]) -> None:
    run = start(exit=3)
    told = mosaic("logs", run.run_id)
    assert told.code == 2 and "was never started (exit code 3" in told.err
    write_log(run, "")
    assert "is empty; its errors: mosaic logs" in mosaic("logs", run.run_id).err


def test_followed_log_ends_with_the_run_and_loses_nothing(
    mosaic: Callable[..., Any], start: Callable[..., Any], tmp_path: Path
) -> None:
    run = start(until="EXECUTING", episodes=4, gate=str(tmp_path / "gate"))
    write_log(run, "before\n")

    def later() -> None:
        time.sleep(0.6)
        write_log(run, "during ä\n")
        (tmp_path / "gate").touch()

    thread = threading.Thread(target=later)
    thread.start()
    told = mosaic("logs", "-f", run.run_id)
    thread.join()
    assert told.code == 0 and told.out == "before\nduring ä\n"


@pytest.mark.parametrize(("lines", "offset"), [(1, 4), (2, 2), (9, 0), (0, 6)])
def test_tail_begins_where_the_last_lines_do(tmp_path: Path, lines: int, offset: int) -> None:
    (tmp_path / "log").write_text("a\nb\nc\n")
    assert logs.tail_offset(tmp_path / "log", lines) == offset
    assert logs.tail_offset(tmp_path / "missing", lines) == 0


def test_events_are_json_lines_for_programs(mosaic: Callable[..., Any], start: Callable[..., Any]) -> None:
    run = start()
    lines = [json.loads(line) for line in mosaic("events", run.run_id).out.splitlines()]
    assert [line["seq"] for line in lines] == list(range(5)) and lines[-1]["event"] == "run_completed"
    only = mosaic("events", "-f", run.run_id, "--only", "episode", "--from", "2", "--json")
    assert [event["seq"] for event in json.loads(only.out)["events"]] == [2, 3]


def test_event_for_people_is_one_line_without_what_all_carry() -> None:
    payload = {
        "algo": "ppo",
        "step": 12,
        "return": 1.23456789,
        "hint": "a\nb",
        "manifest": {"x": "y" * 300},
        "no": None,
    }
    line = logs.readable(Event("episode", "R", 7, 0.0, payload))
    assert line.startswith("     7  ") and "step 12  return 1.23457  hint a b" in line
    assert "ppo" not in line and "no" not in line.split("  ") and line.endswith("…") and len(line) < 300
