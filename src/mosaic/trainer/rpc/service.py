"""The gRPC servicer: translates between messages and the registry's methods, and decides nothing."""

from __future__ import annotations

import functools
import hmac
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import grpc
import psutil

from mosaic.contract import errors
from mosaic.contract.channel import ATTEMPT_KEY, PROTO_VERSION, SESSION_KEY, TOKEN_KEY
from mosaic.contract.happenings import Happenings
from mosaic.contract.paths import check_run_id
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.contract.proto import trainer_pb2_grpc
from mosaic.trainer.executors.contract import Identity
from mosaic.trainer.live.bus import Bus
from mosaic.trainer.live.frames import FrameHub
from mosaic.trainer.live.remote_workers import Handshakes, kept_lines
from mosaic.trainer.live.streams import EventStream, PublisherStream, frame_controls, watch_runs
from mosaic.trainer.live.worker_requests import WorkerRequests
from mosaic.trainer.registry.rebuild import Rebuild
from mosaic.trainer.registry.registry import Registry
from mosaic.trainer.rpc import messages
from mosaic.trainer.scheduling.attempts import Attempts
from mosaic.trainer.scheduling.gpu import EVALUATING, Machine
from mosaic.trainer.scheduling.submission import Submissions, Vault

# Each open stream holds a thread; some are reserved for unary calls.
THREADS, MOST_STREAMS = 256, 200
# Status messages are sent in headers, which are small.
LONGEST_MESSAGE = 2000
# A submission creates its folder a moment before its row.
SETTLING_SECONDS = 5.0

NODE_CALLS = frozenset({"RegisterWorker", "PublishTelemetry", "PublishFrames", "FetchRun"})

STATUS: tuple[tuple[type[errors.MosaicError], grpc.StatusCode], ...] = (
    (errors.UnknownRunError, grpc.StatusCode.NOT_FOUND),
    (errors.MoveError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.AccessError, grpc.StatusCode.PERMISSION_DENIED),
    (errors.UnavailableError, grpc.StatusCode.UNAVAILABLE),
    (errors.ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.EventError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.StorageError, grpc.StatusCode.UNAVAILABLE),
    (errors.MosaicError, grpc.StatusCode.INTERNAL),
)

Call = TypeVar("Call", bound=Callable[..., Any])


@dataclass
class Parts:
    """The parts of the daemon that calls use."""

    registry: Registry
    attempts: Attempts
    submissions: Submissions
    handshakes: Handshakes
    bus: Bus
    frames: FrameHub
    controls: WorkerRequests
    vault: Vault
    happenings: Happenings
    machine: Machine
    started_at: float = 0.0
    version: str = ""
    trouble: Callable[[], str] = lambda: ""
    secure: bool = False
    rebuilding: threading.Lock = field(default_factory=threading.Lock)
    streams: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(MOST_STREAMS))


