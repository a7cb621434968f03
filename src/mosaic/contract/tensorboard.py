"""TensorBoard event files, scalars only, written and read without torch and without numpy."""

from __future__ import annotations

import itertools
import math
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mosaic.contract.errors import EventError, MosaicError, storage_error
from mosaic.contract.metrics import Tail, read_rows

_PENDING = 65536  # bytes buffered at most between two flushes
_LARGEST = 65536  # a scalar's record has about a hundred bytes; larger ones hold images, histograms, graphs
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEADER = _LENGTH.size + _CRC.size
_SERIAL = itertools.count()

Scalar = tuple[float, int, str, float]
"""(wall_time, step, tag, value)"""


class ScalarWriter:
    """Appends scalars to a new event file in `folder`; only whole records ever reach the file.

    `purge_step` makes TensorBoard discard what earlier files of the folder hold at that step and beyond: a run that
    resumed from step n passes n + 1. Not thread-safe.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        from tensorboard.compat.proto import event_pb2  # 40 ms and protobuf: only writers pay for it

        self._event_pb2 = event_pb2
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self.path = Path(folder) / _file_name(Path(folder))
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "ab", buffering=0)
        except OSError as error:
            raise storage_error(self.path, error) from None
        now = time.time()
        self._append(event_pb2.Event(wall_time=now, file_version="brain.Event:2"))
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._append(event_pb2.Event(wall_time=now, step=purge_step, session_log=start))
        self.flush()

    def add(self, tag: str, value: float, step: int, wall_time: float) -> None:
        """Add one scalar; it reaches the file with the next flush at the latest."""
        event = self._event_pb2.Event(wall_time=wall_time, step=step)
        event.summary.value.add(tag=tag, simple_value=value)
        self._append(event)

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Add the scalars of a row of metrics.jsonl."""
        for tag, value in row.items():
            if tag not in ("step", "time"):
                self.add(tag, value, row["step"], row["time"])

    def flush(self) -> None:
        """Write everything to the file, so that TensorBoard sees it now."""
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        try:
            size = os.fstat(self._file.fileno()).st_size
            try:
                while data:
                    data = data[self._file.write(data) :]
            except OSError:
                os.ftruncate(self._file.fileno(), size)
                raise
        except OSError as error:
            raise storage_error(self.path, error) from None

    def close(self) -> None:
        """Flush and close; idempotent."""
        if not self._file.closed:
            try:
                self.flush()
            finally:
                self._file.close()

    def _append(self, event: Any) -> None:
        record = _framed(event.SerializeToString())
        self._pending.append(record)
        self._pending_bytes += len(record)
        if self._pending_bytes >= _PENDING:
            self.flush()


def resumed_writer(folder: Path, metrics: Path, step: int) -> ScalarWriter:
    """Return a writer for a run that continues from `step` in its own folder, without overlap or gap.

    TensorBoard discards what lies beyond the step. Rows up to it that a killed process had logged, but not yet copied
    to an event file, come first.
    """
    copied = _newest_time(folder)
    writer = ScalarWriter(folder, purge_step=step + 1)
    try:
        rows = read_rows(metrics)
    except EventError:
        rows = []  # a bad line, which any reader of the file reports
    for row in rows:
        if row["step"] <= step and row["time"] > copied:
            writer.add_row(row)
    writer.flush()
    return writer


def _newest_time(folder: Path) -> float:
    newest = 0.0
    for path in folder.glob("events.out.tfevents.*"):
        try:
            newest = max([newest, *(scalar[0] for scalar in ScalarReader(path).read())])
        except EventError:
            continue  # nothing in it can be trusted
    return newest


