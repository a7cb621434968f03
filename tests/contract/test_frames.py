"""The FastLane ring: whole frames between processes that start and die in any order, and nothing left behind."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

from mosaic.contract import frames, ring
from mosaic.contract.frames import FastLaneReader, FastLaneWriter, RingError

RUN = f"frames-test-{os.getpid()}"  # tests that run at the same time see each other's rings


@pytest.fixture
def writer(tmp_path):
    writer = FastLaneWriter.create(RUN, tmp_path / "fastlane.json")
    yield writer
    writer.close()


def picture(value: int, height: int = 4, width: int = 6) -> np.ndarray:
    return np.full((height, width, 3), value, np.uint8)


def show(writer: FastLaneWriter, frame: np.ndarray, **numbers: float) -> None:
    writer.publish(frame, frame.shape[1], frame.shape[0], frame.shape[2], **numbers)


def rings_of(run_id: str = RUN) -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"fl-{ring.run_digest(run_id)}-*")]


def test_a_frame_arrives_whole_with_the_numbers_of_its_step(writer, tmp_path):
    with FastLaneReader.open(tmp_path / "fastlane.json") as reader:
        assert reader.latest_frame() is None
        show(writer, picture(7), last_reward=1.5, rolling_return=20.0, step_rate_hz=900.0, step=42)
        frame = reader.latest_frame()
        assert frame is not None and (frame.array == picture(7)).all()
        assert (frame.last_reward, frame.rolling_return, frame.step_rate_hz, frame.step) == (1.5, 20.0, 900.0, 42)
        assert 0 <= time.monotonic() - frame.time < 60
        assert reader.latest_frame(after=frame.index) is None, "nothing newer"


def test_only_the_newest_frame_is_read(writer):
    with FastLaneReader.attach(writer.name) as reader:
        for value in range(10):
            show(writer, picture(value))
        frame = reader.latest_frame()
        assert frame is not None and frame.array[0, 0, 0] == 9


def test_who_waits_for_the_first_frame_of_the_next_ring_takes_no_processor(writer):
    with FastLaneReader.attach(writer.name) as reader:
        begun = time.monotonic()
        reader.wait(after=500, shortest=0.0)
        assert time.monotonic() - begun >= 0.1, "the ring before had 500 frames, this one has none"


def test_looking_is_what_the_writer_sees_and_it_wears_off(writer, monkeypatch):
    assert not writer.watched
    with FastLaneReader.attach(writer.name) as reader:
        reader.status()
        assert not writer.watched, "asking for the status is not looking"
        reader.watch()
        assert writer.watched
        assert reader.status().watched
    monkeypatch.setattr(ring, "VIEWER_SECONDS", 0.0)
    assert not writer.watched


def test_a_larger_frame_makes_a_larger_ring_and_loses_neither_viewer_nor_reason(writer):
    with FastLaneReader.attach(writer.name) as reader:
        reader.watch()
        writer.tell(reason="not yet", label="(Eval)", note="batch 3")
        show(writer, picture(1))
        first = reader.latest_frame()
        show(writer, picture(2, 40, 60))
        assert writer.watched
        frame = reader.latest_frame()
        assert frame is not None and frame.array.shape == (40, 60, 3) and frame.index > first.index
        show(writer, picture(3, 2, 2))
        frame = reader.latest_frame()
        assert frame is not None and frame.array.shape == (2, 2, 3), "a smaller one needs no other ring"
        status = reader.status()
        assert (status.reason, status.label, status.note) == ("not yet", "(Eval)", "batch 3")
    assert rings_of() == [writer.name]


def test_a_ring_takes_less_than_four_frames(writer):
    frame = picture(0, 400, 600)
    show(writer, frame)
    assert os.stat(f"/dev/shm/{writer.name}").st_size == writer.size <= 4 * frame.nbytes


def test_texts_are_cut_between_letters(writer):
    writer.tell(reason="é" * 400)
    with FastLaneReader.attach(writer.name) as reader:
        assert reader.status().reason == "é" * 250


def test_full_shared_memory_is_a_reason_and_no_signal(writer, monkeypatch):
    def full(descriptor: int, start: int, size: int) -> None:
        if size > ring.HEADER:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with FastLaneReader.attach(writer.name) as reader:
        reader.watch()
        with pytest.raises(RingError, match="no room for 4"):
            show(writer, picture(1))
        writer.tell(reason="full")
        assert reader.status().reason == "full"
        assert writer.watched


def test_a_name_fits_macos_and_its_creator_is_known_by_pid_and_start(writer):
    assert len(writer.name) < 30
    assert frames.creator_lives(writer.name)
    kind, digest, pid, ticks = writer.name.split("-")
    assert not frames.creator_lives(f"{kind}-{digest}-{pid}-{ticks}0"), "another process had this pid"


def test_a_wrong_frame_is_refused(writer):
    with pytest.raises(ValueError, match="has 72 bytes, not 71"):
        writer.publish(b"\0" * 71, 6, 4)


def test_a_reader_says_what_is_missing(tmp_path):
    with pytest.raises(RingError, match="names no live view"):
        FastLaneReader.open(tmp_path / "fastlane.json")
    with pytest.raises(RingError, match="has its run ended"):
        FastLaneReader.attach("fl-0000000000-1-1")


def test_a_closed_ring_tells_its_readers(tmp_path):
    writer = FastLaneWriter.create(RUN, tmp_path / "fastlane.json")
    with FastLaneReader.open(tmp_path / "fastlane.json") as reader:
        writer.close()
        assert reader.status().state == "closed"
    assert rings_of() == []


def test_a_reader_that_was_there_first_follows_the_run_into_its_next_ring(tmp_path, monkeypatch):
    record = tmp_path / "fastlane.json"
    first = FastLaneWriter.create(RUN, record)
    with FastLaneReader.open(record) as reader:
        second = FastLaneWriter.create(RUN + "-again", record)  # as another process of the run would
        show(second, picture(5))
        deadline = time.monotonic() + 60
        while (frame := reader.latest_frame()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert frame.array[0, 0, 0] == 5
    first.close()
    second.close()


CREATOR = """
import sys
from mosaic.contract.frames import FastLaneWriter
writer = FastLaneWriter.create(sys.argv[1])
writer.publish(bytes(12), 2, 2)
print(writer.name, flush=True)
sys.stdin.read()
"""


def test_the_sweep_removes_rings_of_dead_creators_and_only_those(writer):
    process = subprocess.Popen([sys.executable, "-c", CREATOR, RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    name = process.stdout.readline().decode().strip()
    assert frames.sweep(RUN) == []
    reader = FastLaneReader.attach(name)
    process.kill()
    process.wait()
    assert frames.sweep("another-run") == []
    assert reader.status().state == "live"
    assert frames.sweep(RUN) == [name]
    assert reader.status().state == "closed", "who looks on learns that the run has ended"
    reader.close()
    assert rings_of() == [writer.name]
    process.stdin.close()
    process.stdout.close()


def test_a_reader_finds_out_that_the_writer_was_killed_though_nobody_sweeps_up(monkeypatch):
    process = subprocess.Popen([sys.executable, "-c", CREATOR, RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    name = process.stdout.readline().decode().strip()
    monkeypatch.setattr(frames, "WRITER_SECONDS", -1.0)
    with FastLaneReader.attach(name) as reader:
        assert reader.status().state == "live", "silent, and alive"
        process.kill()
        process.wait()
        assert reader.status().state == "closed"
    assert frames.sweep(RUN) == [name]
    process.stdin.close()
    process.stdout.close()


def test_the_exit_of_a_reader_destroys_nothing(writer):
    show(writer, picture(3))
    attached = f"FastLaneReader.attach({writer.name!r})"
    code = f"from mosaic.contract.frames import FastLaneReader; assert {attached}.latest_frame()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert rings_of() == [writer.name]


# Attaches, reads and checks until it is killed; what is torn goes to its stdout.
STORMER = """
import sys, zlib
from mosaic.contract.frames import FastLaneReader
reader, seen = FastLaneReader.attach(sys.argv[1]), 0
while True:
    frame = reader.latest_frame(seen)
    if frame is None:
        continue
    seen = frame.index
    checksum = int.from_bytes(frame.pixels[-4:], "little")
    whole = zlib.crc32(frame.pixels[:-4]) == checksum and frame.step == checksum
    print("whole" if whole else "TORN", flush=True)
