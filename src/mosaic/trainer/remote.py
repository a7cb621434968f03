"""Workers that introduce themselves: the handshake, and the files of a remote one, mirrored line by line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from mosaic.contract.identity import boot_id
from mosaic.trainer.attempts import Attempts, Registration
from mosaic.trainer.events_file import read_lines
from mosaic.trainer.executors.contract import Identity
from mosaic.trainer.registry import Registry
from mosaic.wire._pb import trainer_pb2 as pb
from mosaic.wire.channel import PROTO_VERSION
from mosaic.wire.errors import ConfigError, EventError, MosaicError, shown, storage_error
from mosaic.wire.events import Event, cut_torn_tail, decode, encode, last_seq
from mosaic.wire.happenings import Happenings
from mosaic.wire.paths import RunPaths, check_run_id

# What a publisher may send before it hears that something was stored.
PUBLISHER_CREDITS = 400
CHUNK_BYTES = 1 << 20


class Handshakes:
    """Who may speak for a run."""

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
        """A session token, and whether the daemon reads the run's files itself; a cluster's node says if it does."""
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


class Mirror:
    """The events and metrics of a remote run, written as its own worker wrote them; the relay reads them from here."""

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
        """Append what is new and make it last; what came before is passed over, what would leave a gap is not taken."""
        lines = []
        expected = self.next_seq
        for event in events:
            if event.seq > expected:
                break
            if event.seq == expected:
                line = encode(event)
                decode(line)  # nothing enters the file that could not be read again
                lines.append(line)
                expected += 1
        if lines:
            _append(self._events, b"".join(lines))
            self.next_seq = expected
        if metrics and 0 <= metrics_offset <= self.metrics_offset:
            new = metrics[self.metrics_offset - metrics_offset :]
            if new and not new.endswith(b"\n"):
                raise EventError("metrics are sent in whole lines")
            if new:
                _append(self._metrics, new)
                self.metrics_offset += len(new)


def kept_lines(paths: RunPaths) -> Iterator[pb.FileChunk]:
    """The whole lines of a run's events and metrics, in pieces, and of an order that is too large for a queue."""
    for path in (paths.events, paths.metrics, paths.order):
        offset = 0
        while True:
            lines, end = read_lines(path, offset, CHUNK_BYTES)
            if not lines:
                break
            yield pb.FileChunk(path=paths.relative(path), data=b"".join(lines))
            offset = end


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
