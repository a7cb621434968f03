"""Rows of the registry: converted to runs, each column type-checked; unreadable ones are BROKEN, with the reason."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from mosaic.contract.errors import MoveError, shown
from mosaic.contract.fields import (
    PAYLOAD_BYTES,
    REASON_LENGTH,
    RUN_NULLS,
    RUN_ROW,
    STORED_PAYLOAD,
    WARNINGS_BYTES,
    FieldError,
    parse_object,
)
from mosaic.trainer.run import Change, Run
from mosaic.trainer.states import State

# A placeholder for an unreadable run id; `row-7` is the row with the number 7.
NAMELESS = "row-"

_SAME_NAMES = (
    *("reason", "run_name", "worker_type", "algo", "env_id", "seed", "mode", "total_timesteps", "priority"),
    *("attempt", "restarts", "max_restarts", "created_at", "started_at", "ended_at", "step", "episodes", "last_return"),
    *("last_length", "sps", "exit_code", "signal", "pid", "worker_id", "agent_id", "asked", "mean_return", "group"),
    *("executor", "job", "node"),
)
_SWITCHES = ("external", "stalled", "imported")
# Found by SQLite, without loading them.
_BAD_PAYLOADS = """
    SELECT runs.* FROM runs LEFT JOIN payloads ON payloads.run = runs.id WHERE
    COALESCE(typeof(payload) = 'text' AND CASE json_valid(payload) WHEN 1 THEN json_type(payload) = 'object' END
    AND json_valid(config) AND json_valid(command), 0) = 0
"""
_CHANGES = ("moved", "progress", "deleted", "marked")


class Unreadable:
    """Runs that this daemon cannot read or handle, by row number, each with its reasons; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[int, dict[str, str]] = {}
        self._fresh: list[tuple[str, str]] = []

    def check_row(self, row: sqlite3.Row) -> str:
        """Return the problem of a row's columns, "" if all are readable."""
        found = list(problems_of(row).values())
        problem = found[0] + (f" (and {len(found) - 1} more)" if len(found) > 1 else "") if found else ""
        self.note(row, "row", problem)
        return problem

    def check_payload(self, connection: sqlite3.Connection, row: sqlite3.Row) -> dict[str, Any]:
        """Return a run's payload; raise FieldError if it, its config or its command cannot be read."""
        query = "SELECT payload, config, command FROM payloads WHERE run = ?"
        try:
            payload = read_payload(connection.execute(query, (row["id"],)).fetchone())
        except FieldError as error:
            self.note(row, "payload", str(error))
            raise
        self.note(row, "payload", "")
        return payload

    def hidden(self, row: sqlite3.Row) -> str:
        """Return the reason why a run is BROKEN, "" if its row and its payload are readable."""
        return self.check_row(row) or self.problem(row["id"], "payload")

    def look_through(self, connection: sqlite3.Connection) -> None:
        """Check all rows once: lists filtered by state must know which runs are BROKEN."""
        for row in connection.execute("SELECT * FROM runs"):
            self.check_row(row)
        for row in connection.execute(_BAD_PAYLOADS).fetchall():
            with contextlib.suppress(FieldError):
                self.check_payload(connection, row)

    def note(self, row: sqlite3.Row, source: str, problem: str) -> None:
        """Record why a row is unusable, "" if it is usable; `source` is the row, its payload or its handling."""
        number = row["id"]
        if not problem and number not in self._found:
            return
        with self._lock:
            problems = self._found.setdefault(number, {})
            if problem and not problems:
                self._fresh.append((run_id_of(row), problem))
            problems[source] = problem
            if not any(problems.values()):
                del self._found[number]

    def problem(self, number: int, *sources: str) -> str:
        """Return the first problem of a row, of these sources only if any are given."""
        problems = self._found.get(number, {})
        return next((text for source, text in problems.items() if text and (not sources or source in sources)), "")

    def forget(self, number: int) -> None:
        """Forget a deleted row: its number may be reused."""
        with self._lock:
            self._found.pop(number, None)

    def numbers(self) -> list[int]:
        """Return the rows that are shown as BROKEN."""
        with self._lock:
            return sorted(self._found)

    def fresh(self) -> list[tuple[str, str]]:
        """Return, once each, the ids and problems of runs that have become BROKEN."""
        with self._lock:
            found, self._fresh = self._fresh, []
        return found


def problems_of(row: sqlite3.Row) -> dict[str, str]:
    """Return the problem of each column that cannot be read."""
    found = {}
    for name, value in zip(row.keys(), row, strict=True):
        kind = RUN_ROW.get(name)
        if kind is None or (value is None and name in RUN_NULLS):
            continue
        if value is None:
            found[name] = f"{name}: a value is missing; {kind.words} is needed"
        elif not kind.fits(value):
            found[name] = f"{name}: {kind.words} is needed, not {shown(value)}"
    return found


def run_id_of(row: sqlite3.Row) -> str:
    """Return a run's id, or a placeholder for one that cannot be read."""
    return str(row["run_id"]) if RUN_ROW["run_id"].fits(row["run_id"]) else f"{NAMELESS}{row['id']}"


