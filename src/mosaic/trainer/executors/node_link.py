"""A node's link to the daemon: registers its attempt, fetches the daemon's files, sends data, receives requests."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from mosaic.contract.channel import ATTEMPT_KEY, PROTO_VERSION, Address, credentials, open_channel
from mosaic.contract.identity import boot_id, start_ticks
from mosaic.contract.paths import RunPaths, write_atomic
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.contract.proto import trainer_pb2_grpc
from mosaic.contract.publisher import FINAL, Publisher
from mosaic.contract.publisher import Order as Ask
from mosaic.trainer.executors.node_orders import Order

# A busy daemon may take seconds to answer; an unreachable one does not delay the training.
ANSWER_SECONDS, PATIENCE_SECONDS, RETRY_SECONDS = 10.0, 20.0, 2.0


class Link:
    """A connection that, once opened, reconnects itself for as long as the relay lives."""

    def __init__(self, order: Order, paths: RunPaths, shared: bool, ask: Ask) -> None:
        self._order, self._paths, self._shared, self._ask = order, paths, shared, ask
        self._publisher: Publisher | None = None
        self._closing = threading.Event()
        self._refused = ""
        self.secrets: Mapping[str, str] = {}
        self._address = Address(order.target, "", self._certificate())

    @property
    def refused(self) -> str:
        """Return why the daemon no longer accepts this attempt, "" while it does."""
        return self._refused or (self._publisher.refused if self._publisher is not None else "")

    def open(self, *, wait: bool) -> bool:
        """Register; return False if the daemon refuses. Without `wait`, an unreachable daemon is contacted later."""
        end = time.monotonic() + (self._order.linger if wait else PATIENCE_SECONDS)
        while not self._register():
            if self._refused:
                return False
            if time.monotonic() >= end:
                if wait:
                    self._refused = f"no daemon answered at {self._order.target}"
                    return False
                threading.Thread(target=self._register_later, name="register", daemon=True).start()
                return True
            time.sleep(RETRY_SECONDS)
        return True

    def close(self, seconds: float, exit: tuple[int, str] | None = None) -> str | None:
        """Wait until the daemon has everything; return a line if it does not."""
        end = time.monotonic() + seconds
        while self._publisher is None and not self._refused and time.monotonic() < end:
            time.sleep(min(RETRY_SECONDS, seconds))
        self._closing.set()
        if self._publisher is None:
            return f"no trainer daemon answered at {self._order.target}; it did not get this run's events"
        return self._publisher.close(max(0.0, end - time.monotonic()), exit)

    def abandon(self) -> None:
        """Stop: this node's data is void."""
        self._closing.set()

    def _register_later(self) -> None:
        while not self._closing.wait(RETRY_SECONDS) and not self._refused:
            if self._register():
                return

    def _register(self) -> bool:
        request = pb.RegisterWorkerRequest(
            run_id=self._order.run_id,
            worker_id=f"{socket.gethostname()}-{self._order.run_id[:8]}",
            worker_kind="relay",
            proto_version=PROTO_VERSION,
            boot_id=boot_id(),
            pid=os.getpid(),
            start_ticks=start_ticks(os.getpid()) or 0,
            run_folder=str(self._paths.folder),
            attempt=self._order.nonce,
            sees_files=self._shared,
            node=socket.gethostname(),
        )
        metadata = [*credentials(self._address), (ATTEMPT_KEY, self._order.nonce)]
        try:
            with contextlib.closing(open_channel(self._address)) as channel:
                stub = trainer_pb2_grpc.TrainerStub(channel)
                answer = stub.RegisterWorker(request, timeout=ANSWER_SECONDS, metadata=metadata)
                if not self._shared:
                    self._take_over(stub, answer.session_token)
        except grpc.RpcError as error:
            if error.code() in FINAL:
                self._refused = error.details() or error.code().name
            return False
        self.secrets = dict(answer.environment)
        publisher = Publisher(self._address, answer.session_token, self._paths, self._ask, only_orders=self._shared)
        publisher.start()
        self._publisher = publisher
        return True

    def _take_over(self, stub: Any, session: str) -> None:
        """Start with the daemon's files, unless this node has the same and more."""
        paths = (self._paths.events, self._paths.metrics, self._paths.order)
        kept: dict[Path, bytearray] = {path: bytearray() for path in paths}
        request = pb.FetchRunRequest(run_id=self._order.run_id)
        for chunk in stub.FetchRun(request, metadata=credentials(self._address, session)):
            kept[self._paths.inside(chunk.path)] += chunk.data
        for path, data in kept.items():
            here = path.read_bytes() if path.exists() else b""
            if not here.startswith(data):
                write_atomic(path, bytes(data))

    def _certificate(self) -> str:
        """Return the daemon's certificate as a file, which gRPC's errors refer to."""
        if not self._order.certificate:
            return ""
        path = self._paths.logs / "daemon.pem"
        write_atomic(path, self._order.certificate)
        return str(path)
