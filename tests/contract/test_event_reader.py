"""Events at the border: the fields that others act on have a type and a range."""

import json
from typing import Any

import pytest

from mosaic.contract.errors import EventError
from mosaic.contract.event_reader import checked, decoded
from mosaic.contract.events import EVENT_KINDS
from mosaic.contract.fields import EVENT_PAYLOADS
from mosaic.contract.kinds import FieldError


def line(kind: str, payload: Any, **envelope: Any) -> bytes:
    return json.dumps(
        {"event": kind, "run_id": "a", "seq": 1, "timestamp": 1.0, "payload": payload, **envelope}
    ).encode()


def test_every_kind_of_event_is_in_the_table() -> None:
    assert set(EVENT_PAYLOADS) == EVENT_KINDS


@pytest.mark.parametrize(
    ("kind", "payload", "words"),
    [
        ("heartbeat", {"step": "x"}, "heartbeat.step: a whole number from .* to .* is needed, not 'x'"),
        ("heartbeat", {"step": True}, "heartbeat.step: a whole number"),
        ("heartbeat", {"step": 1, "sps": []}, "heartbeat.sps: a number"),
        ("heartbeat", {"doing": 5}, "heartbeat.doing: a text"),
        ("episode", {"step": 1}, "episode.return: missing"),
        ("episode", {"step": 2**63, "return": 1.0}, "episode.step: a whole number"),
        ("metrics", {"step": 1, "losses/a": "high"}, "metrics.losses/a: a number"),
        ("metrics", {"t" * 301: 1.0}, "metrics: a name"),
        ("checkpoint", {"path": 5}, "checkpoint.path: a text"),
        ("phase", {"number": "one"}, "phase.number: a whole number"),
        ("run_started", {"total_timesteps": "many"}, "run_started.total_timesteps"),
        (
            "run_completed",
            {"manifest": {"artifacts": {"videos": 5}}},
            "manifest.artifacts.videos: a list",
        ),
        ("run_failed", {"exit_code": 1.5}, "run_failed.exit_code"),
        ("warning", {"message": {}}, "warning.message: a text"),
        ("resumed", {"changed": []}, "resumed.changed: a JSON object"),
    ],
)
def test_a_field_of_another_type_is_refused_with_its_name_value_and_range(kind: str, payload: Any, words: str) -> None:
    with pytest.raises(FieldError, match=words):
        checked(line(kind, payload))
    assert decoded(line(kind, payload)) is None


@pytest.mark.parametrize("envelope", [{"seq": 2**63}, {"seq": 2**80}, {"seq": -1}, {"timestamp": 1e300}])
def test_an_envelope_beyond_its_range_is_refused(envelope: dict[str, Any]) -> None:
    with pytest.raises((FieldError, EventError)):
        checked(line("heartbeat", {}, **envelope))


def test_a_payload_that_is_nested_too_deep_is_refused() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    with pytest.raises(FieldError, match="nested deeper than 64 levels"):
        checked(line("stage", {"deep": deep}))
    assert checked(line("step", {"steps": [[n, 0, 1.0, 0] for n in range(200)]})).seq == 1


def test_absent_null_and_unread_fields_are_accepted() -> None:
    event = checked(line("heartbeat", {"step": 5, "sps": None, "rss_mb": "?", "last_return": "NaN"}))
    assert event.payload["step"] == 5
