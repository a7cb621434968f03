"""TensorBoard's own loader reads our files, and we read torch's."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from mosaic.contract.errors import EventError, StorageError
from mosaic.contract.tensorboard import ScalarReader, ScalarWriter, _masked_crc32c


def accumulated(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return found


def test_the_checksum_is_castagnolis_under_tfrecords_mask() -> None:
    crc = 0xE3069283  # the published check value of CRC-32C for these nine digits
    assert _masked_crc32c(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_tensorboards_own_loader_reads_what_we_write(tmp_path: Path) -> None:
    writer = ScalarWriter(tmp_path / "tensorboard")
    writer.add("charts/episodic_return", 21.5, 100, 1731660000.25)
    writer.add("losses/é", math.nan, 2**40, 1731660001.0)
    writer.close()
    events = list(LegacyEventFileLoader(str(writer.path)).Load())
    assert events[0].file_version == "brain.Event:2"
    assert [(e.wall_time, e.step, e.summary.value[0].tag) for e in events[1:]] == [
        (1731660000.25, 100, "charts/episodic_return"),
        (1731660001.0, 2**40, "losses/é"),
    ]
    assert events[1].summary.value[0].simple_value == 21.5
    assert math.isnan(events[2].summary.value[0].simple_value)
    found = accumulated(tmp_path / "tensorboard")
    assert found.Tags()["scalars"] == ["charts/episodic_return", "losses/é"]
    assert found.Scalars("charts/episodic_return")[0].value == 21.5


def test_the_file_is_named_as_tensorboard_looks_for_it(tmp_path: Path) -> None:
    before = int(time.time())
    writer = ScalarWriter(tmp_path)
    writer.close()
    first, second, third, unix, rest = writer.path.name.split(".", 4)
    assert (first, second, third) == ("events", "out", "tfevents")
    assert before <= int(unix) <= time.time()
    assert f".{os.getpid()}." in f".{rest}"


def test_a_purge_step_makes_tensorboard_forget_what_a_resumed_run_does_again(tmp_path: Path) -> None:
    first = ScalarWriter(tmp_path)
    for step in (100, 200, 300, 400):
        first.add("a", step / 100, step, 1000.0 + step)
    first.close()
    resumed = ScalarWriter(tmp_path, purge_step=201)
    resumed.add("a", 33.0, 300, 2000.0)
    resumed.close()
    assert first.path.name < resumed.path.name  # also within the same second
    assert [(s.step, s.value) for s in accumulated(tmp_path).Scalars("a")] == [(100, 1.0), (200, 2.0), (300, 33.0)]


def test_writers_of_one_second_and_one_process_never_share_a_file(tmp_path: Path) -> None:
    writers = [ScalarWriter(tmp_path) for _ in range(3)]
    names = [writer.path.name for writer in writers]
    assert len(set(names)) == 3 and names == sorted(names)
    for writer in writers:
        writer.close()


def test_nothing_but_whole_records_reaches_the_file(tmp_path: Path) -> None:
    writer = ScalarWriter(tmp_path)
    reader = ScalarReader(writer.path)
    writer.add("a", 1.0, 1, 1.0)
    assert reader.read() == []
    writer.flush()
    assert reader.read() == [(1.0, 1, "a", 1.0)]
    seen = 0
    for step in range(3000):
        writer.add("a", 0.5, step, 2.0)
        if step % 100 == 0:
            seen += len(reader.read())
            assert reader.offset == writer.path.stat().st_size
    assert seen > 0  # a long wait for a flush is cut short
    writer.close()
    writer.close()
    assert seen + len(reader.read()) == 3000


def test_we_read_what_torch_writes(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_text("hyperparameters", "|param|value|")
        writer.add_scalar("charts/episodic_return", 21.5, 100, walltime=5.0)
        writer.add_scalar("losses/new", 0.25, 200, walltime=6.0, new_style=True)
        writer.add_scalar("losses/double", 1e300, 201, walltime=6.5, new_style=True, double_precision=True)
        writer.add_histogram("weights", np.array([1.0, 2.0, 3.0]), 300)
        writer.add_text("long", "x" * 200_000)
        writer.add_scalar("losses/nan", math.nan, 400, walltime=7.0)
    (path,) = tmp_path.iterdir()
    found = ScalarReader(path).read()
    assert found[:3] == [
        (5.0, 100, "charts/episodic_return", 21.5),
        (6.0, 200, "losses/new", 0.25),
        (6.5, 201, "losses/double", 1e300),
    ]
    assert found[3][:3] == (7.0, 400, "losses/nan") and math.isnan(found[3][3])
    assert len(found) == 4


def test_a_file_of_torchs_cut_at_every_byte_is_read_up_to_its_last_whole_record(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "torch")) as writer:
        for step in range(5):
            writer.add_scalar("charts/SPS", step * 2.0, step, walltime=float(step))
    (path,) = (tmp_path / "torch").iterdir()
    data = path.read_bytes()
    whole = ScalarReader(path).read()
    assert len(whole) == 5
    growing, cut = tmp_path / "growing", tmp_path / "cut"
    reader = ScalarReader(growing)
    assert reader.read() == []
    grown = []
    for size in range(len(data) + 1):
        growing.write_bytes(data[:size])
        grown += reader.read()
        cut.write_bytes(data[:size])
        assert ScalarReader(cut).read() == grown
    assert grown == whole


def test_a_corrupt_record_is_reported_after_what_stands_before_it(tmp_path: Path) -> None:
    writer = ScalarWriter(tmp_path)
    writer.add("a", 1.0, 1, 1.0)
    writer.flush()
    intact = writer.path.stat().st_size
    writer.add("b", 2.0, 2, 2.0)
    writer.close()
    data = bytearray(writer.path.read_bytes())
    for position, problem in ((intact, "not a TensorBoard record"), (intact + 20, "wrong checksum")):
        damaged = data.copy()
        damaged[position] ^= 0xFF
        writer.path.write_bytes(damaged)
        reader = ScalarReader(writer.path)
        assert reader.read() == [(1.0, 1, "a", 1.0)]
        for _ in range(2):
            with pytest.raises(EventError, match=f"at byte {intact}: .*{problem}"):
                reader.read()


def test_a_folder_that_cannot_be_written_gives_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write "):
        ScalarWriter(tmp_path / "file" / "tensorboard")
