"""The worker and a trainer daemon: it introduces itself, and where the daemon cannot read its files, sends them."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import orjson

from cleanrl_worker.lane_sender import LaneSender
from mosaic.wire._pb import trainer_pb2 as pb
from mosaic.wire._pb import trainer_pb2_grpc
from mosaic.wire.channel import PROTO_VERSION, Address, credentials, find_daemon, open_channel
from mosaic.wire.errors import EventError, MosaicError
from mosaic.wire.events import decode, to_line
from mosaic.wire.secrets import without_secrets
from mosaic.wire.variables import MOSAIC_ATTEMPT

if TYPE_CHECKING:
    from cleanrl_worker.config import CleanRLWorkerConfig
    from mosaic.wire.paths import RunPaths

# A daemon that has not answered by then is not waited for: training does not depend on it. A busy machine may take
# seconds; where nobody listens the answer comes at once.
DAEMON_SECONDS = 10.0
# A submission makes the daemon look at files; it is asked for only by a run that the daemon does not know.
SUBMIT_SECONDS = 10.0
POLL_SECONDS = 0.25
BATCH_BYTES = 1 << 20
# How long a finished worker waits until the daemon has stored its last events.
FLUSH_SECONDS = 15.0
RETRY_SECONDS = 2.0


class Introduction:
    """What came of registering: one line that tells a person, and the daemon's answer."""

    def __init__(self, warning: str | None, publisher: Publisher | None = None, environment: Any = None) -> None:
        self.warning, self.publisher = warning, publisher
        self.environment: Mapping[str, str] = environment or {}


def introduce(
    config: CleanRLWorkerConfig, paths: RunPaths, target: str, order: Callable[[int], object]
) -> Introduction:
    """Register with the daemon at `target`; a refusal or silence is a warning and no reason not to train.

    `order` takes the signal that stands for what a distant daemon asks for: pause, go on, end.
    """
    try:
        address = find_daemon(target)
        with contextlib.closing(open_channel(address)) as channel:
            stub = trainer_pb2_grpc.TrainerStub(channel)
            answer = _register(stub, address, config, paths)
    except grpc.RpcError as error:
        return Introduction(_explained(error, target))
    except MosaicError as error:
        return Introduction(f"the trainer daemon at {target} was not told: {error}; training goes on without it")
    if answer.reads_files:
        return Introduction(None)
    return Introduction(None, Publisher(address, answer.session_token, paths, order), dict(answer.environment))


def _register(stub: Any, address: Address, config: CleanRLWorkerConfig, paths: RunPaths) -> pb.RegisterWorkerResponse:
    request = _introduction(config, paths)
    metadata = credentials(address)
    try:
        answer: pb.RegisterWorkerResponse = stub.RegisterWorker(request, timeout=DAEMON_SECONDS, metadata=metadata)
        return answer
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.NOT_FOUND:
            raise
    # A run that was started by hand: the daemon learns of it now.
    payload = orjson.dumps(without_secrets(config.to_dict()))
    submission = pb.SubmitRunRequest(payload=payload, external=True, run_id=config.run_id)
    stub.SubmitRun(submission, timeout=SUBMIT_SECONDS, metadata=metadata)
    answer = stub.RegisterWorker(request, timeout=DAEMON_SECONDS, metadata=metadata)
    return answer


def _introduction(config: CleanRLWorkerConfig, paths: RunPaths) -> pb.RegisterWorkerRequest:
    extras = config.extras
    return pb.RegisterWorkerRequest(
        run_id=config.run_id,
        worker_id=config.worker_id or f"cleanrl-worker-{config.run_id[:8]}",
        worker_kind="cleanrl",
        proto_version=PROTO_VERSION,
        schema_id=extras.get("schema_id") or f"cleanrl.{config.algo}",
        schema_version=extras.get("schema_version") or 1,
        supports_pause=bool(extras.get("supports_pause")),
        supports_checkpoint=bool(extras.get("supports_checkpoint")),
        boot_id=_boot_id(),
        pid=os.getpid(),
        start_ticks=_start_ticks(),
        run_folder=str(paths.folder),
        attempt=os.environ.get(MOSAIC_ATTEMPT, ""),
    )


