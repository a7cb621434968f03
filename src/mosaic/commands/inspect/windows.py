"""Windows of a run: from a kept checkpoint, or step 0, to the next weight hash that its events record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mosaic.contract import metrics
from mosaic.contract.checkpoints import CheckpointError, find_all, read_document
from mosaic.contract.errors import ConfigError, EventError
from mosaic.contract.event_reader import decoded
from mosaic.contract.events import from_line
from mosaic.contract.fields import EVENT_BYTES
from mosaic.contract.lines import lines_of
from mosaic.contract.paths import RunPaths

_KINDS = (b'"checkpoint"', b'"resumed"', b'"run_started"')
_DAMAGED = (OSError, ValueError, KeyError, TypeError, CheckpointError)


@dataclass(frozen=True)
class RunRecord:
    """A checkpoint as its event recorded it; the checkpoint itself may be deleted."""

    step: int
    weights: str
    metrics_bytes: int
    exact: bool
    device: str


@dataclass(frozen=True)
class Window:
    """The steps from `start` to the recorded `end`; `checkpoint` is None for one that begins at step 0."""

    start: int
    end: RunRecord
    checkpoint: Path | None
    state: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """the checkpoint's document"""
    changed: Mapping[str, Any] = field(default_factory=dict)
    """arguments that the run was given when it was resumed at `start`"""


@dataclass
class History:
    """The recorded checkpoints of the run's current line, in the order of their steps."""

    records: list[RunRecord] = field(default_factory=list)
    changed: dict[int, dict[str, Any]] = field(default_factory=dict)
    """by the step at which a resumption changed arguments: the new values"""
    total: int = 0
    from_zero: bool = True
    """the run began at step 0 with new weights"""


def read_history(paths: RunPaths) -> History:
    """Return the run's recorded checkpoints without those that a resumption dropped."""
    found = History()
    for line, _ in lines_of(paths.events, 0, EVENT_BYTES):
        if not any(kind in line for kind in _KINDS) or (event := decoded(line)) is None:
            continue
        payload, step = event.payload, event.payload.get("step")
        if event.event == "run_started":
            found.total = payload.get("total_timesteps") or found.total
        elif event.event == "resumed" and isinstance(step, int):
            if payload.get("warm_start") or all(record.step != step for record in found.records):
                found.from_zero = False
            found.records = [record for record in found.records if record.step <= step]
            new = {name: pair[1] for name, pair in (payload.get("changed") or {}).items() if _is_pair(pair)}
            found.changed = {at: values for at, values in found.changed.items() if at < step} | {step: new}
            found.total = new.get("total_timesteps", found.total)
        elif event.event == "checkpoint" and isinstance(step, int):
            found.records = [record for record in found.records if record.step < step]
            if payload.get("weights"):
                bytes_, device = payload.get("metrics_bytes") or 0, str(payload.get("device") or "")
                found.records.append(RunRecord(step, payload["weights"], bytes_, bool(payload.get("exact")), device))
    return found


def windows_of(paths: RunPaths) -> list[Window]:
    """Return every repeatable window, the newest first; ConfigError if none is."""
    history = read_history(paths)
    if not history.records:
        raise ConfigError(
            f"run {paths.run_id} cannot be verified: none of its checkpoint events has a weight hash; "
            "only runs with checkpoints of this version or later record one"
        )
    found = [*_from_checkpoints(paths, history)]
    first = history.records[0]
    if history.from_zero and first.step > 0 and _repeatable(first, history.total):
        found.append(Window(0, first, None))
    if not found:
        raise ConfigError(
            f"run {paths.run_id} cannot be verified: no exact checkpoint is kept before a recorded weight hash, "
            "and it did not begin at step 0; keep checkpoints by pinning them"
        )
    return found


def difference(window: Window, recorded: Path, again: Path, end: RunRecord, *, thinned: bool = False) -> str:
    """Return a description of the first different row, or of different weights; "" for none.

    With `thinned`, the recorded file holds a part of the run's rows; the other rows are not compared.
    """
    try:
        then_rows = _rows_of(window, recorded, thinned)
        now_rows = metrics.comparable(again, window.start or -1, end.metrics_bytes).splitlines()
    except (EventError, OSError) as error:
        raise ConfigError(f"the window cannot be compared: {error}") from None
    if thinned:
        now_rows = _counterparts(then_rows, now_rows)
    for then, now in zip_longest(then_rows, now_rows):
        if then != now:
            return _row_difference(then, now)
    if window.end.weights != end.weights:
        return f"step {end.step:,}: weights {window.end.weights[:12]} recorded, {end.weights[:12]} now"
    return ""


def count_rows(window: Window, recorded: Path, *, thinned: bool = False) -> int:
    """Return the number of rows that a window compares."""
    return len(_rows_of(window, recorded, thinned))


def _rows_of(window: Window, recorded: Path, thinned: bool) -> list[bytes]:
    """Return the recorded rows of a window.

    In a thinned file the recorded byte count has no meaning: rows of the window's last step are left out, since some
    of them are logged after the checkpoint.
    """
    if not thinned:
        return metrics.comparable(recorded, window.start or -1, window.end.metrics_bytes).splitlines()
    rows = metrics.comparable(recorded, window.start or -1).splitlines()
    return [row for row in rows if from_line(row)["step"] < window.end.step]


def _counterparts(then: Sequence[bytes], now: Sequence[bytes]) -> list[bytes]:
    """Return for each recorded row the equal row of the rerun, else the one with the same step and tags."""
    equal = set(now)
    by_kind = {_kind(row): row for row in reversed(now)} if any(row not in equal for row in then) else {}
    found = (row if row in equal else by_kind.get(_kind(row)) for row in then)
    return [row for row in found if row is not None]


def _kind(row: bytes) -> tuple[int, tuple[str, ...]]:
    values = from_line(row)
    return int(values["step"]), tuple(values)


def _from_checkpoints(paths: RunPaths, history: History) -> Iterator[Window]:
    known = {record.step: record for record in history.records}
    kept = [path for path in find_all(paths.checkpoints) if path.parent == paths.checkpoints]
    for path in sorted(kept, key=lambda one: -int(one.name)):
        following = next((record for record in history.records if record.step > int(path.name)), None)
        try:
            state = read_document(path)
        except _DAMAGED:
            continue
        record = known.get(int(path.name))
        if record is None or following is None or not state.get("exact") or state.get("weights") != record.weights:
            continue
        changed = history.changed.get(record.step, {})
        total = changed.get("total_timesteps") or (state.get("args") or {}).get("total_timesteps") or history.total
        if _repeatable(following, total):
            yield Window(record.step, following, path, state, changed)


def _repeatable(record: RunRecord, total: object) -> bool:
    """Return True if an uninterrupted training saves at this step: on schedule, or at its end."""
    return record.exact or (isinstance(total, int) and record.step >= total)


def _row_difference(then: bytes | None, now: bytes | None) -> str:
    if then is None or now is None:
        only, row = ("now", now) if then is None else ("recorded", then)
        step = from_line(row or b"{}").get("step")
        return f"step {step:,}: this row exists only {only}: {(row or b'').decode()[:200]}"
    old, new = from_line(then), from_line(now)
    if old.get("step") != new.get("step"):
        return f"step {min(old['step'], new['step']):,}: the row of step {old['step']:,} recorded, {new['step']:,} now"
    tag = next(tag for tag in [*old, *new] if old.get(tag) != new.get(tag) or (tag in old) != (tag in new))
    return f"step {old['step']:,}: {tag} {old.get(tag, 'absent')} recorded, {new.get(tag, 'absent')} now"


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2
