"""Rows of metrics: encode, decode, tail, resumption, comparison."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic.contract.errors import EventError
from mosaic.contract.events import cut_torn_tail
from mosaic.contract.metrics import (
    Tail,
    comparable,
    continue_rows,
    decode_row,
    encode_resumed,
    encode_row,
    is_episode,
    read_rows,
)

tags = st.text(min_size=1).filter(lambda tag: tag not in ("step", "time", "resumed_from"))
numbers = st.floats() | st.integers(-(2**63), 2**63 - 1)


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Compare rows by type and bits, so that NaN equals NaN and 1 is not 1.0."""
    return list(map(repr, left.items())) == list(map(repr, right.items()))


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(0, 2**53), st.floats(0, 1e11), st.dictionaries(tags, numbers, max_size=6))
def test_a_row_is_one_line_and_comes_back_as_it_was(step: int, at: float, values: dict[str, float]) -> None:
    line = encode_row(step, at, values)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert same(decode_row(line), {"step": step, "time": at, **values})


def test_a_row_reads_as_the_contract_says() -> None:
    line = encode_row(8, 2.5, {"charts/SPS": 900, "losses/a": math.nan, "losses/b": math.inf, "losses/c": -math.inf})
    assert line == (
        b'{"step":8,"time":2.5,"charts/SPS":900,"losses/a":"NaN","losses/b":"Infinity","losses/c":"-Infinity"}\n'
    )


def test_numpy_numbers_are_numbers() -> None:
    step: Any = np.int64(3)
    values: dict[str, Any] = {"a": np.float32(0.5), "b": np.int32(2), "c": np.float32("nan")}
    row = decode_row(encode_row(step, np.float64(1.0), values))
    assert row["step"] == 3 and row["a"] == 0.5 and row["b"] == 2 and math.isnan(row["c"])


@pytest.mark.parametrize("values", [{"step": 1.0}, {"time": 1.0}, {"a": None}])
def test_a_row_that_could_not_be_read_back_is_not_written(values: Any) -> None:
    with pytest.raises(EventError, match="may not be 'step' or 'time'"):
        encode_row(1, 2.0, values)


def test_a_tag_that_only_looks_like_a_null_is_fine() -> None:
    assert decode_row(encode_row(1, 2.0, {"x:null": 3.0}))["x:null"] == 3.0


def test_a_row_costs_the_training_loop_less_than_twice_the_standard_library() -> None:
    values = {"charts/episodic_return": 21.0, "charts/episodic_length": 21, "losses/value_loss": 0.123456}
    row = {"step": 100_000, "time": 1731660000.123, **values}

    def cpu_seconds(encode: Callable[[], object]) -> float:
        start = time.thread_time()
        for _ in range(500):
            encode()
        return time.thread_time() - start

    # CPU time, side by side, the best of many: the machine may be busy. About a third on an idle one.
    pairs = [(cpu_seconds(lambda: encode_row(1, 2.0, values)), cpu_seconds(lambda: json.dumps(row))) for _ in range(20)]
    assert min(ours for ours, _ in pairs) < 2 * min(theirs for _, theirs in pairs)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"", "not JSON"),
        (b"[]", "a JSON object is expected"),
        (b"{}", "'step' or 'resumed_from'"),
        (b'{"step":1}', "lacks 'time'"),
        (b'{"step":1.5,"time":1}', "'step' or 'resumed_from'"),
        (b'{"step":"NaN","time":1}', "'step' or 'resumed_from'"),
        (b'{"resumed_from":"x"}', "'resumed_from' is a number"),
        (b'{"step":1,"time":2,"a":"high"}', "'a' is a number, not 'high'"),
        (b'{"step":1,"time":2,"a":null}', "'a' is a number, not None"),
        (b'{"step":1,"time":2,"a":[1]}', "'a' is a number"),
    ],
)
def test_a_line_that_is_no_row_is_refused_and_says_why(line: bytes, problem: str) -> None:
    with pytest.raises(EventError, match=problem):
        decode_row(line)


def test_a_tail_gives_every_row_once_however_the_file_grows(tmp_path: Path) -> None:
    rows = [encode_row(step, step / 7, {"charts/é": step * 1.5}) for step in range(4)]
    data = b"".join(rows)
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    found = []
    with open(path, "wb", buffering=0) as file:
        for position in range(len(data)):
            file.write(data[position : position + 1])
            new = tail.read()
            assert len(new) == (data[position : position + 1] == b"\n")
            found += new
    assert [row["step"] for row in found] == [0, 1, 2, 3]
    assert tail.offset == len(data) and tail.read() == []
    assert Tail(path, offset=len(rows[0])).read() == found[1:]


def test_a_tail_says_once_what_is_bad_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(encode_row(1, 1.0, {}) + b"bad\n" + encode_row(2, 2.0, {}))
    tail = Tail(path)
    assert [row["step"] for row in tail.read()] == [1]
    with pytest.raises(EventError, match=r"at byte 22: not JSON"):
        tail.read()
    assert [row["step"] for row in tail.read()] == [2]
    with pytest.raises(EventError, match=r"at byte 22: not JSON"):
        read_rows(path)


