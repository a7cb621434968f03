"""Events: encode, decode, replay of a log cut anywhere, and appending to it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic.contract.errors import EventError, RunIdError, StorageError
from mosaic.contract.events import EVENT_KINDS, Event, EventLog, cut_torn_tail, decode, encode, last_seq, replay

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
events = st.builds(
    Event,
    event=st.sampled_from(sorted(EVENT_KINDS)),
    run_id=st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True),
    seq=st.integers(0, 2**53),
    timestamp=st.floats(0, 1e11),
    payload=st.dictionaries(st.text(), json_values, max_size=5),
)
GOOD = {"event": "step", "run_id": "R1", "seq": 0, "timestamp": 1.5, "payload": {}}


def fill(path: Path, count: int = 5, run_id: str = "R1") -> list[Event]:
    """Write a log whose texts have characters of several bytes, and newlines."""
    with EventLog(path, run_id) as log:
        return [log.append("warning", {"message": f"é\n{number} 🎈", "value": number / 3}) for number in range(count)]


def test_the_kinds_are_those_of_the_contract() -> None:
    assert EVENT_KINDS == {
        *("run_started", "heartbeat", "run_completed", "run_failed", "episode", "step", "metrics", "stage", "phase"),
        *("checkpoint", "resumed", "paused", "continued", "eval_batch", "warning"),
    }


@settings(deadline=None)  # a busy machine is no failure
@given(events)
def test_an_event_is_one_line_and_comes_back_as_it_was(event: Event) -> None:
    line = encode(event)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert decode(line) == event
    assert decode(line.decode()) == event


def test_floats_that_are_not_finite_are_spelled_out_at_every_depth() -> None:
    payload = {"a": float("nan"), "b": [float("inf"), {"c": (-float("inf"), None, 1.0)}], "d": np.float32("nan")}
    found = orjson.loads(encode(Event("metrics", "R1", 0, 1.0, payload)))["payload"]
    assert found == {"a": "NaN", "b": ["Infinity", {"c": ["-Infinity", None, 1.0]}], "d": "NaN"}
    assert orjson.loads(encode(Event("metrics", "R1", 0, 1.0, {"a": np.array([1.0, np.nan])})))["payload"] == {
        "a": [1.0, "NaN"]
    }


def test_numpy_numbers_and_undecodable_file_names_can_be_said() -> None:
    payload = {"f": np.float64(0.5), "i": np.int64(3), "name": os.fsdecode(b"\xff.py")}
    assert decode(encode(Event("warning", "R1", 0, 1.0, payload))).payload == {"f": 0.5, "i": 3, "name": "?.py"}


def looped() -> dict[str, Any]:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    return loop


@pytest.mark.parametrize("payload", [{"a": object()}, {1: 2}, {"a": {1, 2}}, {"a": 2**70}, {"a": b"bytes"}, looped()])
def test_what_is_no_json_is_refused_by_encode(payload: dict[str, Any]) -> None:
    with pytest.raises(EventError, match="cannot be written as JSON"):
        encode(Event("step", "R1", 0, 1.0, payload))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"", "not JSON"),
        (b"\n", "not JSON"),
        (b"{", "not JSON"),
        (b'{"event": NaN}', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"\0\0\0\0", "not JSON"),
        (b"[1]", "a JSON object is expected"),
        (b"null", "a JSON object is expected"),
        (b"{}", "lacks event, run_id, seq, timestamp, payload"),
        ({"seq": None}, "seq is a whole number from 0, not None"),
        ({"seq": -1}, "seq is a whole number"),
        ({"seq": 1.0}, "seq is a whole number"),
        ({"seq": True}, "seq is a whole number"),
        ({"seq": "0"}, "seq is a whole number"),
        ({"event": "run_startd"}, "unknown event 'run_startd'; did you mean 'run_started'?"),
        ({"event": "zzz"}, "unknown event 'zzz'; one of checkpoint, "),
        ({"event": None}, "unknown event None"),
        ({"event": ["step"]}, "unknown event"),
        ({"run_id": "../x"}, "run id '../x' is refused"),
        ({"run_id": 7}, "run id 7 is refused"),
        ({"timestamp": "now"}, "timestamp is a number of unix seconds, not 'now'"),
        ({"timestamp": True}, "timestamp"),
        ({"payload": []}, r"payload is an object, not \[\]"),
        ({"extra": 1}, "unknown key 'extra'"),
    ],
)
def test_a_line_that_is_no_event_is_refused_and_says_why(line: Any, problem: str) -> None:
    text = orjson.dumps(GOOD | line) if isinstance(line, dict) else line
    with pytest.raises(EventError, match=problem) as refused:
        decode(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", sorted(GOOD))
def test_an_event_that_lacks_a_key_is_refused_by_its_name(key: str) -> None:
    with pytest.raises(EventError, match=f"lacks {key}"):
        decode(orjson.dumps({name: value for name, value in GOOD.items() if name != key}))


def test_a_log_cut_at_every_byte_replays_up_to_its_last_whole_line(tmp_path: Path) -> None:
    written = fill(tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    path = tmp_path / "cut"
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        whole = data[:size].count(b"\n")
        assert list(replay(path)) == written[:whole]
        assert last_seq(path) == whole - 1
        assert path.read_bytes() == data[:size]  # reading repairs nothing


def test_a_log_cut_at_every_byte_is_repaired_and_continued_without_a_gap(tmp_path: Path) -> None:
    written = fill(tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    path = tmp_path / "cut"
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        whole = data[:size].count(b"\n")
        with EventLog(path, "R1") as log:
            added = [log.append("resumed", {}), log.append("heartbeat", {})]
        assert list(replay(path)) == written[:whole] + added
        assert [event.seq for event in replay(path)] == list(range(whole + 2))


def test_replay_goes_on_from_the_seq_asked_for(tmp_path: Path) -> None:
    written = fill(tmp_path / "log")
    assert list(replay(tmp_path / "log", from_seq=3)) == written[3:]
    assert list(replay(tmp_path / "log", from_seq=5)) == []


def test_a_log_that_does_not_exist_holds_nothing(tmp_path: Path) -> None:
    assert list(replay(tmp_path / "none")) == []
    assert last_seq(tmp_path / "none") == -1
    assert cut_torn_tail(tmp_path / "none") == 0
    assert os.listdir(tmp_path) == []


def test_a_bad_line_in_the_middle_is_named_by_its_number(tmp_path: Path) -> None:
    fill(tmp_path / "log", 3)
    lines = (tmp_path / "log").read_bytes().splitlines(keepends=True)
    (tmp_path / "log").write_bytes(lines[0] + b"garbage\n" + lines[2])
    events_found = replay(tmp_path / "log")
    assert next(events_found).seq == 0
    with pytest.raises(EventError, match=r"log, line 2: not JSON"):
        next(events_found)


def test_a_gap_in_seq_is_no_silent_loss(tmp_path: Path) -> None:
    fill(tmp_path / "log", 3)
    lines = (tmp_path / "log").read_bytes().splitlines(keepends=True)
    (tmp_path / "log").write_bytes(lines[0] + lines[2])
    with pytest.raises(EventError, match=r"line 2: seq is 2 where 1 is next"):
        list(replay(tmp_path / "log"))


def test_the_last_seq_is_found_behind_lines_longer_than_a_block(tmp_path: Path) -> None:
    with EventLog(tmp_path / "log", "R1") as log:
        for size in (10, 200_000, 65_536, 3):
            event = log.append("warning", {"message": "x" * size})
            assert last_seq(tmp_path / "log") == event.seq
    with open(tmp_path / "log", "ab") as file:
        file.write(b"y" * 200_000)
    assert last_seq(tmp_path / "log") == 3
    assert cut_torn_tail(tmp_path / "log") == 200_000
    assert cut_torn_tail(tmp_path / "log") == 0


def test_appending_refuses_an_unknown_kind_and_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    with EventLog(tmp_path / "log", "R1") as log:
        log.append("run_started", {})
        with pytest.raises(EventError, match="did you mean 'heartbeat'"):
            log.append("hartbeat", {})
        with pytest.raises(EventError, match="cannot be written as JSON"):
            log.append("heartbeat", {"a": object()})
        assert log.append("heartbeat", {}).seq == 1
    with pytest.raises(EventError, match="is closed"):
        log.append("heartbeat", {})


def test_a_log_is_of_one_run(tmp_path: Path) -> None:
    fill(tmp_path / "log")
    with pytest.raises(EventError, match="holds events of run R1, not of R2"):
        EventLog(tmp_path / "log", "R2")
    with pytest.raises(RunIdError):
        EventLog(tmp_path / "log", "../x")


def test_threads_share_a_log_without_a_gap(tmp_path: Path) -> None:
    with EventLog(tmp_path / "log", "R1") as log:
        threads = [
            threading.Thread(target=lambda: [log.append("step", {"x": "y" * 500}) for _ in range(50)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [event.seq for event in replay(tmp_path / "log")] == list(range(200))


APPEND_MANY = """
import os, sys
from pathlib import Path
from mosaic.contract.events import EventLog

