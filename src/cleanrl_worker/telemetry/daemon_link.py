"""The worker's connection to a trainer daemon: registration, and publishing files that the daemon cannot read."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import grpc
import orjson

from mosaic.contract.channel import PROTO_VERSION, Address, credentials, find_daemon, open_channel
from mosaic.contract.errors import MosaicError
from mosaic.contract.identity import own_identity
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.contract.proto import trainer_pb2_grpc
from mosaic.contract.publisher import CANCEL, GO_ON, PAUSE, Publisher
from mosaic.contract.secrets import without_secrets
from mosaic.contract.variables import MOSAIC_ATTEMPT

if TYPE_CHECKING:
    from cleanrl_worker.config.config import CleanRLWorkerConfig
    from mosaic.contract.paths import RunPaths

# Registration timeout: training does not depend on the daemon. A busy machine may take seconds; without a listener,
# the connection fails at once.
DAEMON_SECONDS = 10.0
# A submission makes the daemon read files; only a run unknown to the daemon is submitted.
SUBMIT_SECONDS = 10.0
# Requests of a remote daemon, as the signals that a local one would send.
SIGNALS = {PAUSE: signal.SIGUSR1, GO_ON: signal.SIGUSR2, CANCEL: signal.SIGTERM}


class Introduction:
    """The result of registering: a warning for the user, and the daemon's response."""

    def __init__(self, warning: str | None, publisher: Publisher | None = None, environment: Any = None) -> None:
        self.warning, self.publisher = warning, publisher
        self.environment: Mapping[str, str] = environment or {}


def introduce(
    config: CleanRLWorkerConfig, paths: RunPaths, target: str, order: Callable[[int], object]
) -> Introduction:
    """Register with the daemon at `target`; a refusal or timeout is only a warning, training continues.

    `order` accepts the signal for a remote daemon's request: pause, continue, stop.
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
    publisher = Publisher(address, answer.session_token, paths, lambda what, _: order(SIGNALS[what]))
    return Introduction(None, publisher, dict(answer.environment))


def _register(stub: Any, address: Address, config: CleanRLWorkerConfig, paths: RunPaths) -> pb.RegisterWorkerResponse:
    request = _introduction(config, paths)
    metadata = credentials(address)
    try:
        answer: pb.RegisterWorkerResponse = stub.RegisterWorker(request, timeout=DAEMON_SECONDS, metadata=metadata)
        return answer
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.NOT_FOUND:
            raise
    # A run started by hand: submit it to the daemon now.
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
        **own_identity(),
        run_folder=str(paths.folder),
        attempt=os.environ.get(MOSAIC_ATTEMPT, ""),
    )


def _explained(error: Any, target: str) -> str:
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        if not dict(error.trailing_metadata() or ()).get("mosaic-error"):
            return f"no trainer daemon answered at {target}; training goes on without it"
    said = error.details() or error.code().name
    return f"the trainer daemon at {target} refused this worker: {said}; training goes on without it"