class ScalarReader:
    """Reads the scalars that an event file has grown by; an incomplete record is left for the next call."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.offset = 0

    def read(self) -> list[Scalar]:
        """Return the new scalars, [] while the file does not exist.

        A corrupt record raises EventError, at every call once the scalars before it were returned: the bytes behind it
        cannot be trusted.
        """
        scalars: list[Scalar] = []
        try:
            for record, end in self._whole_records():
                if record:
                    scalars.extend(_scalars(record))
                self.offset = end
        except EventError:
            if not scalars:
                raise
        return scalars

    def _whole_records(self) -> Iterator[tuple[bytes, int]]:
        """Yield the records' bytes, b"" for a record too large to be a scalar, and the offsets of their ends."""
        try:
            file = open(self.path, "rb")
        except FileNotFoundError:
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            start = self.offset
            while start + _HEADER <= size:
                file.seek(start)
                header = file.read(_HEADER)
                (length,) = _LENGTH.unpack_from(header)
                if _CRC.unpack_from(header, _LENGTH.size)[0] != _masked_crc32c(header[: _LENGTH.size]):
                    raise EventError(f"{self.path}, at byte {start}: not a TensorBoard record")
                end = start + _HEADER + length + _CRC.size
                if end > size:
                    return
                yield (self._checked(file.read(length + _CRC.size), start) if length <= _LARGEST else b""), end
                start = end

    def _checked(self, data: bytes, start: int) -> bytes:
        record, crc = data[: -_CRC.size], data[-_CRC.size :]
        if _CRC.unpack(crc)[0] != _masked_crc32c(record):
            raise EventError(f"{self.path}, at byte {start}: a TensorBoard record with a wrong checksum")
        return record


def _file_name(folder: Path) -> str:
    """Return events.out.tfevents.<unix>.<host>.<pid>.<n>, later than every name in `folder`.

    TensorBoard reads a folder's files in the order of their names and never goes back: a run that resumes within the
    second, or after the clock was set back, must not sort before its past.
    """
    unix = int(time.time())
    for earlier in folder.glob("events.out.tfevents.*"):
        second = earlier.name.split(".")[3]
        if second.isdecimal():
            unix = max(unix, int(second) + 1)
    return f"events.out.tfevents.{unix:010d}.{socket.gethostname()}.{os.getpid()}.{next(_SERIAL)}"


def _scalars(record: bytes) -> Iterator[Scalar]:
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto import event_pb2

    try:
        event = event_pb2.Event.FromString(record)
    except DecodeError as error:
        raise EventError(f"a TensorBoard record that is no event: {error}") from None
    for value in event.summary.value:
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            yield event.wall_time, event.step, value.tag, value.simple_value
        elif kind == "tensor":
            number = _tensor_scalar(value.tensor)
            if number is not None:
                yield event.wall_time, event.step, value.tag, number


_TENSORS = {1: ("float_val", "f"), 2: ("double_val", "d"), 3: ("int_val", "i"), 9: ("int64_val", "q")}
"""TensorFlow's type number -> the field of its values, and the packing of its raw bytes."""


def _tensor_scalar(tensor: Any) -> float | None:
    """Return the one number of a tensor as newer writers store scalars; None for strings, images, histograms."""
    if tensor.dtype not in _TENSORS or math.prod(side.size for side in tensor.tensor_shape.dim) != 1:
        return None
    field, packing = _TENSORS[tensor.dtype]
    values = getattr(tensor, field)
    if not values and len(tensor.tensor_content) == struct.calcsize(packing):
        values = struct.unpack(f"<{packing}", tensor.tensor_content)
    return float(values[0]) if len(values) == 1 else None


def _framed(record: bytes) -> bytes:
    """Return the record with TFRecord's frame: its length, and a checksum of each."""
    length = _LENGTH.pack(len(record))
    return b"".join((length, _CRC.pack(_masked_crc32c(length)), record, _CRC.pack(_masked_crc32c(record))))


def _crc32c_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # Castagnoli's polynomial, reversed
        table.append(byte)
    return tuple(table)


_TABLE = _crc32c_table()


def _masked_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF  # TFRecord's mask: files hold checksums of checksums


def follow_rows(path: Path, offset: int, folder: Path) -> Callable[[], None]:
    """Copy rows of metrics.jsonl to an event file in a thread, off the training loop; return its stop function."""
    stop = threading.Event()
    tail = Tail(path, offset)
    writer = ScalarWriter(folder)

    def copy_rows() -> None:
        nonlocal writer
        for row in tail.read():
            if "resumed_from" in row:
                writer.close()
                writer = resumed_writer(folder, path, row["resumed_from"])
            else:
                writer.add_row(row)
        writer.flush()

    def follow() -> None:
        try:
            while not stop.wait(1.0):
                copy_rows()
            copy_rows()
            writer.close()
        except MosaicError as error:
            print(f"TensorBoard ended early, training goes on: {error}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=follow, name="tensorboard", daemon=True)
    thread.start()

    def close() -> None:
        stop.set()
        thread.join()

    return close
