"""Whatever is submitted, the registry answers afterwards: generated payloads against a real daemon."""

import copy
import json
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mosaic.contract.channel import credentials, open_channel
from mosaic.contract.fields import EXTRAS, SUBMISSION
from mosaic.contract.kinds import Table
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.contract.proto import trainer_pb2_grpc

CONFIG = {"algo": "tiny", "env_id": "CartPole-v1", "total_timesteps": 10, "seed": 1, "extras": {"episodes": 1}}
VALID = {
    "run_name": "x",
    "environment": {"PLAIN": "1"},
    "resources": {"cpus": 1, "memory_mb": 1, "gpus": {"requested": 0, "mandatory": False}},
    "schedule": {"max_steps": 100, "max_duration_seconds": 60},
    "retry": {"max_restarts": 0},
    "metadata": {"ui": {"group": "g", "agent_id": "a"}, "worker": {"worker_id": "w", "config": CONFIG}},
}


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def places(table: Table, way: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [(*way, "unheard_of")]
    for name, kind in table.fields.items():
        found += [(*way, name), *(places(kind, (*way, name)) if isinstance(kind, Table) else [])]
    return found


CONFIG_PLACE = ("metadata", "worker", "config")
PLACES = [*places(SUBMISSION), *((*CONFIG_PLACE, "extras", name) for name in (*EXTRAS, "algo_params", "unheard_of"))]
NUMBERS = st.sampled_from(
    [0, -1, 1, 1.5, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 1e308, 1e-300, 10**400]
)
TEXTS = st.text(max_size=20) | st.sampled_from(["x\0y", "\ud800", "../..", "a" * 5000, "", " ", "NaN", "1", "A=B"])
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    st.integers(),
    st.floats(),
    TEXTS,
    st.sampled_from([[], {}, [1], deep(70), deep(900), {"a\0": 1}, ["x"] * 20_000]),
    st.lists(NUMBERS | TEXTS, max_size=3),
    st.dictionaries(TEXTS, NUMBERS | TEXTS, max_size=3),
)


def put(payload: dict[str, Any], way: tuple[str, ...], value: Any) -> None:
    inner: Any = payload
    for name in way[:-1]:
        inner = inner.get(name) if isinstance(inner, dict) else None
        if not isinstance(inner, dict):
            return
    inner[way[-1]] = value


def text_of(payload: Any) -> bytes:
    try:
        return json.dumps(payload).encode("utf-8", "surrogatepass")
    except RecursionError:  # pragma: no cover
        return b"{}"


def test_after_any_submission_the_registry_lists_its_runs(shared: Any, request: pytest.FixtureRequest) -> None:
    address = shared.client.address
    stub, token = trainer_pb2_grpc.TrainerStub(open_channel(address)), credentials(address)
    count = 10_000 if request.config.getoption("--full") else 300

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        changes=st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3),
        flat=st.booleans(),
        # A worker that is asked is a process for each: one in ten.
        external=st.sampled_from([True] * 9 + [False]),
        priority=st.integers(-(2**31), 2**31 - 1),
    )
    def submit(changes: list[tuple[tuple[str, ...], Any]], flat: bool, external: bool, priority: int) -> None:
        payload = copy.deepcopy(VALID)
        for way, value in changes:
            put(payload, way, copy.deepcopy(value))  # a value that two changes share must not hold itself
        if flat:
            payload = (payload.get("metadata") or {}).get("worker", {}) if isinstance(payload["metadata"], dict) else {}
            payload = payload.get("config", {}) if isinstance(payload, dict) else payload
        message = pb.SubmitRunRequest(payload=text_of(payload), external=external, priority=priority)
        try:
            run = stub.SubmitRun(message, metadata=token, timeout=120)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, (error.code(), error.details(), payload)
            assert "\n" not in error.details() and "Exception calling" not in error.details()
        else:
            assert stub.GetRun(pb.RunRequest(run_id=run.run_id), metadata=token, timeout=60)
            if external:
                stub.CancelRun(pb.CancelRunRequest(run_id=run.run_id), metadata=token, timeout=60)
        page = stub.ListRuns(pb.ListRunsRequest(page_size=20, curve_points=10), metadata=token, timeout=60)
        assert page.total >= len(page.runs)

    submit()
    assert shared.client.health()["trouble"] == ""