"""


def test_fifty_readers_killed_at_random_never_see_a_torn_frame_nor_leave_anything(tmp_path):
    writer = FastLaneWriter.create(RUN)
    rng, stop = np.random.default_rng(1), threading.Event()
    published = 0

    def write() -> None:
        nonlocal published
        while not stop.is_set():
            height = 20 + published % 50  # sizes change all the time, too
            body = rng.bytes(height * 100 * 3 - 4)
            checksum = zlib.crc32(body)
            writer.publish(body + checksum.to_bytes(4, "little"), 100, height, step=checksum)
            published += 1

    thread = threading.Thread(target=write)
    thread.start()
    dice = random.Random(1)
    running: list[tuple[subprocess.Popen[bytes], Path]] = []
    outputs = []
    try:
        for number in range(50):
            outputs.append(tmp_path / f"{number}.txt")
            with outputs[-1].open("wb") as output:
                running.append(
                    (subprocess.Popen([sys.executable, "-c", STORMER, writer.name], stdout=output), outputs[-1])
                )
            if len(running) == 5:
                victim, _ = running.pop(dice.randrange(5))
                time.sleep(dice.uniform(0.0, 0.2))
                victim.send_signal(signal.SIGKILL)
                victim.wait()
        deadline = time.monotonic() + 60
        while running and not all(output.stat().st_size for _, output in running):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        for victim, _ in running:
            victim.kill()
            victim.wait()
        stop.set()
        thread.join()
        writer.close()
    read = b"".join(output.read_bytes() for output in outputs)
    assert b"TORN" not in read
    assert read.count(b"whole") > 4 and published > 100
    assert rings_of() == []


def test_a_writer_killed_in_the_middle_leaves_readers_the_last_whole_frame(writer):
    show(writer, picture(8))
    mapping = writer._ring
    word = mapping.slot(2) // 8
    mapping.words[word + ring.Slot.SEQ] |= 1  # died while writing the second frame
    mapping.bytes[mapping.slot(2) + ring.SLOT_HEADER] = 99
    with FastLaneReader.attach(writer.name) as reader:
        frame = reader.latest_frame()
        assert frame is not None and (frame.array == 8).all()
    show(writer, picture(9))
    with FastLaneReader.attach(writer.name) as reader:
        frame = reader.latest_frame()
        assert frame is not None and (frame.array == 9).all()


def test_a_writer_and_its_stand_in_take_turns(writer):
    stand_in = FastLaneWriter.stand_in(writer.name)
    show(stand_in, picture(1, 30, 30))
    with FastLaneReader.attach(writer.name) as reader:
        assert reader.latest_frame().array[0, 0, 0] == 1
        show(writer, picture(2, 60, 60))
        assert reader.latest_frame().array[0, 0, 0] == 2
    stand_in.pid = -1  # another process: its closing removes nothing
    stand_in.close()
    assert rings_of() == [writer.name]
