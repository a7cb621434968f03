"""Live frames for readers that cannot see a run's ring: read from it, or sent by a remote worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mosaic.contract.errors import ConfigError
from mosaic.contract.frame_messages import frame_message
from mosaic.contract.frames import FastLaneReader, Frame, RingError
from mosaic.contract.happenings import Happenings
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.trainer.registry.registry import Registry
from mosaic.trainer.states import ENDED

DEFAULT_FPS, MOST_FPS = 30.0, 60.0
# The interval at which a reader without frames gets the reason.
REASON_SECONDS = 1.0
NO_RING = "the run shows nothing yet: it has not started, or its live view is off"


@dataclass
class _Lane:
    """A remote run's newest frame, and its number of viewers."""

    frame: pb.Frame | None = None
    viewers: int = 0


class FrameHub:
    """The viewers of remote runs and the newest frame of each run."""

    def __init__(self, registry: Registry, happenings: Happenings) -> None:
        self._registry = registry
        self._happenings = happenings
        self._lanes: dict[str, _Lane] = {}
        self._changed = threading.Condition()

    def stream(self, run_id: str, max_fps: float, active: Callable[[], bool]) -> Iterator[pb.Frame]:
        """Yield frames of a run as they arrive, at most `max_fps` per second, to its end; without one, the reason."""
        if not 0 <= max_fps <= 1e6:
            raise ConfigError("max_fps is a number of frames per second, 0 or more")
        self._is_local(run_id)  # refuse an unknown run now, not with the first frame
        return self._told(run_id, self._found(run_id, 1.0 / min(MOST_FPS, max_fps or DEFAULT_FPS), active))

    def _found(self, run_id: str, pause: float, active: Callable[[], bool]) -> Iterator[pb.Frame]:
        """Yield frames from the ring or the worker; only the worker's first message reveals if its files are local."""
        if self._is_local(run_id):
            yield from self._from_ring(run_id, pause, active)
        if not self._is_local(run_id):
            yield from self._from_worker(run_id, pause, active)

    def _told(self, run_id: str, frames: Iterator[pb.Frame]) -> Iterator[pb.Frame]:
        """Yield the same frames, and log the viewer's first frame, each reason, and a final count."""
        sent, passed, last, reason = 0, 0, 0, ""
        try:
            for frame in frames:
                if frame.data:
                    if not sent or reason:
                        self._happenings.note("fastlane.connected", run_id, size=f"{frame.width}x{frame.height}")
                    passed += max(0, frame.index - last - 1) if sent and frame.index > last else 0
                    sent, last, reason = sent + 1, frame.index, ""
                elif frame.reason != reason:
                    reason = frame.reason
                    self._happenings.note("fastlane.unavailable", run_id, reason=reason)
                yield frame
        finally:
            self._happenings.note("fastlane.frame_published", run_id, frames=sent)
            self._happenings.note("fastlane.queue_depth", run_id, passed_over=passed)

    def put(self, run_id: str, frame: pb.Frame) -> None:
        """Store a remote worker's newest frame."""
        with self._changed:
            self._lanes.setdefault(run_id, _Lane()).frame = frame
            self._changed.notify_all()

    def wanted(self, run_id: str) -> bool:
        """Return True if somebody watches."""
        with self._changed:
            return run_id in self._lanes and self._lanes[run_id].viewers > 0

    def _from_ring(self, run_id: str, pause: float, active: Callable[[], bool]) -> Iterator[pb.Frame]:
        record, reader, seen, told = self._registry.paths(run_id).fastlane, None, (0, ""), 0.0
        trouble: set[str] = set()
        try:
            while active():
                if reader is None:
                    reader = self._opened(run_id, record, trouble)
                frame = None if reader is None else self._read(run_id, reader, seen, trouble)
                if reader is not None and frame is not None:
                    seen = (frame.index, reader.name)
                    yield frame_message(run_id, frame, reader)
                    told = time.monotonic()
                elif time.monotonic() - told >= REASON_SECONDS:
                    told = time.monotonic()
                    if self._over(run_id) or not self._is_local(run_id):
                        return
                    reason = NO_RING if reader is None else reader.status().reason
                    if reason:
                        yield pb.Frame(run_id=run_id, reason=reason)
                if reader is None:
                    time.sleep(pause)
                else:
                    reader.wait(seen[0], 0.0 if frame is None else pause)
        finally:
            if reader is not None:
                reader.close()

    def _from_worker(self, run_id: str, pause: float, active: Callable[[], bool]) -> Iterator[pb.Frame]:
        with self._changed:
            lane = self._lanes.setdefault(run_id, _Lane())
            lane.viewers += 1
        seen: pb.Frame | None = None
        try:
            while active():
                with self._changed:
                    if lane.frame is seen:
                        self._changed.wait(REASON_SECONDS)
                    frame = lane.frame
                if frame is not None and frame is not seen:
                    seen = frame
                    yield frame
                    time.sleep(pause)
                elif self._over(run_id):
                    return
        finally:
            with self._changed:
                lane.viewers -= 1
                if not lane.viewers:
                    self._lanes.pop(run_id, None)

    def _is_local(self, run_id: str) -> bool:
        with self._registry.database.read() as connection:
            row = self._registry.row(connection, run_id)
        return bool(row["reads_files"]) and row["executor"] == "local"

    def _over(self, run_id: str) -> bool:
        return self._registry.get_run(run_id).state in ENDED

    def _opened(self, run_id: str, record: Path, trouble: set[str]) -> FastLaneReader | None:
        try:
            return FastLaneReader.open(record)
        except (RingError, OSError) as error:
            if record.exists():  # a ring exists, or did
                self._say_once("fastlane.header_invalid", run_id, str(error), trouble)
            return None

    def _read(self, run_id: str, reader: FastLaneReader, seen: tuple[int, str], trouble: set[str]) -> Frame | None:
        try:
            return reader.latest_frame(seen[0] if seen[1] == reader.name else 0)
        except (RingError, OSError) as error:
            self._say_once("fastlane.frame_read_error", run_id, str(error), trouble)
            return None

    def _say_once(self, name: str, run_id: str, text: str, said: set[str]) -> None:
        if text not in said:
            said.add(text)
            self._happenings.warn(name, run_id, error=text)
