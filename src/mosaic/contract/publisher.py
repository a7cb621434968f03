"""Publisher: sends a run's files to a remote daemon as they grow, and receives its commands."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from mosaic.contract.channel import Address, credentials, open_channel
from mosaic.contract.errors import EventError, MosaicError
from mosaic.contract.events import decode, to_line
from mosaic.contract.fields import EVENT_BYTES
from mosaic.contract.lane_sender import LaneSender
from mosaic.contract.lines import EVENT_DROPPED, Lines, over, read_lines
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.contract.proto import trainer_pb2_grpc

if TYPE_CHECKING:
    from mosaic.contract.paths import RunPaths

POLL_SECONDS = 0.25
BATCH_BYTES = 1 << 20
# The time a finished worker waits for the daemon to store its last events.
FLUSH_SECONDS = 15.0
RETRY_SECONDS = 2.0
# A daemon that receives nothing for a minute considers a run lost.
ALIVE_SECONDS = 5.0
PAUSE, GO_ON, CANCEL = "pause", "go_on", "cancel"

Order = Callable[[str, float], object]
"""accepts PAUSE, GO_ON or CANCEL, and the grace period of the last"""


class Publisher:
    """Sends a run's files to a remote daemon from its own thread; the files are the buffer, so nothing is lost.

    The daemon reports what it has stored; after a disconnect, or a restart of either side, sending resumes from there.
    """

    def __init__(
        self, address: Address, session: str, paths: RunPaths, order: Order, *, only_orders: bool = False
    ) -> None:
        """With `only_orders`, send no files: the daemon reads them itself, and every event would be duplicated."""
        self._address, self._session, self._order, self._only_orders = address, session, order, only_orders
        self._exit: pb.Exit | None = None
        self._exit_stored = False
        self._said = 0.0
        self._run_id, self._events_path, self._metrics_path = paths.run_id, paths.events, paths.metrics
        self._stored = (-1, -1)
        self._credits = 0
        self._starved = False
        self._seq, self._events_offset, self._metrics_offset, self._searched = 0, 0, 0, 0
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self.refused = ""
        """why the daemon refuses this attempt: it was replaced, has ended, or is unknown there"""
        self._frames = LaneSender(address, session, paths)
        self._thread = threading.Thread(target=self._work, name="publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._frames.start()

    def close(self, seconds: float = FLUSH_SECONDS, exit: tuple[int, str] | None = None) -> str | None:
        """Wait until the daemon has everything, also the worker's exit status; return a line if it does not."""
        self._exit = None if exit is None else pb.Exit(code=exit[0], signal=exit[1])
        self._frames.close()
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(seconds)
        if self._thread.is_alive() or self.refused:
            why = self.refused or "it does not answer"
            return f"the trainer daemon at {self._address.target} did not get the last events: {why}"
        return None

    def _work(self) -> None:
        while not self.refused:
            try:
                with contextlib.closing(open_channel(self._address)) as channel:
                    if self._converse(trainer_pb2_grpc.TrainerStub(channel)):
                        return
            except grpc.RpcError as error:
                if error.code() in FINAL:
                    self.refused = error.details() or error.code().name
                    return
            except MosaicError as error:  # a certificate that cannot be read
                self.refused = str(error)
                return
            time.sleep(RETRY_SECONDS)

    def _converse(self, stub: Any) -> bool:
        """Run one stream; return True once everything is stored and the worker is done."""
        self._stored, self._credits, self._starved = (-1, -1), 0, False
        outgoing: queue.SimpleQueue[pb.TelemetryBatch | None] = queue.SimpleQueue()
        outgoing.put(pb.TelemetryBatch(run_id=self._run_id))
        stream = stub.PublishTelemetry(iter(outgoing.get, None), metadata=credentials(self._address, self._session))
        failure: list[grpc.RpcError] = []
        listener = threading.Thread(target=self._listen, args=(stream, failure), daemon=True)
        listener.start()
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._stored[0] >= 0 or failure, timeout=RETRY_SECONDS * 5)
            if self._stored[0] < 0:
                raise failure[0] if failure else _Silent()
            self._seek(*self._stored)
            self._exit_stored = exit_sent = False
            while not failure:
                last = self._closing.is_set()
                sent = self._send(outgoing)
                if last and not sent and self._everything_is_stored():
                    if self._exit is None or self._exit_stored:
                        return True
                    if not exit_sent:
                        outgoing.put(pb.TelemetryBatch(exit=self._exit))
                        exit_sent = True
                if not sent:
                    with self._changed:
                        self._changed.wait(POLL_SECONDS)
            raise failure[0]
        finally:
            outgoing.put(None)
            stream.cancel()

    def _listen(self, stream: Any, failure: list[grpc.RpcError]) -> None:
        try:
            for control in stream:
                self._hear(control)
            failure.append(_Silent())
        except grpc.RpcError as error:
            failure.append(error)
        with self._changed:
            self._changed.notify_all()

    def _hear(self, control: pb.Control) -> None:
        kind = control.WhichOneof("control")
        if kind in (PAUSE, GO_ON, CANCEL):
            self._order(kind, control.cancel.grace_seconds)
        with self._changed:
            if kind == "stored":
                self._stored = (control.stored.next_seq, control.stored.metrics_offset)
                self._exit_stored = control.stored.exit
            elif kind == "credits":
                self._credits += control.credits.credits
            elif kind in ("starved", "resumed"):
                self._starved = kind == "starved"
                if not self._starved:
                    self._seek(*self._stored)
            self._changed.notify_all()

    def _seek(self, next_seq: int, metrics_offset: int) -> None:
        """Resume from what the daemon has stored."""
        if next_seq != self._seq:
            self._seq, self._events_offset = next_seq, 0  # the earlier lines are read once more, and skipped
        self._metrics_offset = metrics_offset

    def _send(self, outgoing: queue.SimpleQueue[pb.TelemetryBatch | None]) -> bool:
        """Send new data, within the daemon's credit; return True if any was sent."""
        if time.monotonic() - self._said >= ALIVE_SECONDS:
            self._said = time.monotonic()
            outgoing.put(pb.TelemetryBatch())
        if self._only_orders:
            return False
        if self._starved:
            outgoing.put(pb.TelemetryBatch())  # asks whether the daemon has room again
            time.sleep(RETRY_SECONDS)
            return False
        batch = pb.TelemetryBatch(metrics_offset=self._metrics_offset)
        self._add_events(batch)
        batch.metrics = _new_bytes(self._metrics_path, self._metrics_offset)
        if not batch.events and not batch.metrics:
            return False
        self._metrics_offset += len(batch.metrics)
        with self._changed:
            self._credits -= len(batch.events)
        outgoing.put(batch)
        return True

    def _add_events(self, batch: pb.TelemetryBatch) -> None:
        found = read_lines(self._events_path, self._events_offset, EVENT_BYTES, searched=self._searched)
        self._searched = found.searched
        for line, end in zip(found.lines, found.ends, strict=True):
            with contextlib.suppress(EventError):
                event = decode(line)
                while self._seq < event.seq and len(batch.events) < self._credits:
                    batch.events.add(event="warning", seq=self._seq, timestamp=event.timestamp, payload=_dropped(found))
                    self._seq += 1
                if len(batch.events) >= self._credits:
                    return
                if event.seq == self._seq:
                    payload = to_line(event.payload).rstrip(b"\n")
                    batch.events.add(event=event.event, seq=event.seq, timestamp=event.timestamp, payload=payload)
                    self._seq += 1
            self._events_offset = end
        self._events_offset = found.end

    def _everything_is_stored(self) -> bool:
        with self._changed:
            return self._only_orders or (self._stored == (self._seq, self._metrics_offset) and not self._starved)


class _Silent(grpc.RpcError):
    """A stream that ended, or never began."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "it does not answer"


# The daemon would answer the same the next time.
FINAL = (
    *(grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT),
    *(grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION),
)


def _dropped(found: Lines) -> bytes:
    """Return the payload of a warning in place of an event that cannot be sent: the daemon accepts no gap."""
    why = over(max(found.dropped), EVENT_BYTES) if found.dropped else "its line in worker.jsonl is not an event"
    return to_line({"message": f"{EVENT_DROPPED}: {why}"}).rstrip(b"\n")


def _new_bytes(path: Path, offset: int) -> bytes:
    """Return whole lines from `offset` on, about a megabyte; of a longer line a piece."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(BATCH_BYTES)
    except FileNotFoundError:
        return b""
    return data if len(data) == BATCH_BYTES and b"\n" not in data else data[: data.rfind(b"\n") + 1]