def test_a_file_that_shrinks_under_a_tail_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(encode_row(1, 1.0, {}))
    tail = Tail(path)
    tail.read()
    path.write_bytes(b"")
    with pytest.raises(EventError, match="it may only grow"):
        tail.read()


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(lines))
    return path


def test_resumption_drops_the_rows_beyond_its_step(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m",
        encode_row(10, 1.0, {"a": 1.0}),
        encode_row(20, 2.0, {"a": 2.0}),
        encode_row(30, 3.0, {"a": 3.0}),
        encode_resumed(20),
        encode_row(30, 4.0, {"a": 4.0}),
        encode_row(40, 5.0, {"a": 5.0}),
        encode_resumed(30),
        encode_row(40, 6.0, {"a": 6.0}),
        b'{"step":50,"ti',
    )
    assert [(row["step"], row["a"]) for row in read_rows(path)] == [(10, 1.0), (20, 2.0), (30, 4.0), (40, 6.0)]
    assert {"resumed_from": 20} in Tail(path).read()
    assert read_rows(tmp_path / "none") == []


def points(path: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["a"]) for row in read_rows(path)]


def test_a_copy_of_the_parents_rows_that_was_cut_at_any_byte_is_completed_by_the_next_start(tmp_path: Path) -> None:
    lines = [encode_row(step, 1.0, {"a": value}) for step, value in ((0, 0.5), (10, 1.0), (10, math.nan), (20, 2.0))]
    parent = write(tmp_path / "parent", *lines, encode_row(30, 3.0, {"a": 3.0}))
    copy = tmp_path / "copy"
    continue_rows(copy, parent, 20)
    whole = copy.read_bytes()
    assert whole == b"".join(lines)
    for cut in range(len(whole) + 1):
        write(copy, whole[:cut])
        for _ in range(2):  # and a start that was killed right after the copy
            cut_torn_tail(copy)
            continue_rows(copy, parent, 20)
        with copy.open("ab") as file:
            file.write(encode_row(30, 4.0, {"a": 4.0}))
        assert repr(points(copy)) == "[(0, 0.5), (10, 1.0), (10, nan), (20, 2.0), (30, 4.0)]"


def left_line(path: Path) -> int:
    """A run that was at 30, went back to 10 and on to 25; returns how long its file was at 30."""
    write(path, *(encode_row(step, 1.0, {"a": float(step)}) for step in (10, 20, 30, 40)))
    length = len(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    with path.open("ab") as file:
        file.writelines([encode_resumed(10), *(encode_row(step, 2.0, {"a": step + 0.5}) for step in (20, 25))])
    return length


def test_a_line_that_was_left_goes_on_with_its_own_rows_in_a_new_run(tmp_path: Path) -> None:
    length = left_line(tmp_path / "parent")
    continue_rows(tmp_path / "new", tmp_path / "parent", 30, length)
    assert points(tmp_path / "new") == [(10, 10.0), (20, 20.0), (30, 30.0)]


def test_a_line_that_was_left_goes_on_with_its_own_rows_in_its_own_folder(tmp_path: Path) -> None:
    path = tmp_path / "m"
    length = left_line(path)
    before = path.read_bytes()
    continue_rows(path, path, 30, length)
    assert path.read_bytes().startswith(before), "readers follow it: it may only grow"
    assert points(path) == [(10, 10.0), (20, 20.0), (30, 30.0)]
    whole = path.read_bytes()
    for cut in range(len(before), len(whole)):
        write(path, whole[:cut])
        cut_torn_tail(path)
        continue_rows(path, path, 30, length)
        assert points(path) == [(10, 10.0), (20, 20.0), (30, 30.0)]


def test_a_run_that_goes_on_from_its_own_newest_state_copies_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m"
    left_line(path)
    before = path.read_bytes()
    continue_rows(path, path, 25, len(before))
    assert path.read_bytes() == before + encode_resumed(25)


def test_runs_that_differ_in_what_a_clock_measured_compare_equal(tmp_path: Path) -> None:
    one = write(
        tmp_path / "one",
        encode_row(10, 1.0, {"charts/SPS": 5, "losses/a": math.nan}),
        encode_row(20, 2.0, {"charts/SPS": 6}),
        encode_row(20, 3.0, {"a": 0.1}),
    )
    other = write(
        tmp_path / "other",
        encode_row(10, 9.0, {"charts/SPS": 7, "losses/a": math.nan}),
        encode_row(20, 9.5, {"perf/checkpoint_seconds": 1.0}),
        encode_row(20, 9.6, {"a": 0.7}),
        encode_resumed(10),
        encode_row(20, 9.9, {"a": 0.1, "perf/x": 1}),
    )
    assert comparable(one) == comparable(other) == b'{"step":10,"losses/a":"NaN"}\n{"step":20,"a":0.1}\n'
    write(other, encode_row(10, 9.0, {"losses/a": math.nan}), encode_row(20, 9.0, {"a": math.nextafter(0.1, 1)}))
    assert comparable(one) != comparable(other)


def test_an_episode_is_known_by_its_return() -> None:
    assert is_episode(decode_row(encode_row(1, 1.0, {"charts/episodic_return": 9.0, "charts/episodic_length": 9})))
    assert not is_episode(decode_row(encode_row(1, 1.0, {"charts/SPS": 9})))
    assert not is_episode({"resumed_from": 3})