def answered(call: Call) -> Call:
    """Wrap a call: send its errors as a status with their text, and their name for the client."""

    @functools.wraps(call)
    def unary(self: TrainerService, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return call(self, request, context)
        except Exception as error:
            refuse(context, self.known(error, call.__name__))

    return unary  # type: ignore[return-value]


def streamed(call: Call) -> Call:
    """Wrap a streaming call like `answered`, and limit the number of concurrent streams."""

    @functools.wraps(call)
    def stream(self: TrainerService, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        if not self.parts.streams.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MOST_STREAMS} streams are open; close some")
        try:
            yield from call(self, request, context)
        except Exception as error:
            refuse(context, self.known(error, call.__name__))
        finally:
            self.parts.streams.release()

    return stream  # type: ignore[return-value]


class TrainerService(trainer_pb2_grpc.TrainerServicer):
    """One method per call, each with the translation only."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def known(self, error: Exception, call: str) -> errors.MosaicError:
        """Return an error of ours; any other is a bug of the daemon, and its log gets the traceback."""
        if isinstance(error, errors.MosaicError):
            return error
        text = f"{type(error).__name__}: {error}"
        self.parts.happenings.note("daemon.trouble", level=logging.ERROR, call=call, error=text)
        print(self.parts.happenings.masked("".join(traceback.format_exception(error))), file=sys.stderr, flush=True)
        return errors.TrainerError(f"the daemon could not answer {call}: {text}; its log has the details")

    @answered
    def SubmitRun(self, request: pb.SubmitRunRequest, context: grpc.ServicerContext) -> pb.Run:
        payload = self.parts.submissions.read(request.payload)
        if request.run_id:
            check_run_id(request.run_id)
        run = self.parts.submissions.submit_run(
            payload, priority=request.priority, external=request.external, run_id=request.run_id
        )
        return messages.run_to_pb(run)

    @answered
    def ListRuns(self, request: pb.ListRunsRequest, context: grpc.ServicerContext) -> pb.ListRunsResponse:
        if any(state not in pb.RunState.values() for state in request.states):
            raise errors.ConfigError("states: there is no such state")
        page = self.parts.registry.list_runs(
            states=[pb.RunState.Name(state) for state in request.states],
            algo=request.algo,
            env_id=request.env_id,
            mode=request.mode,
            text=request.text,
            group=request.group,
            page=request.page,
            curve_points=request.curve_points,
            **({"page_size": request.page_size} if request.page_size else {}),
        )
        return messages.page_to_pb(page)

    @answered
    def GetRun(self, request: pb.RunRequest, context: grpc.ServicerContext) -> pb.Run:
        return messages.run_to_pb(self.parts.registry.get_run(request.run_id))

    @answered
    def CancelRun(self, request: pb.CancelRunRequest, context: grpc.ServicerContext) -> pb.Run:
        grace = request.grace_seconds if request.HasField("grace_seconds") else None
        run = self.parts.registry.cancel_run(request.run_id, grace)
        if run.ended:  # it was queued: no other code does this
            self.parts.vault.forget(run.run_id)
            self.parts.happenings.note("run.cancelled", run.run_id, reason=run.reason)
        return messages.run_to_pb(run)

    @answered
    def PauseRun(self, request: pb.RunRequest, context: grpc.ServicerContext) -> pb.Run:
        return messages.run_to_pb(self.parts.registry.pause_run(request.run_id))

    @answered
    def ContinueRun(self, request: pb.RunRequest, context: grpc.ServicerContext) -> pb.Run:
        return messages.run_to_pb(self.parts.registry.continue_run(request.run_id))

    @answered
    def DeleteRun(self, request: pb.RunRequest, context: grpc.ServicerContext) -> pb.DeleteRunResponse:
        self.parts.registry.delete_run(request.run_id)
        self.parts.happenings.note("run.deleted", request.run_id)
        return pb.DeleteRunResponse()

    @streamed
    def WatchRuns(self, request: pb.WatchRunsRequest, context: grpc.ServicerContext) -> Iterator[pb.RunChange]:
        yield from watch_runs(self.parts.registry, request.cursor, request.progress, request.run_id, context.is_active)

    @answered
    def RegisterWorker(
        self, request: pb.RegisterWorkerRequest, context: grpc.ServicerContext
    ) -> pb.RegisterWorkerResponse:
        shown = metadata_of(context.invocation_metadata(), ATTEMPT_KEY)
        if shown and not hmac.compare_digest(shown.encode(), request.attempt.encode()):
            raise errors.AccessError("a node registers for the attempt that it shows, and for no other")
        identity = Identity(request.pid, request.start_ticks, request.boot_id)
        token, reads_files = self.parts.handshakes.register(
            *(request.run_id, request.proto_version, request.worker_id, identity, request.run_folder, request.attempt),
            sees_files=request.sees_files,
            node=request.node,
        )
        secrets = self.parts.vault.of(request.run_id) if not reads_files or request.node else {}
        if secrets and not self.parts.secure:
            self.parts.happenings.warn("worker.secrets_withheld", request.run_id, names=",".join(secrets))
            secrets = {}
        return pb.RegisterWorkerResponse(session_token=token, reads_files=reads_files, environment=secrets)

    @streamed
    def PublishTelemetry(
        self, request_iterator: Iterator[pb.TelemetryBatch], context: grpc.ServicerContext
    ) -> Iterator[pb.Control]:
        parts = self.parts
        session = metadata_of(context.invocation_metadata(), SESSION_KEY)
        stream = PublisherStream(parts.registry, parts.attempts, parts.controls, session, context.is_active)
        yield from stream.controls(request_iterator)

    @streamed
    def PublishFrames(
        self, request_iterator: Iterator[pb.Frame], context: grpc.ServicerContext
    ) -> Iterator[pb.Control]:
        parts = self.parts
        session = metadata_of(context.invocation_metadata(), SESSION_KEY)
        yield from frame_controls(parts.attempts, parts.frames, session, request_iterator, context.is_active)

    @streamed
    def FetchRun(self, request: pb.FetchRunRequest, context: grpc.ServicerContext) -> Iterator[pb.FileChunk]:
        session = metadata_of(context.invocation_metadata(), SESSION_KEY)
        self.parts.attempts.check_session(request.run_id, session)
        yield from kept_lines(self.parts.registry.paths(request.run_id))

    @streamed
    def StreamFrames(self, request: pb.StreamFramesRequest, context: grpc.ServicerContext) -> Iterator[pb.Frame]:
        yield from self.parts.frames.stream(request.run_id, request.max_fps, context.is_active)

    @streamed
    def StreamTelemetry(
        self, request_iterator: Iterator[pb.TelemetryRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.TelemetryReply]:
        parts = self.parts
        yield from EventStream(parts.registry, parts.bus, parts.happenings, context.is_active).replies(request_iterator)

    @answered
    def GetMetrics(self, request: pb.GetMetricsRequest, context: grpc.ServicerContext) -> pb.GetMetricsResponse:
        found = self.parts.registry.get_metrics(
            request.run_id,
            list(request.keys),
            max_points=request.max_points,
            since=dict(request.since),
            average=request.average,
        )
        return pb.GetMetricsResponse(series=[messages.series_to_pb(series) for series in found])

    @answered
    def Rebuild(self, request: pb.RebuildRequest, context: grpc.ServicerContext) -> pb.RebuildResponse:
        parts = self.parts
        if not parts.rebuilding.acquire(blocking=False):
            raise errors.MoveError("a rebuild is under way; wait for its end: mosaic runs")
        try:
            found = Rebuild(parts.registry, parts.submissions, parts.happenings, settling=SETTLING_SECONDS).run()
        finally:
            parts.rebuilding.release()
        return pb.RebuildResponse(rebuilt=found.rebuilt, skipped=found.skipped, known=found.known)

    @answered
    def GetHealth(self, request: pb.GetHealthRequest, context: grpc.ServicerContext) -> pb.Health:
        parts, trouble = self.parts, self.parts.trouble()
        try:
            live, counts = parts.attempts.live(), parts.registry.counts()
        except errors.TrainerError as error:  # health must report an unreadable registry
            live, counts, trouble = [], {}, str(error)
        holders = {index: row["run_id"] for row in live for index in json.loads(row["gpus"])}
        return pb.Health(
            version=parts.version,
            proto_version=PROTO_VERSION,
            pid=os.getpid(),
            started_at=parts.started_at,
            home=str(parts.registry.home),
            trouble=trouble,
            runs=counts,
            gpus=[
                pb.Gpu(index=gpu.index, name=gpu.name, memory_bytes=gpu.memory_bytes, run_id=holders.get(gpu.index, ""))
                for gpu in parts.machine.gpus
            ],
            cpu_slots=parts.machine.cpu_slots,
            cpu_slots_free=max(
                0.0,
                parts.machine.cpu_slots
                - sum(row["cpus"] for row in live if row["executor"] == "local" and row["mode"] not in EVALUATING),
            ),
            subscribers=parts.bus.subscribers,
            rss_bytes=psutil.Process().memory_info().rss,
            workers=sorted(parts.submissions.workers),
            problems=parts.submissions.problems,
        )


class TokenCheck(grpc.ServerInterceptor):
    """Accepts a call only with the daemon's token; a cluster's node needs none for its own attempt."""

    def __init__(self, token: str, happenings: Happenings, attempts: Attempts | None = None) -> None:
        self._expected, self._happenings, self._attempts = f"Bearer {token}".encode(), happenings, attempts

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        given = metadata_of(handler_call_details.invocation_metadata, TOKEN_KEY)
        handler = continuation(handler_call_details)
        if handler is None or hmac.compare_digest(given.encode(errors="replace"), self._expected):
            return handler
        if handler_call_details.method.rpartition("/")[2] in NODE_CALLS and self._admits(handler_call_details):
            return handler
        self._happenings.warn("access.denied", call=handler_call_details.method)
        return _denied(handler)

    def _admits(self, details: Any) -> bool:
        """Return True for a node's credentials; the call itself then checks that they are those of its run."""
        session, attempt = (metadata_of(details.invocation_metadata, key) for key in (SESSION_KEY, ATTEMPT_KEY))
        shown = attempt if details.method.endswith("/RegisterWorker") else session
        if self._attempts is None or not shown:
            return False
        try:
            return self._attempts.admits(session, attempt)
        except errors.UnavailableError:
            return True  # the call will report it; a node that was denied would give its run up


def _denied(handler: Any) -> Any:
    def deny(request: Any, context: grpc.ServicerContext) -> NoReturn:
        refuse(
            context,
            errors.AccessError("the daemon's token is missing or wrong; it lies in var/trainer/token, or MOSAIC_TOKEN"),
            grpc.StatusCode.UNAUTHENTICATED,
        )

    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    kind = kinds[handler.request_streaming, handler.response_streaming]
    return kind(deny, handler.request_deserializer, handler.response_serializer)


def refuse(context: grpc.ServicerContext, error: errors.MosaicError, code: grpc.StatusCode | None = None) -> NoReturn:
    """Abort a call with the status of the error."""
    found = code or next(status for kind, status in STATUS if isinstance(error, kind))
    name = next(kind.__name__ for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    context.set_trailing_metadata((("mosaic-error", name),))
    context.abort(found, str(error)[:LONGEST_MESSAGE])
    raise AssertionError("abort raises")


def metadata_of(metadata: Any, key: str) -> str:
    """Return a value of a call's metadata, "" if it is missing."""
    for name, value in metadata or ():
        if name == key:
            return value if isinstance(value, str) else value.decode(errors="replace")
    return ""
