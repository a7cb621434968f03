"""The FastLane ring: the layout of a run's live frames in shared memory, and their writer.

People's own interpreters load this file by its path: only Python 3.8 and those parts of the standard library that load
instantly, since opening the ring is all that watching adds to an algorithm's start. One process writes, any number
read, in any order of starting and dying.

A ring is a page of header and three slots. A slot's sequence number is odd while its pixels are written; a reader that
finds the same even number before and after has a whole frame. Nobody ever waits for anybody. Times are those of
`time.monotonic`, which the processes of a machine share.
"""

from __future__ import annotations

import _posixshmem  # shm_open without the resource tracker of multiprocessing.shared_memory
import contextlib
import errno
import mmap
import os
import struct
import sys
import time
import zlib
from _thread import allocate_lock  # without threading, which the algorithm may load later
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

try:  # hashlib would load OpenSSL, for ten digits
    from _sha2 import sha256  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found, no-redef, unused-ignore]  # before Python 3.12
    except ImportError:  # an interpreter built with OpenSSL's alone
        from hashlib import sha256

MAGIC = int.from_bytes(b"MOSAICFL", "little")
LAYOUT = 1
SLOTS = 3  # one to read, one to write, one between them; only the newest frame counts
HEADER = 4096
SLOT_HEADER = 128
VIEWER_SECONDS = 2.0  # a viewer polls several times a second; after this long without, nobody watches
WRITER_SECONDS = 5.0
LIVE, REPLACED, CLOSED = range(3)

# Texts of the header: their offset and their maximum bytes.
TEXTS = {"label": (256, 120), "reason": (512, 500), "note": (1024, 500)}


class Head:
    """Offsets of the header's 8-byte words: integers, then floats."""

    MAGIC, LAYOUT, SLOTS, CAPACITY, WRITTEN, WIDTH, HEIGHT, CHANNELS, DROPPED, STATE, PID, NAMESPACE = range(12)
    LAST_REWARD, ROLLING_RETURN, STEP_RATE, FRAME_RATE, WRITER_BEAT, VIEWER_BEAT = range(16, 22)


class Slot:
    """Offsets of a slot header's words: integers, then floats."""

    SEQ, INDEX, WIDTH, HEIGHT, CHANNELS, STEP = range(6)
    LAST_REWARD, ROLLING_RETURN, STEP_RATE, DRAWN_AT = range(8, 12)


class RingError(Exception):
    """A ring that is missing, has another layout, or does not fit into memory; the text has the reason."""


def ring_name(run_id: str, pid: int | None = None) -> str:
    """Return the ring's name of a run whose algorithm is this process, or `pid`; under 30 characters, macOS's limit."""
    pid = os.getpid() if pid is None else pid
    return f"fl-{run_digest(run_id)}-{pid}-{base36(start_ticks(pid) or 0)}"


def start_ticks(pid: int) -> int | None:
    """Return a process's start time in kernel ticks, which with the pid identifies it; None if it is dead."""
    if not sys.platform.startswith("linux"):
        return 0 if _answers(pid) else None
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def remove(name: str) -> bool:
    """Unlink a ring's name, whoever created it; processes that have it mapped keep it."""
    try:
        _posixshmem.shm_unlink("/" + name)
    except FileNotFoundError:
        return False
    return True


def end(name: str) -> bool:
    """Mark a ring as closed for its readers, and unlink its name."""
    with contextlib.suppress(RingError, OSError):
        ring = attach(name)
        ring.words[Head.STATE] = CLOSED
        ring.close()
    return remove(name)


class Mapping:
    """A ring's memory as words, floats and bytes."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.memory = mmap.mmap(descriptor, size)
        self.size = size
        self.bytes = memoryview(self.memory)
        self.words = self.bytes[: size // 8 * 8].cast("Q")
        self.floats = self.bytes[: size // 8 * 8].cast("d")

    @property
    def stride(self) -> int:
        return SLOT_HEADER + -(-int(self.words[Head.CAPACITY]) // 64) * 64

    def slot(self, index: int) -> int:
        """Return the offset of a frame's slot."""
        return HEADER + (index % SLOTS) * self.stride

    def read_text(self, field: str) -> str:
        """Return a text, or "" while it is being written."""
        start, room = TEXTS[field]
        for _ in range(4):
            checksum, length = struct.unpack_from("=II", self.bytes, start)
            data = bytes(self.bytes[start + 8 : start + 8 + min(length, room)])
            if zlib.crc32(data) == checksum:
                return data.decode("utf-8", "replace")
        return ""

    def write_text(self, field: str, text: str) -> None:
        start, room = TEXTS[field]
        data = " ".join(text.split()).encode()[:room].decode("utf-8", "ignore").encode()  # cut between letters
        self.bytes[start + 8 : start + 8 + len(data)] = data
        struct.pack_into("=II", self.bytes, start, zlib.crc32(data), len(data))

    def close(self) -> None:
        for view in (self.words, self.floats, self.bytes):
            view.release()
        self.memory.close()


