"""Lines of a growing file: caps, offsets, lines without an end, files that are none."""

import os
import tracemalloc
from pathlib import Path

import pytest

from mosaic.contract.lines import lines_of, read_lines

MOST = 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lines.jsonl"


def test_whole_lines_come_with_the_offsets_behind_them(path: Path) -> None:
    path.write_bytes(b"one\ntwo\r\n\nthr")
    found = read_lines(path, 0, MOST)
    assert (found.lines, found.ends, found.end, found.more) == ([b"one", b"two\r", b""], [4, 9, 10], 10, False)
    with path.open("ab") as file:
        file.write(b"ee\n")
    assert read_lines(path, found.end, MOST).lines == [b"three"]
    assert read_lines(path.with_name("absent"), 7, MOST).end == 7


@pytest.mark.parametrize("size", [MOST + 1, 3 << 20])
def test_a_line_over_the_cap_is_dropped_with_its_size_and_the_next_ones_are_read(path: Path, size: int) -> None:
    path.write_bytes(b"before\n" + b"x" * size + b"\n" + b"y" * MOST + b"\nafter\n")
    lines, dropped, end, more = [], [], 0, True
    while more:
        found = read_lines(path, end, MOST)
        lines, dropped, end, more = lines + found.lines, dropped + found.dropped, found.end, found.more
    assert (lines, dropped) == ([b"before", b"y" * MOST, b"after"], [size])
    assert end == path.stat().st_size
    assert [line for line, _ in lines_of(path, 0, MOST)] == lines


def test_a_long_line_costs_no_memory_and_is_not_searched_again_while_it_grows(path: Path) -> None:
    with path.open("wb") as file:
        for _ in range(40):
            file.write(b"x" * (1 << 20))
    tracemalloc.start()
    found = read_lines(path, 0, MOST)
    assert (found.end, found.searched, found.lines, found.more) == (0, 40 << 20, [], False)
    with path.open("ab") as file:
        file.write(b"\nnext\n")
    found = read_lines(path, found.end, MOST, searched=found.searched)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.dropped, found.lines) == ([40 << 20], [b"next"]) and peak < 8 << 20


def test_a_line_that_became_shorter_is_searched_from_its_beginning(path: Path) -> None:
    path.write_bytes(b"x" * 200 + b"\nnext\n")
    assert read_lines(path, 0, MOST, limit=50, searched=10_000).dropped == [200]


def test_anything_but_a_plain_file_is_refused_at_once(path: Path, tmp_path: Path) -> None:
    os.mkfifo(path)
    for one in (path, tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError):
            read_lines(one, 0, MOST)
