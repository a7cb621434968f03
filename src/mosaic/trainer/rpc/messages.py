"""Conversions between gRPC messages and our own values, both ways."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from mosaic.contract.errors import EventError
from mosaic.contract.events import NOT_FINITE, Event, from_line, to_line
from mosaic.contract.fields import RUN_TEXT_BYTES, WARNING_BYTES, WARNINGS_BYTES
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.trainer.registry.run_warnings import bounded, cut
from mosaic.trainer.run import Artifact, Change, Page, Run, Series
from mosaic.trainer.states import State

_PLAIN = (
    *("run_id", "reason", "run_name", "worker_type", "algo", "env_id", "mode", "total_timesteps", "priority"),
    *("attempt", "restarts", "max_restarts", "created_at", "started_at", "ended_at", "step", "episodes", "signal"),
    *("queue_position", "pid", "folder", "next_seq", "worker_id", "registered", "agent_id", "asked", "external"),
    *("group", "executor", "job", "node", "stalled", "stalled_since", "imported"),
)
_OPTIONAL = ("seed", "last_return", "mean_return", "last_length", "sps", "eta_seconds", "exit_code")
_KINDS = {
    "moved": pb.RunChange.MOVED,
    "progress": pb.RunChange.PROGRESS,
    "deleted": pb.RunChange.DELETED,
    "marked": pb.RunChange.MARKED,
}
_KIND_NAMES = {value: name for name, value in _KINDS.items()}


# The most bytes for the warnings of all runs of one list; a message holds 64 MiB.
_PAGE_WARNINGS = 100 * WARNINGS_BYTES


def run_to_pb(run: Run, warnings_bytes: int = WARNINGS_BYTES) -> pb.Run:
    """Return the message of a run, every text of it within its cap."""
    message = pb.Run(state=state_to_pb(run.state), **{name: _capped(getattr(run, name)) for name in _PLAIN})
    for name in _OPTIONAL:
        if (value := getattr(run, name)) is not None:
            setattr(message, name, value)
    message.gpus.extend(run.gpus)
    message.warnings.extend(bounded(run.warnings, warnings_bytes))
    message.curve.extend(run.curve)
    if run.payload:
        message.payload = json.dumps(run.payload).encode()
    message.last_values.update(run.last_values)
    for one in run.artifacts:
        message.artifacts.add(kind=one.kind, path=one.path, step=one.step, created_at=one.created_at)
    return message


def run_from_pb(message: pb.Run) -> Run:
    optional = {name: getattr(message, name) if message.HasField(name) else None for name in _OPTIONAL}
    return Run(
        **{name: getattr(message, name) for name in _PLAIN},
        **optional,  # type: ignore[arg-type]
        state=State(pb.RunState.Name(message.state)),
        gpus=tuple(message.gpus),
        warnings=tuple(message.warnings),
        curve=tuple(message.curve),
        payload=json.loads(message.payload) if message.payload else {},
        last_values=dict(sorted(message.last_values.items())),
        artifacts=tuple(Artifact(one.kind, one.path, one.step, one.created_at) for one in message.artifacts),
    )


def page_to_pb(page: Page) -> pb.ListRunsResponse:
    room = max(WARNING_BYTES, min(WARNINGS_BYTES, _PAGE_WARNINGS // max(1, len(page.runs))))
    runs = [run_to_pb(run, room) for run in page.runs]
    return pb.ListRunsResponse(runs=runs, next_page=page.next_page, total=page.total)


def page_from_pb(message: pb.ListRunsResponse) -> Page:
    return Page(tuple(run_from_pb(run) for run in message.runs), message.next_page, message.total)


def change_to_pb(change: Change) -> pb.RunChange:
    return pb.RunChange(
        cursor=change.cursor,
        kind=_KINDS[change.kind],
        run_id=change.run_id,
        from_state=state_to_pb(change.from_state),
        to_state=state_to_pb(change.to_state),
        reason=_capped(change.reason),
        timestamp=change.timestamp,
        run=None if change.run is None else run_to_pb(change.run),
    )


def change_from_pb(message: pb.RunChange) -> Change:
    return Change(
        message.cursor,
        _KIND_NAMES[message.kind],
        message.run_id,
        state_from_pb(message.from_state),
        state_from_pb(message.to_state),
        message.reason,
        message.timestamp,
        run_from_pb(message.run) if message.HasField("run") else None,
    )


def series_to_pb(series: Series) -> pb.Series:
    return pb.Series(
        key=series.key,
        steps=series.steps.astype("<i8").tobytes(),
        times=series.times.astype("<f8").tobytes(),
        values=series.values.astype("<f8").tobytes(),
        cursor=series.cursor,
        reset=series.reset,
        total=series.total,
        highest=series.highest,
    )


def series_from_pb(message: pb.Series) -> Series:
    return Series(
        message.key,
        np.frombuffer(message.steps, "<i8"),
        np.frombuffer(message.times, "<f8"),
        np.frombuffer(message.values, "<f8"),
        message.cursor,
        message.reset,
        message.total,
        message.highest if message.HasField("highest") else None,
    )


def event_to_pb(event: Event) -> pb.Event:
    """Episodes and steps as messages of their own, all others as JSON."""
    message = pb.Event(event=event.event, seq=event.seq, timestamp=event.timestamp)
    payload = event.payload
    try:
        if event.event == "episode" and set(payload) == {"step", "return", "length"}:
            message.episode.step = payload["step"]
            message.episode.episode_return = _number(payload["return"])
            if payload["length"] is not None:
                message.episode.length = _number(payload["length"])
            return message
        if event.event == "step" and set(payload) == {"steps"}:
            for step, env, reward, done in payload["steps"]:
                message.steps.steps.add(step=step, env=env, reward=_number(reward), done=bool(done))
            return message
    except (TypeError, ValueError, KeyError):  # of a foreign worker: as it came
        message.ClearField("episode")
        message.ClearField("steps")
    message.payload = to_line(payload).rstrip(b"\n")
    return message


def event_from_pb(message: pb.Event, run_id: str) -> Event:
    payload: dict[str, Any]
    if message.HasField("episode"):
        one = message.episode
        length = one.length if one.HasField("length") else None
        payload = {"step": one.step, "return": _spelled(one.episode_return), "length": _whole(length)}
    elif message.HasField("steps"):
        payload = {"steps": [[one.step, one.env, _spelled(one.reward), int(one.done)] for one in message.steps.steps]}
    else:
        payload = from_line(message.payload)
    if message.seq >= 1 << 63:
        raise EventError(f"an event's seq is a 64-bit number, not {message.seq}")
    return Event(message.event, run_id, message.seq, message.timestamp, payload)


def state_to_pb(state: State | None) -> Any:
    return pb.RunState.Value(state) if state is not None else pb.RUN_STATE_UNSPECIFIED


def state_from_pb(value: Any) -> State | None:
    return State(pb.RunState.Name(value)) if value != pb.RUN_STATE_UNSPECIFIED else None


def _capped(value: Any) -> Any:
    return cut(value, RUN_TEXT_BYTES) if isinstance(value, str) else value


def _number(value: Any) -> float:
    return NOT_FINITE[value] if isinstance(value, str) else float(value)


def _spelled(value: float) -> float | str:
    """As our JSON lines spell what JSON lacks."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _whole(value: float | None) -> float | None:
    return int(value) if value is not None and value.is_integer() else value
