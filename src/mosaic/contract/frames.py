"""Live frames of a run: the reader of its FastLane ring, and the removal of rings whose creator is dead."""

from __future__ import annotations

import contextlib
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mosaic.contract.files import RING, read_note
from mosaic.contract.ring import (
    CLOSED,
    HEADER,
    MAGIC,
    REPLACED,
    SLOT_HEADER,
    SLOTS,
    VIEWER_SECONDS,
    WRITER_SECONDS,
    FastLaneWriter,
    Head,
    RingError,
    Slot,
    attach,
    base36,
    end,
    fence,
    pid_namespace,
    ring_name,
    run_digest,
    start_ticks,
)

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "FastLaneReader",
    "FastLaneWriter",
    "Frame",
    "RingError",
    "Status",
    "dead_rings",
    "encode_png",
    "end",
    "ring_name",
    "sweep",
]

SHM_FOLDER = Path("/dev/shm")

# Level 3 without row filters: 1.5 ms and 6 kB for CartPole's 600×400, 2 ms and 41 kB for MuJoCo's 480×480. Level 4
# halves the flat ones in twice the time; filters help none of them as much.
PNG_LEVEL = 3

# A ring without a header was left incomplete by its creator's death, or one of another container is just creating it.
MAKING_SECONDS = 3.0

# A waiting reader polls for a newer frame at this interval: a word in memory. At 30 polls a second a frame waited 17 ms
# on average; at 125 they cost half a hundredth of a core.
LOOK_SECONDS = 0.008


@dataclass(frozen=True)
class Frame:
    """One frame and the numbers of the step it shows."""

    index: int
    """counts from 1 in each ring"""
    width: int
    height: int
    channels: int
    pixels: bytes
    last_reward: float
    rolling_return: float
    step_rate_hz: float
    step: int
    """environment steps of the run so far"""
    time: float
    """`time.monotonic` when the frame was drawn"""

    @property
    def array(self) -> np.ndarray:
        """Return the pixels as bytes of shape (height, width, channels); not writeable."""
        import numpy as np

        return np.frombuffer(self.pixels, np.uint8).reshape(self.height, self.width, self.channels)


@dataclass(frozen=True)
class Status:
    """The state in a ring's header, without frames."""

    state: str
    """live, replaced (a larger ring has its name) or closed, also by the death of its creator"""
    label: str
    """what is shown, if not plain training: (Eval), (Probe)"""
    reason: str
    """why no frame arrives; empty while frames arrive"""
    note: str
    """a line to show beneath, such as an evaluation's latest summary"""
    written: int
    dropped: int
    width: int
    height: int
    channels: int
    last_reward: float
    rolling_return: float
    step_rate_hz: float
    frame_rate_hz: float
    writer_age: float
    """seconds since the writer's last heartbeat"""
    watched: bool


def creator_lives(name: str) -> bool:
    """Return True if the process that a ring is named after still runs."""
    pid, ticks = _identity(name)
    return base36(start_ticks(pid) or 0) == ticks and start_ticks(pid) is not None


def sweep(run_id: str | None = None) -> list[str]:
    """Remove the rings of one run or of all whose creator is dead, and only those; return their names.

    A reader that still watches one sees that its run has ended. Where shared memory cannot be listed (macOS) nothing is
    found; `end` accepts a name.
    """
    removed = []
    for path in dead_rings(run_id):
        with contextlib.suppress(OSError, ValueError):  # gone by now, or somebody else's
            if end(path.name):
                removed.append(path.name)
    return removed


def dead_rings(run_id: str | None = None) -> Iterator[Path]:
    """Yield the rings whose creator is dead; skip those of other containers, whose creators are not visible."""
    prefix = "fl-" if run_id is None else f"fl-{run_digest(run_id)}-"
    for path in sorted(SHM_FOLDER.glob(prefix + "*")) if SHM_FOLDER.is_dir() else ():
        with contextlib.suppress(OSError, ValueError):  # gone by now, or no ring's name
            if not creator_lives(path.name) and _is_of_this_namespace(path):
                yield path


