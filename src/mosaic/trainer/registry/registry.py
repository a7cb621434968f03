"""The run registry: runs and their states, requests, metrics and events; SQLite is the source of truth."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mosaic.contract.errors import ConfigError, MosaicError, MoveError, TrainerError, UnknownRunError, shown
from mosaic.contract.events import Event
from mosaic.contract.fields import RUN_ROW
from mosaic.contract.paths import RunPaths, check_run_id
from mosaic.contract.returns import EPISODE_RETURNS
from mosaic.trainer.live.events_file import read_events
from mosaic.trainer.registry import metrics_store
from mosaic.trainer.registry.database import Database
from mosaic.trainer.registry.deletion import living_worker, remove_files, remove_rows
from mosaic.trainer.registry.filters import where_runs
from mosaic.trainer.registry.rows import (
    NAMELESS,
    Unreadable,
    insert_run,
    note_change,
    read_change,
    read_run,
    refusal,
    run_id_of,
    update,
)
from mosaic.trainer.run import Artifact, Change, Page, Run, Series
from mosaic.trainer.states import ENDED, LIVE, State, check_move

PAGE_SIZE, LARGEST_PAGE, LONGEST_CURVE = 50, 1000, 100
MOST_KEYS = 1000
QUEUE = "priority DESC, queue_order"
# Exceptions of a damaged payload, artifact or curve in the database.
_UNREADABLE = (ValueError, TypeError, RecursionError)


@dataclass(frozen=True)
class NewRun:
    """A new run for the registry."""

    run_id: str
    payload: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    command: Sequence[str] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    """columns of `runs` by name: algo, env_id, seed, cpus, max_steps, …"""


class Registry:
    """All operations on runs; thread-safe. Changes are committed before a method returns."""

    def __init__(self, home: Path, *, clock: Callable[[], float] = time.time, busy_seconds: float = 5.0) -> None:
        self.home = Path(home)
        self.database = Database(self.home / "var" / "trainer" / "mosaic.db", busy_seconds=busy_seconds)
        self.clock = clock
        self.changed = threading.Condition()
        """notified after every change of a run: waiters check again"""
        self.unreadable = Unreadable()
        self.left = self._finish_deletions()
        """runs whose files still cannot be deleted: id and reason"""
        with self.database.read() as connection:
            self.unreadable.look_through(connection)

    def add_run(self, new: NewRun) -> Run:
        """Add a run to the queue."""
        now = self.clock()
        columns = {
            **new.columns,
            **{"run_id": check_run_id(new.run_id), "state": State.INIT, "created_at": now},
        }
        with self.database.write() as connection:
            if connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (new.run_id,)).fetchone():
                raise ConfigError(f"run {new.run_id} exists already; leave the run id out to get a new one")
            insert_run(connection, columns, new.payload, new.config, new.command)
            note_change(connection, "moved", new.run_id, None, State.INIT, "", now)
        self.notify()
        return self.get_run(new.run_id)

    def get_run(self, run_id: str) -> Run:
        """Return one run with its payload, last values and artefacts; raise UnknownRunError if it does not exist."""
        with self.database.read() as connection:
            row = self._any_row(connection, run_id)
            details: dict[str, Any] = {}
            try:
                details["payload"] = self.unreadable.check_payload(connection, row)
                details["last_values"] = metrics_store.last_values(connection, row["id"])
                details["artifacts"] = self._still_there(row, _artifacts(connection, row["id"]))
            except _UNREADABLE as error:
                self.unreadable.note(row, "payload", str(error))
            return self._run(row, self._queue(connection), **details)

    def _still_there(self, row: sqlite3.Row, kept: Sequence[Artifact]) -> tuple[Artifact, ...]:
        """Return the artefacts without the checkpoints pruned since; those of a remote run are not checked."""
        folder = self.paths(row["run_id"]).folder
        return tuple(
            one
            for one in kept
            if one.kind != "checkpoint" or not row["reads_files"] or os.path.exists(folder / one.path)
        )

    def knows(self, run_id: str) -> bool:
        """Return True if a run of this id exists, even if it is being deleted."""
        with self.database.read() as connection:
            return connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (run_id,)).fetchone() is not None

    def list_runs(
        self,
        *,
        states: Sequence[State | str] = (),
        algo: str = "",
        env_id: str = "",
        mode: str = "",
        text: str = "",
        group: str = "",
        page_size: int = PAGE_SIZE,
        page: str = "",
        curve_points: int = 0,
    ) -> Page:
        """Return a page of the matching runs, newest first, with curves of `curve_points` points each.

        `group` is a group and all below it: "sweep:a" also finds "sweep:a/trial 1".
        """
        broken = self.unreadable.numbers()
        where, values = where_runs(states, {"algo": algo, "env_id": env_id, "mode": mode}, text, group, broken)
        if page and not (page.isdecimal() and len(page) <= 18):
            raise ConfigError(f"page is the next_page of an earlier answer, not {shown(page)}")
        size = min(max(1, page_size), LARGEST_PAGE)
        with self.database.read() as connection:
            total = connection.execute(f"SELECT COUNT(*) FROM runs WHERE {where}", values).fetchone()[0]
            before = (f"{where} AND id < ?", [*values, int(page)]) if page else (where, values)
            query = f"SELECT * FROM runs WHERE {before[0]} ORDER BY id DESC LIMIT ?"
            rows = connection.execute(query, [*before[1], size + 1]).fetchall()
            queue = self._queue(connection)
            curves = [_curve(connection, row["id"], curve_points) for row in rows[:size]]
        runs = tuple(self._run(row, queue, curve=curve) for row, curve in zip(rows, curves, strict=False))
        return Page(runs, str(rows[size - 1]["id"]) if len(rows) > size else "", total)

    def cancel_run(self, run_id: str, grace_seconds: float | None = None, reason: str = "cancelled") -> Run:
        """End a run: a queued one at once, a live one gently, by force after the grace period."""
        if grace_seconds is not None and not 0 <= grace_seconds < 1e9:
            raise ConfigError(f"grace_seconds is a number of seconds, 0 or more, not {shown(grace_seconds)}")
        with self.database.write() as connection:
            row = self.row(connection, run_id)
            if row["state"] == State.INIT:
                self.move(connection, row, State.CANCELLED, reason, ended_at=self.clock())
            elif row["state"] in LIVE:
                # On a repeated request, the shorter of the two periods counts.
                grace = grace_seconds
                if row["asked"] == "cancel" and row["asked_grace"] is not None:
                    grace = row["asked_grace"] if grace is None else min(grace, row["asked_grace"])
                why = row["asked_reason"] if row["asked"] == "cancel" else reason
                update(connection, row["id"], asked="cancel", asked_reason=why, asked_grace=grace)
            elif row["state"] != State.CANCELLED:
                raise MoveError(f"run {run_id} is {row['state']} and cannot be cancelled; it has ended")
        self.notify()
        return self.get_run(run_id)

    def pause_run(self, run_id: str) -> Run:
        """Ask an executing run to pause; it is PAUSED once its worker reports it."""
        return self._ask(run_id, "pause", State.EXECUTING, State.PAUSED)

    def continue_run(self, run_id: str) -> Run:
        """Ask a paused run to continue."""
        return self._ask(run_id, "continue", State.PAUSED, State.EXECUTING)

    def delete_run(self, run_id: str) -> None:
        """Delete an ended run: its folder, its configs, its rows. StorageError: files cannot be deleted, retry."""
        with self.database.write() as connection:
            row = self._any_row(connection, run_id)
            broken = self.unreadable.check_row(row) or self.unreadable.problem(row["id"])
            if not broken and row["state"] not in ENDED:
                raise MoveError(f"run {run_id} is {row['state']}; only an ended run can be deleted: cancel it first")
            if broken and (pid := living_worker(row, self.paths(run_id_of(row)))):
                raise MoveError(
                    f"run {run_id} is BROKEN and its worker still runs; end it with: kill {pid}, then delete the run"
                )
            update(connection, row["id"], deleting=1)
        self._delete(row)

    def changes(self, cursor: int, *, run_id: str = "", limit: int = 500) -> list[Change]:
        """Return the changes after `cursor`, oldest first, each with the run's present state."""
        with self.database.read() as connection:
            values: tuple[int | str, ...] = (cursor,)
            query = "SELECT * FROM changes WHERE cursor > ?"
            if run_id:
                query, values = query + " AND run_id = ?", (cursor, run_id)
            rows = connection.execute(f"{query} ORDER BY cursor LIMIT ?", (*values, limit)).fetchall()
            queue = self._queue(connection) if rows else {}
            found = []
            for row in rows:
                run = connection.execute("SELECT * FROM runs WHERE run_id = ?", (row["run_id"],)).fetchone()
                found.append(read_change(row, None if run is None else self._run(run, queue)))
        return found

    def last_cursor(self) -> int:
        """Return the cursor of the newest change, 0 if none exists."""
        with self.database.read() as connection:
            return int(connection.execute("SELECT COALESCE(MAX(cursor), 0) FROM changes").fetchone()[0])

    def get_metrics(
        self,
        run_id: str,
        keys: Sequence[str] = (),
        *,
        max_points: int = 0,
        since: Mapping[str, int] | None = None,
        average: bool = False,
    ) -> list[Series]:
        """Return curves, downsampled to `max_points` each (0: every point), or only points after `since` cursors."""
        if len(keys) > MOST_KEYS:
            raise ConfigError(f"{len(keys)} keys are asked for; at most {MOST_KEYS} at once, or none for all")
        with self.database.read() as connection:
            row = self.row(connection, run_id)
            try:
                return metrics_store.read_series(
                    connection,
                    row["id"],
                    row["metrics_epoch"],
                    keys=keys,
                    max_points=max_points,
                    since=since,
                    average=average,
                )
            except _UNREADABLE as error:
                why = f"the curves of run {run_id} cannot be read: {error}"
                raise TrainerError(f"{why}; its rows are in {self.paths(run_id).metrics}") from None

    def read_events(self, run_id: str, from_seq: int = 0, until_seq: int | None = None) -> Iterator[Event]:
        """Yield the events that the registry has stored, in order, from the run's own file."""
        with self.database.read() as connection:
            seen = self.row(connection, run_id)["events_seq"]
        end = seen if until_seq is None else min(seen, until_seq)
        yield from read_events(self.paths(run_id).events, run_id, from_seq, end)

    def counts(self) -> dict[str, int]:
        """Return the number of runs in each state."""
        found: dict[str, int] = {}
        with self.database.read() as connection:
            for state, count in connection.execute("SELECT state, COUNT(*) FROM runs GROUP BY state"):
                found[state] = count
            broken = "SELECT state FROM runs WHERE id IN (SELECT value FROM json_each(?))"
            for (state,) in connection.execute(broken, (json.dumps(self.unreadable.numbers()),)):
                found[state] -= 1
                found[State.BROKEN] = found.get(State.BROKEN, 0) + 1
        return {state: count for state, count in found.items() if count and state in set(State)}

    def paths(self, run_id: str) -> RunPaths:
        return RunPaths(run_id, self.home)

    def close(self) -> None:
        self.database.close()

    def notify(self) -> None:
        """Wake all threads that wait for changes."""
        with self.changed:
            self.changed.notify_all()

    def row(self, connection: sqlite3.Connection, run_id: str) -> sqlite3.Row:
        """Return the row of a run; raise UnknownRunError if it is missing, or MoveError if it cannot be read."""
        found = self._any_row(connection, run_id)
        if problem := self.unreadable.hidden(found):
            raise refusal(found, problem)
        return found

    def move(self, connection: sqlite3.Connection, row: sqlite3.Row, to: State, reason: str, **columns: Any) -> None:
        """Change a run's state, if the table allows it, and record the change; inside the caller's transaction."""
        check_move(row["run_id"], State(row["state"]), to)
        update(connection, row["id"], state=to, reason=reason, stalled=0, **columns)
        note_change(connection, "moved", row["run_id"], row["state"], to, reason, self.clock())

    def mark(self, run_id: str) -> None:
        """Notify watchers that a run has changed."""
        with self.database.write() as connection:
            note_change(connection, "marked", run_id, None, None, "", self.clock())
        self.notify()

    def _ask(self, run_id: str, what: str, needed: State, there: State) -> Run:
        with self.database.write() as connection:
            row = self.row(connection, run_id)
            opposite = {"pause": "continue", "continue": "pause"}[what]
            if row["asked"] == "cancel":
                raise MoveError(f"run {run_id} is being cancelled; it cannot {what}")
            if row["state"] == needed or (row["state"] == there and row["asked"] == opposite):
                update(connection, row["id"], asked=what)
            elif row["state"] != there:
                raise MoveError(f"run {run_id} is {row['state']}; only a run that is {needed} can {what}")
        self.notify()
        return self.get_run(run_id)

    def _any_row(self, connection: sqlite3.Connection, run_id: str) -> sqlite3.Row:
        """Return the row of a run, even an unreadable one; raise UnknownRunError if it is missing."""
        query = "SELECT * FROM runs WHERE run_id = ? AND deleting IS NOT 1"
        found: sqlite3.Row | None = connection.execute(query, (run_id,)).fetchone()
        number = run_id.removeprefix(NAMELESS)
        if found is None and run_id != number and number.isdecimal() and len(number) < 19:
            found = connection.execute("SELECT * FROM runs WHERE id = ?", (int(number),)).fetchone()
            found = found if found is not None and run_id_of(found) == run_id else None
        if found is None:
            raise UnknownRunError(f"run {shown(run_id)} is unknown to this daemon; list them with: mosaic runs")
        return found

    def _run(self, row: sqlite3.Row, queue: Mapping[int, int], **more: Any) -> Run:
        problem = self.unreadable.check_row(row) or self.unreadable.problem(row["id"])
        return read_run(row, str(self.paths(run_id_of(row)).folder), problem, queue, **more)

    def _queue(self, connection: sqlite3.Connection) -> dict[int, int]:
        """Return the position of every queued run, from 0."""
        waiting = f"SELECT id FROM runs WHERE state = 'INIT' AND external = 0 ORDER BY {QUEUE}"
        broken = set(self.unreadable.numbers())
        numbers = [row[0] for row in connection.execute(waiting) if row[0] not in broken]
        return {number: place for place, number in enumerate(numbers)}

    def _delete(self, row: sqlite3.Row) -> None:
        """Delete files before rows: the mark of a half-deleted run survives a crash for the next start."""
        run_id = run_id_of(row)
        try:
            if run_id == row["run_id"]:
                remove_files(self.paths(run_id))
            with self.database.write() as connection:
                remove_rows(connection, row["id"])
                note_change(connection, "deleted", run_id, None, None, "", self.clock())
        except MosaicError:
            with self.database.write() as connection:
                update(connection, row["id"], deleting=0)
            raise
        self.unreadable.forget(row["id"])
        self.notify()

    def _finish_deletions(self) -> list[tuple[str, str]]:
        """Finish the deletions of an earlier daemon; one that still fails becomes a run again."""
        with self.database.read() as connection:
            marked = connection.execute("SELECT * FROM runs WHERE deleting = 1").fetchall()
        left = []
        for row in marked:
            try:
                self._delete(row)
            except MosaicError as error:
                left.append((run_id_of(row), str(error)))
        return left


def _artifacts(connection: sqlite3.Connection, run: int) -> list[Artifact]:
    query = "SELECT kind, path, step, created_at FROM artifacts WHERE run = ? ORDER BY created_at, path"
    kinds = [RUN_ROW[name] for name in ("run_name", "run_name", "step", "created_at")]
    rows = [tuple(row) for row in connection.execute(query, (run,))]
    return [Artifact(*row) for row in rows if all(kind.fits(value) for kind, value in zip(kinds, row, strict=True))]


def _curve(connection: sqlite3.Connection, run: int, points: int) -> tuple[float, ...]:
    try:
        return metrics_store.sketch(connection, run, EPISODE_RETURNS, min(points, LONGEST_CURVE)) if points else ()
    except _UNREADABLE:
        return ()
