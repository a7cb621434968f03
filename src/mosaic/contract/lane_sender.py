"""Live frames for a remote daemon: read from the run's own ring while somebody watches there, and sent to it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import grpc

from mosaic.contract.channel import Address, credentials, open_channel
from mosaic.contract.frame_messages import frame_message
from mosaic.contract.frames import FastLaneReader, RingError
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.contract.proto import trainer_pb2_grpc

if TYPE_CHECKING:
    from mosaic.contract.paths import RunPaths

# A picture over a network is for watching, not for measuring.
FRAME_SECONDS = 0.1
RETRY_SECONDS = 5.0


class LaneSender:
    """A thread that is idle while nobody watches: only watching makes the algorithm draw."""

    def __init__(self, address: Address, session: str, paths: RunPaths) -> None:
        self._address, self._session = address, session
        self._run_id, self._record = paths.run_id, paths.fastlane
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="frames", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop; an unsent frame may be lost."""
        self._closing.set()
        self._wanted.set()

    def _work(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(grpc.RpcError), contextlib.closing(open_channel(self._address)) as channel:
                stream = trainer_pb2_grpc.TrainerStub(channel).PublishFrames(
                    self._frames(), metadata=credentials(self._address, self._session)
                )
                self._listen(stream)
            self._wanted.clear()
            self._closing.wait(RETRY_SECONDS)

    def _listen(self, stream: Any) -> None:
        for control in stream:
            if control.WhichOneof("control") == "demand":
                self._wanted.set() if control.demand.frames else self._wanted.clear()

    def _frames(self) -> Iterator[pb.Frame]:
        yield pb.Frame(run_id=self._run_id)
        reader: FastLaneReader | None = None
        seen = 0
        while not self._closing.is_set():
            if not self._wanted.wait(1.0) or self._closing.is_set():
                continue
            try:
                reader = reader or FastLaneReader.open(self._record)
            except (RingError, OSError):
                self._closing.wait(1.0)
                continue
            frame = reader.latest_frame(seen)
            if frame is not None:
                seen = frame.index
                yield frame_message(self._run_id, frame, reader)
            elif reason := reader.status().reason:
                yield pb.Frame(run_id=self._run_id, reason=reason)
                self._closing.wait(1.0)
            reader.wait(seen, 0.0 if frame is None else FRAME_SECONDS)