class FastLaneReader:
    """The reader of a ring; reading makes the writer draw. It never blocks or damages the ring, however it ends."""

    def __init__(self, name: str, record: Path | None = None) -> None:
        self.name = name
        self._record = record
        self._ring = attach(name)
        self._asked = time.monotonic()

    @classmethod
    def attach(cls, name: str) -> FastLaneReader:
        """Return a reader of the ring of this name; raise RingError if it does not exist."""
        return cls(name)

    @classmethod
    def open(cls, record: Path | str) -> FastLaneReader:
        """Return a reader of the ring in a run's fastlane.json (`RunPaths.fastlane`) and of its later rings."""
        return cls(_recorded_name(Path(record)), Path(record))

    def latest_frame(self, after: int = 0) -> Frame | None:
        """Return the newest frame if it is newer than `after`, else None; counts as watching."""
        self.watch()
        for _ in range(SLOTS):  # the writer wrote while we read: its next frame is already there
            index = self._ring.words[Head.WRITTEN]
            if index == 0 or index == after:
                return None
            frame = self._read(index)
            if frame is not None:
                return frame
        return None

    def watch(self) -> None:
        """Notify the writer of a viewer; due at least once a second while nothing is read."""
        self._follow()
        self._ring.floats[Head.VIEWER_BEAT] = time.monotonic()

    def wait(self, after: int, shortest: float) -> None:
        """Sleep for `shortest` seconds, then until a frame newer than `after` exists, a tenth of a second at most."""
        time.sleep(max(shortest, LOOK_SECONDS))  # also if the written frame cannot be read
        end = time.monotonic() + 0.1
        # a ring that has just replaced another has no frame yet
        while self._ring.words[Head.WRITTEN] in (0, after) and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)

    def status(self) -> Status:
        """Return the header's state; does not count as watching."""
        self._follow()
        ring, now = self._ring, time.monotonic()
        state = CLOSED if self._is_abandoned(now) else min(ring.words[Head.STATE], CLOSED)
        return Status(
            state=("live", "replaced", "closed")[state],
            label=ring.read_text("label"),
            reason=ring.read_text("reason"),
            note=ring.read_text("note"),
            written=ring.words[Head.WRITTEN],
            dropped=ring.words[Head.DROPPED],
            width=ring.words[Head.WIDTH],
            height=ring.words[Head.HEIGHT],
            channels=ring.words[Head.CHANNELS],
            last_reward=ring.floats[Head.LAST_REWARD],
            rolling_return=ring.floats[Head.ROLLING_RETURN],
            step_rate_hz=ring.floats[Head.STEP_RATE],
            frame_rate_hz=ring.floats[Head.FRAME_RATE],
            writer_age=now - ring.floats[Head.WRITER_BEAT],
            watched=now - ring.floats[Head.VIEWER_BEAT] < VIEWER_SECONDS,
        )

    def close(self) -> None:
        """Detach; the ring stays."""
        self._ring.close()

    def __enter__(self) -> FastLaneReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self, index: int) -> Frame | None:
        ring = self._ring
        at = ring.slot(index)
        word = at // 8
        sequence = ring.words[word + Slot.SEQ]
        fence()
        width, height, channels = (int(ring.words[word + n]) for n in (Slot.WIDTH, Slot.HEIGHT, Slot.CHANNELS))
        size = width * height * channels
        if sequence % 2 or size > ring.words[Head.CAPACITY]:
            return None
        pixels = bytes(ring.bytes[at + SLOT_HEADER : at + SLOT_HEADER + size])
        found, step = int(ring.words[word + Slot.INDEX]), int(ring.words[word + Slot.STEP])
        names = (Slot.LAST_REWARD, Slot.ROLLING_RETURN, Slot.STEP_RATE, Slot.DRAWN_AT)
        numbers = [ring.floats[word + name] for name in names]
        fence()
        if ring.words[word + Slot.SEQ] != sequence or found != index:
            return None
        reward, ret, step_rate, drawn_at = numbers
        return Frame(found, width, height, channels, pixels, reward, ret, step_rate, step, drawn_at)

    def _is_abandoned(self, now: float) -> bool:
        """Return True if the writer is silent because its process was killed and its ring was not yet removed."""
        ring = self._ring
        silent = now - ring.floats[Head.WRITER_BEAT] > WRITER_SECONDS
        return silent and ring.words[Head.NAMESPACE] == pid_namespace() and not creator_lives(self.name)

    def _follow(self) -> None:
        """Switch to the ring that replaced this one: a larger one, or that of the run's next start."""
        now, state = time.monotonic(), self._ring.words[Head.STATE]
        # The ring of a killed run never changes: only the record names the next.
        if state != REPLACED and (self._record is None or now - self._asked < 1.0):
            return
        self._asked = now
        with contextlib.suppress(RingError):
            name = self.name if self._record is None else _recorded_name(self._record)
            if name == self.name and state != REPLACED:
                return
            fresh = attach(name)
            self._ring.close()
            self._ring, self.name = fresh, name


def encode_png(frame: np.ndarray) -> bytes:
    """Encode a picture of shape (height, width, 3), in bytes, as PNG."""
    import numpy as np

    height, width, _ = frame.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # a row begins with the number of its filter; 0 is none
    rows[:, 1:] = frame.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits a channel, RGB, not interlaced
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.data, PNG_LEVEL)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _recorded_name(record: Path) -> str:
    found = read_note(record, RING)
    if not found:
        raise RingError(f"{record} names no live view: the run has not started, or was started without one")
    return str(found["name"])


def _identity(name: str) -> tuple[int, str]:
    """Return pid and start of the process that a ring is named after; raise ValueError for another kind of name."""
    kind, _, pid, ticks = name.split("-")
    if kind != "fl":
        raise ValueError(name)
    return int(pid), ticks


def _is_of_this_namespace(path: Path) -> bool:
    with path.open("rb") as file:
        header = file.read(HEADER)
    if len(header) < HEADER or int.from_bytes(header[:8], sys.byteorder) != MAGIC:
        return time.time() - path.stat().st_mtime > MAKING_SECONDS
    return int.from_bytes(header[8 * Head.NAMESPACE : 8 * Head.NAMESPACE + 8], sys.byteorder) == pid_namespace()