class FastLaneWriter:
    """The writer of a run's ring; a frame that does not fit enlarges it.

    The ring is named after the algorithm's process. Another of its processes (an environment's, a renderer's) may write
    in its place, one at a time; only the first removes the ring.
    """

    def __init__(self, name: str, ring: Mapping, pid: int) -> None:
        self.name, self.pid = name, pid
        self._ring = ring

    @classmethod
    def create(cls, run_id: str, record: Path | str | None = None) -> FastLaneWriter:
        """Create a ring of this process, still without room for frames; `record` is the run's fastlane.json.

        Raise RingError if shared memory is full.
        """
        pid = os.getpid()
        name = ring_name(run_id, pid)
        remove(name)  # an earlier one of this same process
        ring = _create(name, 0, pid)
        if record is not None:
            _write_record(str(record), run_id, name, pid)
        return cls(name, ring, pid)

    @classmethod
    def stand_in(cls, name: str) -> FastLaneWriter:
        """Write into another process's ring in its place; raise RingError if it does not exist."""
        ring = attach(name)
        return cls(name, ring, ring.words[Head.PID])

    @property
    def watched(self) -> bool:
        """Return True if somebody has watched just now."""
        return time.monotonic() - self._current().floats[Head.VIEWER_BEAT] < VIEWER_SECONDS

    @property
    def reason(self) -> str:
        """Return the header's reason why no frame arrives, whichever process wrote it."""
        return self._current().read_text("reason")

    @property
    def size(self) -> int:
        """Return the bytes of shared memory that the ring uses."""
        return self._ring.size

    def publish(
        self,
        pixels: Any,
        width: int,
        height: int,
        channels: int = 3,
        *,
        last_reward: float = 0.0,
        rolling_return: float = 0.0,
        step_rate_hz: float = 0.0,
        frame_rate_hz: float = 0.0,
        step: int = 0,
        drawn_at: float | None = None,
    ) -> None:
        """Publish a frame (any contiguous buffer of height·width·channels bytes); it replaces the ring's oldest."""
        data = memoryview(pixels).cast("B")
        if len(data) != width * height * channels or not len(data):
            raise ValueError(
                f"a frame of {width}×{height}×{channels} has {width * height * channels} bytes, not {len(data)}"
            )
        if len(data) > self._current().words[Head.CAPACITY]:
            self._grow(len(data))
        ring = self._ring
        index = ring.words[Head.WRITTEN] + 1
        at = ring.slot(index)
        word = at // 8
        numbers = (last_reward, rolling_return, step_rate_hz)
        ring.words[word + Slot.SEQ] = sequence = ring.words[word + Slot.SEQ] | 1
        fence()
        shape = {Slot.WIDTH: width, Slot.HEIGHT: height, Slot.CHANNELS: channels}
        for field, value in {**shape, Slot.INDEX: index, Slot.STEP: step}.items():
            ring.words[word + field] = value
        for field, number in zip((Slot.LAST_REWARD, Slot.ROLLING_RETURN, Slot.STEP_RATE), numbers):
            ring.floats[word + field] = number
        ring.floats[word + Slot.DRAWN_AT] = time.monotonic() if drawn_at is None else drawn_at
        ring.bytes[at + SLOT_HEADER : at + SLOT_HEADER + len(data)] = data
        fence()
        ring.words[word + Slot.SEQ] = sequence + 1
        fence()
        ring.words[Head.WIDTH], ring.words[Head.HEIGHT], ring.words[Head.CHANNELS] = width, height, channels
        for field, number in zip((Head.LAST_REWARD, Head.ROLLING_RETURN, Head.STEP_RATE), numbers):
            ring.floats[field] = number
        ring.floats[Head.FRAME_RATE] = frame_rate_hz
        ring.words[Head.WRITTEN] = index
        self.beat()

    def beat(self) -> None:
        """Send a heartbeat without a frame."""
        self._ring.floats[Head.WRITER_BEAT] = time.monotonic()

    def drop(self) -> None:
        """Count a frame that was due and could not be shown."""
        self._ring.words[Head.DROPPED] += 1

    def tell(self, *, reason: str | None = None, label: str | None = None, note: str | None = None) -> None:
        """Change the header's texts; None leaves a text unchanged."""
        for field, text in (("reason", reason), ("label", label), ("note", note)):
            if text is not None:
                self._current().write_text(field, text)
        self.beat()

    def close(self) -> None:
        """Detach; the process that the ring is named after also removes it."""
        if self.pid == os.getpid():
            self._ring.words[Head.STATE] = CLOSED
            end(self.name)  # a stand-in may have created a larger one under the same name: it must be closed, too
        self._ring.close()

    def _current(self) -> Mapping:
        """Return the ring under this name: a stand-in may have created a larger one."""
        if self._ring.words[Head.STATE] == REPLACED:
            with contextlib.suppress(RingError):
                fresh = attach(self.name)
                self._ring.close()
                self._ring = fresh
        return self._ring

    def _grow(self, capacity: int) -> None:
        """Create a ring whose slots hold `capacity` bytes, under the same name; texts and viewers are kept."""
        old = self._ring
        remove(self.name)
        try:
            self._ring = _create(self.name, capacity, self.pid, old)
        except RingError:
            with contextlib.suppress(RingError):
                self._ring = _create(self.name, 0, self.pid, old)
            raise
        finally:
            if self._ring is not old:
                old.words[Head.STATE] = REPLACED  # last: a reader of this state finds the new one
                old.close()


