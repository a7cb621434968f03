"""Bad input of every kind gets a status and a clear message, and leaves the daemon serving."""

import json
import os
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mosaic.contract.channel import MESSAGE_BYTES, credentials, open_channel
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.contract.proto import trainer_pb2_grpc
from mosaic.trainer.states import State

FUZZ = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
UNARY = "SubmitRun ListRuns GetRun CancelRun PauseRun ContinueRun DeleteRun RegisterWorker GetMetrics GetHealth".split()
STREAMS = "WatchRuns StreamTelemetry PublishTelemetry PublishFrames StreamFrames".split()
CLEAR = {
    *(grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION),
    *(grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.DEADLINE_EXCEEDED),
    *(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OK),
}

TEXT = st.text(max_size=40) | st.sampled_from(["../..", "known", "a" * 3000, "\x00", "%", "';--"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["algo", "env_id", "total_timesteps", "seed", "extras", "metadata", "environment", "resources", "retry", "schedule"]
)


@pytest.fixture(scope="module")
def calls(shared: Any) -> Any:
    return Calls(shared)


class Calls:
    def __init__(self, daemon: Any) -> None:
        self.daemon = daemon
        self.address = daemon.client.address
        self.channel = open_channel(self.address)
        self.stub = trainer_pb2_grpc.TrainerStub(self.channel)

    def raw(self, name: str, data: bytes) -> grpc.StatusCode:
        """Send bytes that may be no message at all."""
        path = f"/mosaic.trainer.v1.Trainer/{name}"
        metadata = credentials(self.address)
        try:
            if name in UNARY:
                self.channel.unary_unary(path)(data, metadata=metadata, timeout=20)
            else:
                for _ in self.channel.stream_stream(path)(iter([data]), metadata=metadata, timeout=1):
                    pass
        except grpc.RpcError as error:
            assert "Traceback" not in (error.details() or "")
            return error.code()
        return grpc.StatusCode.OK

    def status(self, name: str, request: Any) -> grpc.StatusCode:
        try:
            getattr(self.stub, name)(request, metadata=credentials(self.address), timeout=120)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def still_serves(self) -> None:
        assert self.daemon.process.poll() is None
        assert self.daemon.client.health()["trouble"] == ""


@FUZZ
@given(name=st.sampled_from(UNARY), data=st.binary(max_size=200))
def test_random_bytes(calls: Calls, name: str, data: bytes) -> None:
    # What gRPC itself cannot decode, it answers with INTERNAL before we see it.
    assert calls.raw(name, data) in CLEAR | {grpc.StatusCode.INTERNAL}
    calls.still_serves()


@pytest.mark.parametrize("name", STREAMS)
def test_random_bytes_into_streams(calls: Calls, name: str) -> None:
    for data in (b"", b"\xff" * 50, b"\n\x02\n\x00", os.urandom(100)):
        assert calls.raw(name, data) in CLEAR | {grpc.StatusCode.INTERNAL}
    calls.still_serves()


@settings(FUZZ, max_examples=10)
@given(payload=st.dictionaries(KEYS | TEXT, JSON, max_size=5))
def test_submissions_of_any_shape_are_refused_with_a_reason(calls: Calls, payload: Any) -> None:
    request = pb.SubmitRunRequest(payload=json.dumps(payload).encode())
    assert calls.status("SubmitRun", request) in {grpc.StatusCode.INVALID_ARGUMENT}
    calls.still_serves()


@pytest.mark.parametrize("payload", [b"", b"null", b"[1]", b"{", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000])
def test_what_is_no_json_object_makes_no_run(calls: Calls, payload: bytes) -> None:
    before = calls.daemon.client.list_runs().total
    assert calls.status("SubmitRun", pb.SubmitRunRequest(payload=payload)) == grpc.StatusCode.INVALID_ARGUMENT
    assert calls.daemon.client.list_runs().total == before
    calls.still_serves()


@FUZZ
@given(run_id=TEXT, number=st.floats(), state=st.integers(-5, 50), keys=st.lists(TEXT, max_size=3))
def test_calls_with_any_values(calls: Calls, run_id: str, number: float, state: int, keys: list[str]) -> None:
    requests = [
        ("GetRun", pb.RunRequest(run_id=run_id)),
        ("CancelRun", pb.CancelRunRequest(run_id=run_id, grace_seconds=number)),
        ("DeleteRun", pb.RunRequest(run_id=run_id)),
        ("ListRuns", pb.ListRunsRequest(states=[state], text=run_id, page=run_id, page_size=abs(state))),
        ("GetMetrics", pb.GetMetricsRequest(run_id=run_id, keys=keys, max_points=abs(state), since={run_id: 2**63})),
        ("RegisterWorker", pb.RegisterWorkerRequest(run_id=run_id, proto_version="MOSAIC/1.0", worker_id=run_id)),
    ]
    for name, request in requests:
        assert calls.status(name, request) in CLEAR, name
    calls.still_serves()


def test_a_message_beyond_the_limit_and_one_just_below_it(calls: Calls) -> None:
    assert calls.status("GetRun", pb.RunRequest(run_id="x" * (MESSAGE_BYTES - 100))) == grpc.StatusCode.NOT_FOUND
    assert (
        calls.status("SubmitRun", pb.SubmitRunRequest(payload=b"x" * (MESSAGE_BYTES + 10)))
        == grpc.StatusCode.RESOURCE_EXHAUSTED
    )
    long = json.dumps({"algo": "tiny", "env_id": "x" * 4_000_000, "total_timesteps": 1}).encode()
    assert calls.status("SubmitRun", pb.SubmitRunRequest(payload=long)) == grpc.StatusCode.INVALID_ARGUMENT
    calls.still_serves()


def test_any_metric_request_on_a_run_that_exists(calls: Calls) -> None:
    run = calls.daemon.submit({"episodes": 3})
    assert calls.daemon.client.wait_run(run.run_id, 180).state == State.COMPLETED
    for since in (0, 1, 2**40, 2**63, 2**64 - 1):
        request = pb.GetMetricsRequest(run_id=run.run_id, since={"charts/SPS": since}, max_points=1)
        assert calls.status("GetMetrics", request) == grpc.StatusCode.OK
    many = pb.GetMetricsRequest(run_id=run.run_id, keys=[f"k{n}" for n in range(100_000)])
    assert calls.status("GetMetrics", many) == grpc.StatusCode.INVALID_ARGUMENT
    calls.still_serves()
