"""Growing text files of a run: logs from near their end on, events by kind, a failed run's last words."""

import json
from pathlib import Path

from mosaic.contract.events import EventLog
from mosaic.contract.paths import RunPaths
from mosaic.web.log_files import EventTail, LogTail, last_words, logs_of, readable


def test_a_log_is_read_from_near_its_end_and_then_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("".join(f"line {number}\n" for number in range(1000)))
    tail = LogTail(path, most_bytes=100)
    first = tail.read()
    assert tail.cut and first.endswith("line 999\n") and first.startswith("line ") and len(first) <= 100
    with path.open("ab") as file:
        file.write("half of ü".encode()[:-1])
    assert tail.read() == "half of ", "a character that is not whole yet waits"
    with path.open("ab") as file:
        file.write("ü\n".encode()[1:])
    assert tail.read() == "ü\n" and tail.read() == ""
    path.write_text("anew\n")
    assert tail.read() == "anew\n", "a file that was begun anew is read from its start"
    assert LogTail(tmp_path / "none.log").read() == ""


def test_codes_for_terminals_are_left_out() -> None:
    assert readable("\x1b[31mred\x1b[0m\r\n10 %\r50 %\r100 %\n\x07ok") == "red\n100 %\nok"


def test_the_logs_of_a_run_and_what_it_said_last(tmp_path: Path) -> None:
    paths = RunPaths("run-1", tmp_path)
    assert logs_of(paths) == {} and last_words(paths) == ""
    paths.create()
    paths.worker_stderr_log.write_text("the worker spoke\n")
    assert last_words(paths) == "the worker spoke"
    paths.stderr_log.write_text("\n".join(f"frame {number}" for number in range(50)) + "\nValueError: no\n\n")
    assert last_words(paths, 2) == "frame 49\nValueError: no"
    (paths.logs / "wandb.log").write_text("")
    assert list(logs_of(paths)) == ["Errors", "Worker", "wandb.log"]


def test_events_of_the_chosen_kinds_are_read_once_and_all_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "worker.jsonl"
    assert EventTail(path, {"warning"}).read() == []
    with EventLog(path, "run-1") as log:
        log.append("run_started", {"pid": 1})
        for number in range(10):
            log.append("episode", {"step": number, "return": 1.0, "length": 1})
        tail = EventTail(path, {"run_started", "warning"}, most=5)
        assert [event.event for event in tail.read()] == ["run_started"] and tail.read() == []
        log.append("warning", {"message": "careful"})
        with path.open("ab") as file:
            file.write(b'{"event":"warning","run_id"')
        assert [event.payload["message"] for event in tail.read()] == ["careful"]
    assert tail.counts == {"run_started": 1, "episode": 10, "warning": 1}
    newest = EventTail(path, {"episode"}, most=3).read()
    assert [event.payload["step"] for event in newest] == [7, 8, 9]


def test_events_between_long_lines_are_found_and_a_page_holds_few_bytes_of_them(tmp_path: Path) -> None:
    path = tmp_path / "worker.jsonl"

    def line(seq: int, message: str, **envelope: object) -> bytes:
        told = {"event": "warning", "run_id": "a", "seq": seq, "timestamp": 1.0, "payload": {"message": message}}
        return json.dumps({**told, **envelope}).encode() + b"\n"

    path.write_bytes(line(0, "a") + line(1, "x" * 20_000_000) + line(2, "b") + line(3, "c", timestamp=1e300))
    tail = EventTail(path, {"warning"})
    assert [event.seq for event in tail.read()] == [0, 2]
    with path.open("ab") as file:
        file.writelines(line(seq, "y" * 900_000) for seq in range(4, 20))
    assert [event.seq for event in tail.read()] == [16, 17, 18, 19]
    assert tail.read() == [] and tail.counts["warning"] == 19
