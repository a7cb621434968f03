"""Workers that register themselves: the handshake, and the files of a remote one, mirrored line by line."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from mosaic.contract.channel import PROTO_VERSION
from mosaic.contract.errors import ConfigError, EventError, MosaicError, shown, storage_error
from mosaic.contract.event_reader import checked
from mosaic.contract.events import Event, cut_torn_tail, encode, end_of_last_line, last_seq
from mosaic.contract.fields import EVENT_BYTES
from mosaic.contract.happenings import Happenings
from mosaic.contract.identity import boot_id
from mosaic.contract.kinds import FieldError
from mosaic.contract.lines import EVENT_DROPPED, over
from mosaic.contract.paths import RunPaths, check_run_id
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.trainer.executors.contract import Identity
from mosaic.trainer.registry.registry import Registry
from mosaic.trainer.rpc import messages
from mosaic.trainer.scheduling.attempts import Attempts, Registration

# The credits of a publisher before the first acknowledgement.
PUBLISHER_CREDITS = 400
CHUNK_BYTES = 1 << 20


class Handshakes:
    """The registration of workers."""

    def __init__(self, registry: Registry, attempts: Attempts, happenings: Happenings) -> None:
        self._registry, self._attempts, self._happenings = registry, attempts, happenings

    def register(
        self,
        run_id: str,
        proto_version: str,
        worker_id: str,
        identity: Identity,
        run_folder: str,
        nonce: str,
        *,
        sees_files: bool = False,
        node: str = "",
    ) -> tuple[str, bool]:
        """Return a session token, and True if the daemon reads the run's files itself; a node reports if it does."""
        try:
            check_run_id(run_id)
            if proto_version != PROTO_VERSION:
                raise ConfigError(
                    f"proto version {shown(proto_version)} is refused; this daemon speaks {PROTO_VERSION}: "
                    "install the same mosaic-rl on both sides"
                )
            here = identity.boot_id == boot_id() and _same(run_folder, self._registry.paths(run_id).folder)
            name = worker_id or f"worker-{run_id[:8]}"
            told = Registration(name[:200], identity, here or sees_files, nonce, node[:200])
            token = self._attempts.register(run_id, told)
        except MosaicError as error:
            self._happenings.warn("worker.refused", shown(run_id, 40), reason=error)
            raise
        reads = bool(self._attempts.row(run_id)["reads_files"])
        self._happenings.note("worker.registered", run_id, worker_id=name, by="worker", reads_files=reads)
        return token, reads


class FileMirror:
    """The events and metrics of a remote run, stored as its worker wrote them; the relay reads them from here."""

    def __init__(self, registry: Registry, run_id: str) -> None:
        self._run_id = run_id
        paths = registry.paths(run_id)
        paths.create()
        self._events, self._metrics = paths.events, paths.metrics
        for path in (self._events, self._metrics):
            cut_torn_tail(path)
        self.next_seq = last_seq(self._events) + 1
        self.metrics_offset = self._metrics.stat().st_size if self._metrics.exists() else 0

    def store(self, events: Sequence[Event], metrics_offset: int, metrics: bytes) -> None:
        """Append new lines and make them durable; skip known lines, and lines that would leave a gap.

        An event that readers would drop is replaced by a warning under its seq: a gap would be requested again forever.
        The pieces of a row over its cap are stored, so that offsets stay those of the worker's file.
        """
        # Rows first: an episode with an event but without its row would be counted twice.
        if metrics and 0 <= metrics_offset <= self.metrics_offset:
            new = metrics[self.metrics_offset - metrics_offset :]
            if new:
                _append(self._metrics, new)
                self.metrics_offset += len(new)
        lines = []
        expected = self.next_seq
        for event in events:
            if event.seq > expected:
                break
            if event.seq == expected:
                lines.append(_line_of(event))
                expected += 1
        if lines:
            _append(self._events, b"".join(lines))
            self.next_seq = expected


def received(message: pb.Event, run_id: str) -> Event:
    """Return a message's event, or a warning in its place."""
    try:
        return messages.event_from_pb(message, run_id)
    except EventError as error:
        return _in_place_of(run_id, message.seq, error)


def kept_lines(paths: RunPaths) -> Iterator[pb.FileChunk]:
    """Yield a run's events and metrics to the last whole line, and an order that is too large for a queue, in pieces.

    They are copied unchanged, rows over their cap included: offsets must be the same on both sides.
    """
    for path in (paths.events, paths.metrics, paths.order):
        try:
            file = open(path, "rb")
        except FileNotFoundError:
            continue
        with file:
            left = end_of_last_line(file.fileno(), os.fstat(file.fileno()).st_size)
            while data := file.read(min(left, CHUNK_BYTES)):
                left -= len(data)
                yield pb.FileChunk(path=paths.relative(path), data=data)


def _line_of(event: Event) -> bytes:
    """Return the event as a line, or a warning in its place where readers would drop it."""
    try:
        line = encode(event)
        if len(line) > EVENT_BYTES:
            raise EventError(over(len(line), EVENT_BYTES))
        checked(line)
    except (EventError, FieldError) as error:
        return encode(_in_place_of(event.run_id, event.seq, error))
    return line


def _in_place_of(run_id: str, seq: int, error: Exception) -> Event:
    return Event("warning", run_id, seq, time.time(), {"message": f"{EVENT_DROPPED}: {error}"})


def _append(path: Path, data: bytes) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            try:
                written = 0
                while written < len(data):
                    written += os.write(descriptor, data[written:])
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise storage_error(path, error) from None


def _same(given: str, folder: Path) -> bool:
    try:
        return bool(given) and Path(given).resolve() == folder.resolve()
    except (OSError, ValueError, RuntimeError):
        return False