class Publisher:
    """Sends a run's files to a distant daemon from a thread of its own; the files are the buffer, so nothing is lost.

    The daemon says what it has; after a cut, or a restart of either side, sending goes on from there.
    """

    def __init__(self, address: Address, session: str, paths: RunPaths, order: Callable[[int], object]) -> None:
        self._address, self._session, self._order = address, session, order
        self._run_id, self._events_path, self._metrics_path = paths.run_id, paths.events, paths.metrics
        self._stored = (-1, -1)
        self._credits = 0
        self._starved = False
        self._seq, self._events_offset, self._metrics_offset = 0, 0, 0
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._refused = ""
        self._frames = LaneSender(address, session, paths)
        self._thread = threading.Thread(target=self._work, name="publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._frames.start()

    def close(self, seconds: float = FLUSH_SECONDS) -> str | None:
        """Wait until the daemon has everything; a line where it has not."""
        self._frames.close()
        self._closing.set()
        self._thread.join(seconds)
        if self._thread.is_alive() or self._refused:
            why = self._refused or "it does not answer"
            return f"the trainer daemon at {self._address.target} did not get the last events: {why}"
        return None

    def _work(self) -> None:
        while not self._refused:
            try:
                with contextlib.closing(open_channel(self._address)) as channel:
                    if self._converse(trainer_pb2_grpc.TrainerStub(channel)):
                        return
            except grpc.RpcError as error:
                if error.code() in _FINAL:
                    self._refused = error.details() or error.code().name
                    return
            time.sleep(RETRY_SECONDS)

    def _converse(self, stub: Any) -> bool:
        """One stream; True when everything is stored and the worker is done."""
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
            while not failure:
                last = self._closing.is_set()
                sent = self._send(outgoing)
                if last and not sent and self._everything_is_stored():
                    return True
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
        if kind in _ORDERS:
            self._order(_ORDERS[kind])
        with self._changed:
            if kind == "stored":
                self._stored = (control.stored.next_seq, control.stored.metrics_offset)
            elif kind == "credits":
                self._credits += control.credits.credits
            elif kind in ("starved", "resumed"):
                self._starved = kind == "starved"
                if not self._starved:
                    self._seek(*self._stored)
            self._changed.notify_all()

    def _seek(self, next_seq: int, metrics_offset: int) -> None:
        """Go on from what the daemon has."""
        if next_seq != self._seq:
            self._seq, self._events_offset = next_seq, 0  # the lines before are read once more, and passed over
        self._metrics_offset = metrics_offset

    def _send(self, outgoing: queue.SimpleQueue[pb.TelemetryBatch | None]) -> bool:
        """Send what is new, as far as there is credit; whether there was any."""
        if self._starved:
            outgoing.put(pb.TelemetryBatch())  # asks whether there is room again
            time.sleep(RETRY_SECONDS)
            return False
        batch = pb.TelemetryBatch(metrics_offset=self._metrics_offset)
        for line in _whole_lines(self._events_path, self._events_offset):
            if len(batch.events) >= max(0, self._credits):
                break
            self._events_offset += len(line)
            with contextlib.suppress(EventError):
                event = decode(line)
                if event.seq >= self._seq:
                    payload = to_line(event.payload).rstrip(b"\n")
                    batch.events.add(event=event.event, seq=event.seq, timestamp=event.timestamp, payload=payload)
                    self._seq = event.seq + 1
        batch.metrics = b"".join(_whole_lines(self._metrics_path, self._metrics_offset))
        if not batch.events and not batch.metrics:
            return False
        self._metrics_offset += len(batch.metrics)
        with self._changed:
            self._credits -= len(batch.events)
        outgoing.put(batch)
        return True

    def _everything_is_stored(self) -> bool:
        with self._changed:
            return self._stored == (self._seq, self._metrics_offset) and not self._starved


class _Silent(grpc.RpcError):
    """The stream ended, or never began."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "it does not answer"


_ORDERS = {"pause": signal.SIGUSR1, "go_on": signal.SIGUSR2, "cancel": signal.SIGTERM}
# The daemon will say the same the next time.
_FINAL = (
    *(grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT),
    *(grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION),
)


def _whole_lines(path: Path, offset: int) -> Iterator[bytes]:
    """Whole lines from `offset` on, about a megabyte of them."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(BATCH_BYTES)
            while data and b"\n" not in data and (more := file.read(BATCH_BYTES)):
                data += more
    except FileNotFoundError:
        return
    yield from data[: data.rfind(b"\n") + 1].splitlines(keepends=True)


def _explained(error: Any, target: str) -> str:
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        if not dict(error.trailing_metadata() or ()).get("mosaic-error"):
            return f"no trainer daemon answered at {target}; training goes on without it"
    said = error.details() or error.code().name
    return f"the trainer daemon at {target} refused this worker: {said}; training goes on without it"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        import psutil

        return f"boot-{psutil.boot_time():.0f}"


def _start_ticks() -> int:
    """When this process began, as the kernel counts."""
    try:
        stat = Path("/proc/self/stat").read_bytes()
    except OSError:
        import psutil

        return int(psutil.Process().create_time() * os.sysconf("SC_CLK_TCK"))
    return int(stat[stat.rfind(b")") + 2 :].split()[19])