def _create(name: str, capacity: int, pid: int, old: Mapping | None = None) -> Mapping:
    """Create a ring that is valid once its magic number is readable, with the texts and viewers of `old`."""
    stride = SLOT_HEADER + -(-capacity // 64) * 64
    size = HEADER + (SLOTS * stride if capacity else 0)
    descriptor = _posixshmem.shm_open("/" + name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode=0o600)
    try:
        os.ftruncate(descriptor, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)  # or the first write to a full /dev/shm would be a SIGBUS
        ring = Mapping(descriptor, size)
    except OSError as error:
        remove(name)
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise
        raise RingError(f"shared memory (/dev/shm) has no room for {size:,} bytes of frames; enlarge it") from error
    finally:
        os.close(descriptor)
    if old is not None:
        ring.bytes[:HEADER] = old.bytes[:HEADER]
    words = {
        Head.MAGIC: 0,
        Head.LAYOUT: LAYOUT,
        Head.SLOTS: SLOTS,
        Head.CAPACITY: capacity,
        Head.STATE: LIVE,
        Head.PID: pid,
    }
    for word, value in {**words, Head.NAMESPACE: pid_namespace()}.items():
        ring.words[word] = value
    ring.floats[Head.WRITER_BEAT] = time.monotonic()
    fence()
    ring.words[Head.MAGIC] = MAGIC
    return ring


def attach(name: str) -> Mapping:
    """Map an existing ring; raise RingError if it does not exist, or this version cannot read it."""
    try:
        descriptor = _posixshmem.shm_open("/" + name, os.O_RDWR, mode=0o600)
    except OSError as error:
        raise RingError(f"there is no live view {name}: {error.strerror}; has its run ended?") from None
    try:
        size = os.fstat(descriptor).st_size
        if size < HEADER:
            raise RingError(f"the live view {name} is just being made; try again")
        ring = Mapping(descriptor, size)
    finally:
        os.close(descriptor)
    magic, layout = ring.words[Head.MAGIC], ring.words[Head.LAYOUT]
    if magic != MAGIC or layout != LAYOUT:
        ring.close()
        what = f"has layout {layout}, this version reads {LAYOUT}" if magic == MAGIC else "is no ring, or not yet one"
        raise RingError(f"the live view {name} {what}")
    return ring


def _write_record(path: str, run_id: str, name: str, pid: int) -> None:
    """Write the ring's name to a file; not fsynced, since a ring does not survive a crash of the machine either."""
    beside = f"{path}.{pid}.tmp"
    with open(beside, "w") as file:
        # By hand: a run id has letters, digits, - and _ only.
        file.write(f'{{"version": {LAYOUT}, "run_id": "{run_id}", "name": "{name}", "pid": {pid}}}')
    os.replace(beside, path)


def fence() -> None:
    """Order the stores before it before those after it, also on processors that reorder stores."""
    for _ in range(2):  # a release, then an acquire: neither alone stops both directions
        with allocate_lock():  # one of its own: a fork must find none held
            pass


def run_digest(run_id: str) -> str:
    return sha256(run_id.encode()).hexdigest()[:10]


def pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def base36(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = ""
    while number or not text:
        number, digit = divmod(number, 36)
        text = digits[digit] + text
    return text