def read_run(row: sqlite3.Row, folder: str, problem: str, queue: Mapping[int, int], **more: Any) -> Run:
    """Return a row as a run; if it has a problem as a BROKEN one, with the readable columns."""
    values = dict(zip(row.keys(), row, strict=True))  # by name, a row is slower
    bad = problems_of(row) if problem else {}
    named = {name: values[name] for name in _SAME_NAMES if name not in bad}
    switches = {name: bool(values[name]) for name in _SWITCHES if name not in bad}
    lists = {name: tuple(json.loads(values[name])) for name in ("gpus", "warnings") if name not in bad}
    if problem:
        named |= {"state": State.BROKEN, "reason": problem}
    else:
        named |= {
            "state": State(values["state"]),
            "eta_seconds": _eta(values),
            "queue_position": queue.get(values["id"], -1),
        }
        named |= {"next_seq": values["events_seq"], "registered": bool(values["session_hash"])}
        named |= {"stalled_since": float(values["stalled"])} | ({"sps": 0.0} if values["stalled"] else {})
    named["reason"] = named["reason"][:REASON_LENGTH]
    lists["warnings"] = _fitting(lists.get("warnings", ()))
    return Run(**{"run_id": run_id_of(row), **named, **switches, **lists, "folder": folder, **more})


def read_payload(row: sqlite3.Row | None) -> dict[str, Any]:
    """Return a run's payload from its row of `payloads`; raise FieldError if it, its config or its command is bad."""
    if row is None:
        raise FieldError("payload: missing")
    payload = _object(row["payload"], "payload")
    STORED_PAYLOAD.check_fields(payload, "payload")
    _object(row["config"], "config")
    if not RUN_ROW["warnings"].fits(row["command"]):
        raise FieldError(f"command: a JSON list of texts is needed, not {shown(row['command'])}")
    return payload


def read_change(row: sqlite3.Row, run: Run | None) -> Change:
    """Return a row of `changes` without its unreadable columns: the cursor must not stop there."""
    old, new = (State(row[name]) if row[name] in set(State) else None for name in ("from_state", "to_state"))
    kind = row["kind"] if row["kind"] in _CHANGES else "marked"
    reason = row["reason"] if RUN_ROW["reason"].fits(row["reason"]) else ""
    moment = row["timestamp"] if RUN_ROW["created_at"].fits(row["timestamp"]) else 0.0
    run_id = row["run_id"] if RUN_ROW["run_id"].fits(row["run_id"]) else run.run_id if run else ""
    return Change(row["cursor"], kind, run_id, old, new, reason[:REASON_LENGTH], moment, run)


def refusal(row: sqlite3.Row, problem: str) -> MoveError:
    """Return the error for a request on a BROKEN run."""
    run_id = run_id_of(row)
    return MoveError(
        f"run {run_id} is BROKEN: {problem}; recreate its row with: mosaic rebuild, or remove it with: "
        f"mosaic delete {run_id}"
    )


def insert_run(
    connection: sqlite3.Connection,
    columns: Mapping[str, Any],
    payload: Mapping[str, Any],
    config: Mapping[str, Any],
    command: Sequence[str],
) -> None:
    """Insert a run at the end of the queue; raise FieldError for a column that could not be read back."""
    given = {**columns, "queue_order": next_count(connection, "queue")}
    for name, value in given.items():
        if value is not None or name not in RUN_NULLS:
            RUN_ROW[name].check(str(value) if isinstance(value, State) else value, name)
    names, places = ", ".join(f'"{name}"' for name in given), ", ".join("?" * len(given))
    cursor = connection.execute(f"INSERT INTO runs ({names}) VALUES ({places})", tuple(given.values()))
    connection.execute(
        "INSERT INTO payloads (run, payload, config, command) VALUES (?, ?, ?, ?)",
        (cursor.lastrowid, json.dumps(payload), json.dumps(config), json.dumps(list(command))),
    )


def update(connection: sqlite3.Connection, run: int, **columns: Any) -> None:
    """Set columns of a run."""
    if columns:
        names = ", ".join(f'"{name}" = ?' for name in columns)
        connection.execute(f"UPDATE runs SET {names} WHERE id = ?", (*columns.values(), run))


def note_change(
    connection: sqlite3.Connection, kind: str, run_id: str, old: str | None, new: str | None, reason: str, now: float
) -> None:
    """Append to the changes that watchers read."""
    connection.execute(
        "INSERT INTO changes (kind, run_id, from_state, to_state, reason, timestamp) VALUES (?, ?, ?, ?, ?, ?)",
        (kind, run_id, old, new, reason, now),
    )


def next_count(connection: sqlite3.Connection, name: str) -> int:
    """Return the next number of a counter that never decreases."""
    connection.execute(
        "INSERT INTO counters (name, value) VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1", (name,)
    )
    return int(connection.execute("SELECT value FROM counters WHERE name = ?", (name,)).fetchone()[0])


def keep_count(connection: sqlite3.Connection, name: str, used: int) -> None:
    """Raise a counter to at least a number in use."""
    connection.execute(
        "INSERT INTO counters (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = MAX(value, ?)",
        (name, used, used),
    )


def _eta(row: Mapping[str, Any]) -> float | None:
    """Return the seconds that an executing run still needs; None without a usable speed."""
    sps, left = row["sps"], row["total_timesteps"] - row["step"]
    if row["state"] != State.EXECUTING or row["closing"] or row["stalled"] or not sps or sps < 0 or left < 0:
        return None
    seconds = left / sps
    return seconds if math.isfinite(seconds) else None


def _fitting(warnings: tuple[str, ...]) -> tuple[str, ...]:
    """Return the warnings that fit into a list of many runs."""
    kept, room = [], WARNINGS_BYTES
    for text in warnings:
        room -= len(text.encode())
        if room < 0:
            break
        kept.append(text)
    return tuple(kept)


def _object(text: object, what: str) -> dict[str, Any]:
    if type(text) is not str:
        raise FieldError(f"{what}: a JSON object is needed, not {shown(text)}")
    return parse_object(text, what, PAYLOAD_BYTES, wide=True)
