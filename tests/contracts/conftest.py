"""The same verbs from two sides: the registry itself, and the client through a gRPC server over it."""

from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from mosaic.contract.channel import OPTIONS
from mosaic.contract.events import EventLog
from mosaic.contract.happenings import Happenings
from mosaic.contract.metrics import encode_row
from mosaic.contract.proto import trainer_pb2_grpc
from mosaic.trainer.executors.local import Identity
from mosaic.trainer.live.bus import Bus
from mosaic.trainer.live.frames import FrameHub
from mosaic.trainer.live.ingest import Ingest
from mosaic.trainer.live.remote_workers import Handshakes
from mosaic.trainer.live.worker_requests import WorkerRequests
from mosaic.trainer.registry.registry import NewRun, Registry
from mosaic.trainer.rpc.client import Client
from mosaic.trainer.rpc.service import Parts, TokenCheck, TrainerService
from mosaic.trainer.run import Run
from mosaic.trainer.scheduling.attempts import Attempts, Registration
from mosaic.trainer.scheduling.gpu import Machine
from mosaic.trainer.scheduling.submission import Submissions, Vault
from mosaic.trainer.states import State


@dataclass
class Home:
    """A registry with all that belongs to it, but for processes: what a worker would do is done by hand."""

    registry: Registry
    attempts: Attempts
    relay: Ingest
    bus: Bus
    verbs: Any

    def add(self, run_id: str, **columns: Any) -> Run:
        return self.registry.add_run(NewRun(run_id, {"metadata": {}}, columns={"algo": "ppo", **columns}))

    def execute(self, run_id: str) -> None:
        """As if a worker had been started, had registered and had told something."""
        row = self.attempts.begin(run_id, [], [])
        assert row is not None
        self.attempts.register(run_id, Registration("w", Identity(1, 1, "b"), nonce=row["nonce"]))
        self.append(run_id, ("metrics", {"step": 0}))

    def append(self, run_id: str, *events: tuple[str, dict[str, Any]], rows: tuple[dict[str, Any], ...] = ()) -> None:
        paths = self.registry.paths(run_id)
        paths.create()
        with EventLog(paths.events, run_id) as log:
            for kind, payload in events:
                log.append(kind, payload)
        with paths.metrics.open("ab") as file:
            for row in rows:
                file.write(encode_row(row["step"], 1.0, {k: v for k, v in row.items() if k != "step"}))
        self.relay.poll(self.attempts.live())

    def end(self, run_id: str, state: State = State.COMPLETED, reason: str = "") -> None:
        self.attempts.settle(run_id, state, reason)
        self.bus.end(run_id, state)


def make_home(folder: Path) -> tuple[Home, Parts]:
    registry = Registry(folder)
    attempts, bus, vault = Attempts(registry), Bus(), Vault()
    happenings = Happenings(folder / "var" / "logs" / "trainer_daemon.log")
    machine = Machine((), 2.0, 1000)
    parts = Parts(
        registry=registry,
        attempts=attempts,
        submissions=Submissions(registry, vault, happenings, machine, lambda: ({}, [])),
        handshakes=Handshakes(registry, attempts, happenings),
        bus=bus,
        frames=FrameHub(registry, happenings),
        controls=WorkerRequests(),
        vault=vault,
        happenings=happenings,
        machine=machine,
    )
    return Home(registry, attempts, Ingest(registry, bus, happenings), bus, registry), parts


@pytest.fixture
def serve() -> Iterator[Callable[[Parts], Client]]:
    """Puts a server over the parts; the client that reaches it."""
    servers: list[tuple[grpc.Server, Client]] = []

    def start(parts: Parts) -> Client:
        server = grpc.server(
            futures.ThreadPoolExecutor(16),
            interceptors=[TokenCheck("token", parts.happenings)],
            options=OPTIONS,
        )
        trainer_pb2_grpc.add_TrainerServicer_to_server(TrainerService(parts), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        client = Client(f"127.0.0.1:{port}", token="token")
        servers.append((server, client))
        return client

    yield start
    for server, client in servers:
        client.close()
        server.stop(0).wait(10)


@pytest.fixture(params=["registry", "client"])
def home(request: pytest.FixtureRequest, tmp_path: Path, serve: Callable[[Parts], Client]) -> Iterator[Home]:
    found, parts = make_home(tmp_path)
    if request.param == "client":
        found.verbs = serve(parts)
    yield found
    found.registry.close()


@pytest.fixture
def served(tmp_path: Path, serve: Callable[[Parts], Client]) -> Iterator[Home]:
    """Only the client's side."""
    found, parts = make_home(tmp_path)
    found.verbs = serve(parts)
    yield found
    found.registry.close()