with EventLog(Path(sys.argv[1]), "R1") as log:
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(100):
        log.append("phase", {"pid": os.getpid(), "text": "x" * 500})
"""


def test_processes_share_a_log_without_a_gap(tmp_path: Path) -> None:
    command = [sys.executable, "-c", APPEND_MANY, str(tmp_path / "log")]
    shells = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for shell in shells:
        assert shell.stdout is not None and shell.stdout.readline() == "ready\n"
    for shell in shells:
        assert shell.stdin is not None
        shell.stdin.write("go\n")
        shell.stdin.flush()
    for shell in shells:
        shell.communicate()
        assert shell.returncode == 0
    found = list(replay(tmp_path / "log"))
    assert [event.seq for event in found] == list(range(300))
    assert len({event.payload["pid"] for event in found}) == 3


def test_a_log_in_a_missing_folder_gives_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot write .*log: No such file or directory; "):
        EventLog(tmp_path / "missing" / "log", "R1")


def test_several_events_are_written_all_or_none(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fill(path, 1)
    with EventLog(path, "R1") as log, EventLog(path, "R1") as other:
        other.append("heartbeat", {})
        written = log.append_all([("step", {"step": number}) for number in range(3)])
        assert [event.seq for event, _ in written] == [2, 3, 4]
        size = path.stat().st_size
        with pytest.raises(EventError, match="unknown event 'stop'"):
            log.append_all([("step", {}), ("stop", {})])
        with pytest.raises(EventError, match="cannot be written as JSON"):
            log.append_all([("step", {}), ("step", {"a": object()})])
        assert path.stat().st_size == size and log.append_all([]) == []
        assert other.append("heartbeat", {}).seq == 5
    assert b"".join(line for _, line in written) in path.read_bytes()
    assert [event.seq for event in replay(path)] == list(range(6))


def test_a_disk_that_fills_up_in_the_middle_of_a_line_gives_one_clear_line_and_a_whole_log(tmp_path: Path) -> None:
    """A limit on the file's size cuts a write short just as a full disk does."""
    path = tmp_path / "log"
    fill(path, 3)
    size = path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with EventLog(path, "R1") as log:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, limits[1]))
            with pytest.raises(StorageError, match=r"cannot write .*log: File too large; "):
                log.append("warning", {"message": "x" * 1000})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, before)
        assert path.stat().st_size == size
        assert log.append("heartbeat", {}).seq == 3
    assert last_seq(path) == 3
