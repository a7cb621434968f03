"""The run registry: runs and their states, what was asked of them, their metrics and events; truth lies in SQLite."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mosaic.trainer import metrics_store
from mosaic.trainer.database import Database
from mosaic.trainer.events_file import read_events
from mosaic.trainer.run import Artifact, Change, Page, Run, Series
from mosaic.trainer.states import ENDED, LIVE, State, check_move, parse_state
from mosaic.wire.errors import ConfigError, MoveError, UnknownRunError, shown
from mosaic.wire.events import Event
from mosaic.wire.paths import RunPaths, check_run_id

PAGE_SIZE, LARGEST_PAGE, LONGEST_CURVE = 50, 1000, 100
MOST_KEYS = 1000
QUEUE = "priority DESC, queue_order"


@dataclass(frozen=True)
class NewRun:
    """What the registry is told of a run when it enters; `reason` is given where it is refused."""

    run_id: str
    payload: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    command: Sequence[str] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    """columns of `runs` by name: algo, env_id, seed, cpus, max_steps, …"""
    refused: str = ""


class Registry:
    """All verbs on runs, for any number of threads. What a verb returned is committed."""

    def __init__(self, home: Path, *, clock: Callable[[], float] = time.time, busy_seconds: float = 5.0) -> None:
        self.home = Path(home)
        self.database = Database(self.home / "var" / "trainer" / "mosaic.db", busy_seconds=busy_seconds)
        self.clock = clock
        self.changed = threading.Condition()
        """notified after every change of a run: waiters look again"""
        self._finish_deletions()

    def add_run(self, new: NewRun) -> Run:
        """Take a run into the queue, or among the failed ones where it is refused."""
        now = self.clock()
        state = State.FAILED if new.refused else State.INIT
        columns = {
            **new.columns,
            **{"run_id": check_run_id(new.run_id), "state": state, "created_at": now},
            **({"reason": new.refused, "ended_at": now} if new.refused else {}),
        }
        with self.database.write() as connection:
            if connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (new.run_id,)).fetchone():
                raise ConfigError(f"run {new.run_id} exists already; leave the run id out to get a new one")
            columns["queue_order"] = next_count(connection, "queue")
            places = ", ".join("?" * len(columns))
            cursor = connection.execute(
                f"INSERT INTO runs ({', '.join(map(_quoted, columns))}) VALUES ({places})", tuple(columns.values())
            )
            connection.execute(
                "INSERT INTO payloads (run, payload, config, command) VALUES (?, ?, ?, ?)",
                (cursor.lastrowid, json.dumps(new.payload), json.dumps(new.config), json.dumps(list(new.command))),
            )
            note_change(connection, "moved", new.run_id, None, state, new.refused, now)
        self.notify()
        return self.get_run(new.run_id)

    def get_run(self, run_id: str) -> Run:
        """One run with its payload, last values and artefacts; UnknownRunError."""
        with self.database.read() as connection:
            row = self.row(connection, run_id)
            payload = connection.execute("SELECT payload FROM payloads WHERE run = ?", (row["id"],)).fetchone()
            kept = connection.execute(
                "SELECT kind, path, step, created_at FROM artifacts WHERE run = ? ORDER BY created_at, path",
                (row["id"],),
            )
            return self._run(
                row,
                _queue(connection),
                payload=json.loads(payload[0]) if payload else {},
                last_values=metrics_store.last_values(connection, row["id"]),
                artifacts=self._still_there(row, [Artifact(*artifact) for artifact in kept]),
            )

    def _still_there(self, row: sqlite3.Row, kept: Sequence[Artifact]) -> tuple[Artifact, ...]:
        """Without the checkpoints that have made room for newer ones since; a remote run's lie elsewhere."""
        folder = self.paths(row["run_id"]).folder
        return tuple(
            one for one in kept if one.kind != "checkpoint" or not row["reads_files"] or (folder / one.path).exists()
        )

    def knows(self, run_id: str) -> bool:
        """Whether there is a run of this id, be it on its way out."""
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
        """A page of the runs that match, newest first, with their returns in so many points each.

        `group` is a group and all that lie below it: "sweep:a" also finds "sweep:a/trial 1".
        """
        where, values = _filters(states, {"algo": algo, "env_id": env_id, "mode": mode}, text, group)
        if page and not page.isdecimal():
            raise ConfigError(f"page is the next_page of an earlier answer, not {shown(page)}")
        size = min(max(1, page_size), LARGEST_PAGE)
        with self.database.read() as connection:
            total = connection.execute(f"SELECT COUNT(*) FROM runs WHERE {where}", values).fetchone()[0]
            before = (f"{where} AND id < ?", [*values, int(page)]) if page else (where, values)
            query = f"SELECT * FROM runs WHERE {before[0]} ORDER BY id DESC LIMIT ?"
            rows = connection.execute(query, [*before[1], size + 1]).fetchall()
            queue = _queue(connection)
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
                # Asked a second time, the shorter of the two periods counts.
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
        """Ask an executing run to stand still; it is PAUSED once its worker says so."""
        return self._ask(run_id, "pause", State.EXECUTING, State.PAUSED)

    def continue_run(self, run_id: str) -> Run:
        """Ask a paused run to go on."""
        return self._ask(run_id, "continue", State.PAUSED, State.EXECUTING)

    def delete_run(self, run_id: str) -> None:
        """Delete an ended run: its folder, its configs, its rows."""
        with self.database.write() as connection:
            row = self.row(connection, run_id)
            if row["state"] not in ENDED:
                raise MoveError(f"run {run_id} is {row['state']}; only an ended run can be deleted: cancel it first")
            update(connection, row["id"], deleting=1)
        self._delete(run_id)

    def changes(self, cursor: int, *, run_id: str = "", limit: int = 500) -> list[Change]:
        """What happened after `cursor`, oldest first, each with the run as it is now."""
        with self.database.read() as connection:
            values: tuple[int | str, ...] = (cursor,)
            query = "SELECT * FROM changes WHERE cursor > ?"
            if run_id:
                query, values = query + " AND run_id = ?", (cursor, run_id)
            rows = connection.execute(f"{query} ORDER BY cursor LIMIT ?", (*values, limit)).fetchall()
            queue = _queue(connection) if rows else {}
            found = []
            for row in rows:
                run = connection.execute("SELECT * FROM runs WHERE run_id = ?", (row["run_id"],)).fetchone()
                found.append(_change(row, None if run is None else self._run(run, queue)))
        return found

    def last_cursor(self) -> int:
        """The cursor of the newest change, 0 when there is none."""
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
        """Curves, downsampled to `max_points` each (0: every point), or only what came after the cursors in `since`."""
        if len(keys) > MOST_KEYS:
            raise ConfigError(f"{len(keys)} keys are asked for; at most {MOST_KEYS} at once, or none for all")
        with self.database.read() as connection:
            row = self.row(connection, run_id)
            return metrics_store.read_series(
                connection,
                row["id"],
                row["metrics_epoch"],
                keys=keys,
                max_points=max_points,
                since=since,
                average=average,
            )

    def read_events(self, run_id: str, from_seq: int = 0, until_seq: int | None = None) -> Iterator[Event]:
        """The events that the registry has seen, in order, from the run's own file."""
        with self.database.read() as connection:
            seen = self.row(connection, run_id)["events_seq"]
        end = seen if until_seq is None else min(seen, until_seq)
        yield from read_events(self.paths(run_id).events, run_id, from_seq, end)

    def counts(self) -> dict[str, int]:
        """How many runs are in each state."""
        with self.database.read() as connection:
            return dict(connection.execute("SELECT state, COUNT(*) FROM runs GROUP BY state").fetchall())

    def paths(self, run_id: str) -> RunPaths:
        return RunPaths(run_id, self.home)

    def close(self) -> None:
        self.database.close()

    def notify(self) -> None:
        """Wake everybody who waits for changes."""
        with self.changed:
            self.changed.notify_all()

    def row(self, connection: sqlite3.Connection, run_id: str) -> sqlite3.Row:
        """The row of a run; UnknownRunError."""
        query = "SELECT * FROM runs WHERE run_id = ? AND deleting = 0"
        found: sqlite3.Row | None = connection.execute(query, (run_id,)).fetchone()
        if found is None:
            raise UnknownRunError(f"run {shown(run_id)} is unknown to this daemon; list them with: mosaic runs")
        return found

    def move(self, connection: sqlite3.Connection, row: sqlite3.Row, to: State, reason: str, **columns: Any) -> None:
        """Change a run's state, if the table allows it, and note the change; inside the caller's transaction."""
        check_move(row["run_id"], State(row["state"]), to)
        update(connection, row["id"], state=to, reason=reason, stalled=0, **columns)
        note_change(connection, "moved", row["run_id"], row["state"], to, reason, self.clock())

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

    def _delete(self, run_id: str) -> None:
        """Files first: what a crash leaves half deleted is still marked, and finished at the next start."""
        paths = self.paths(run_id)
        if paths.folder.exists():
            shutil.rmtree(paths.folder)
        for file in (paths.config_file, *paths.configs_folder.glob(f"worker-{run_id}-*.json")):
            file.unlink(missing_ok=True)
        with self.database.write() as connection:
            row = connection.execute("SELECT id, state FROM runs WHERE run_id = ?", (run_id,)).fetchone()
            if row is None:
                return
            metrics_store.forget(connection, row["id"])
            connection.execute("DELETE FROM artifacts WHERE run = ?", (row["id"],))
            connection.execute("DELETE FROM payloads WHERE run = ?", (row["id"],))
            connection.execute("DELETE FROM runs WHERE id = ?", (row["id"],))
            note_change(connection, "deleted", run_id, row["state"], None, "", self.clock())
        self.notify()

    def _finish_deletions(self) -> None:
        with self.database.read() as connection:
            marked = [row[0] for row in connection.execute("SELECT run_id FROM runs WHERE deleting = 1")]
        for run_id in marked:
            self._delete(run_id)

    def _run(self, row: sqlite3.Row, queue: Mapping[int, int], **more: Any) -> Run:
        sps, left = 0.0 if row["stalled"] else row["sps"], row["total_timesteps"] - row["step"]
        executing = row["state"] == State.EXECUTING and not row["closing"]
        named = {name: row[name] for name in _SAME_NAMES}
        return Run(
            **named,
            sps=sps,
            state=State(row["state"]),
            eta_seconds=left / sps if executing and sps and left >= 0 else None,
            queue_position=queue.get(row["id"], -1),
            gpus=tuple(json.loads(row["gpus"])),
            warnings=tuple(json.loads(row["warnings"])),
            folder=str(self.paths(row["run_id"]).folder),
            next_seq=row["events_seq"],
            registered=bool(row["session_hash"]),
            external=bool(row["external"]),
            stalled=bool(row["stalled"]),
            stalled_since=float(row["stalled"]),
            imported=bool(row["imported"]),
            **more,
        )


_SAME_NAMES = (
    *("run_id", "reason", "run_name", "worker_type", "algo", "env_id", "seed", "mode", "total_timesteps", "priority"),
    *("attempt", "restarts", "max_restarts", "created_at", "started_at", "ended_at", "step", "episodes", "last_return"),
    *("last_length", "exit_code", "signal", "pid", "worker_id", "agent_id", "asked", "mean_return", "group"),
    *("executor", "job", "node"),
)


def update(connection: sqlite3.Connection, run: int, **columns: Any) -> None:
    """Set columns of a run."""
    if columns:
        names = ", ".join(f'"{name}" = ?' for name in columns)
        connection.execute(f"UPDATE runs SET {names} WHERE id = ?", (*columns.values(), run))


def note_change(
    connection: sqlite3.Connection, kind: str, run_id: str, old: str | None, new: str | None, reason: str, now: float
) -> None:
    connection.execute(
        "INSERT INTO changes (kind, run_id, from_state, to_state, reason, timestamp) VALUES (?, ?, ?, ?, ?, ?)",
        (kind, run_id, old, new, reason, now),
    )


def next_count(connection: sqlite3.Connection, name: str) -> int:
    """The next number of a counter that never goes back."""
    connection.execute(
        "INSERT INTO counters (name, value) VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1", (name,)
    )
    return int(connection.execute("SELECT value FROM counters WHERE name = ?", (name,)).fetchone()[0])


def _queue(connection: sqlite3.Connection) -> dict[int, int]:
    """The place of every queued run, from 0."""
    waiting = f"SELECT id FROM runs WHERE state = 'INIT' AND external = 0 ORDER BY {QUEUE}"
    return {row[0]: place for place, row in enumerate(connection.execute(waiting))}


def _change(row: sqlite3.Row, run: Run | None) -> Change:
    old, new = (None if row[name] is None else State(row[name]) for name in ("from_state", "to_state"))
    return Change(row["cursor"], row["kind"], row["run_id"], old, new, row["reason"], row["timestamp"], run)


def _curve(connection: sqlite3.Connection, run: int, points: int) -> tuple[float, ...]:
    return metrics_store.sketch(connection, run, metrics_store.RETURNS, min(points, LONGEST_CURVE)) if points else ()


def _quoted(name: str) -> str:
    return f'"{name}"'


def _filters(
    states: Sequence[State | str], equal: Mapping[str, str], text: str, group: str = ""
) -> tuple[str, list[Any]]:
    clauses: list[str] = ["deleting = 0"]
    values: list[Any] = []
    if states:
        clauses.append(f"state IN ({', '.join('?' * len(states))})")
        values += [parse_state(state) for state in states]
    for name, value in equal.items():
        if value:
            clauses.append(f"{name} = ?")
            values.append(value)
    if group:
        # A range, which an index can answer: "0" is the character after "/".
        clauses.append('("group" = ? OR ("group" >= ? AND "group" < ?))')
        values += [group, f"{group}/", f"{group}0"]
    if text:
        escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        columns = ("run_id", "run_name", "algo", "env_id", "agent_id", "worker_id", '"group"')
        clauses.append("(" + " OR ".join(f"{name} LIKE ? ESCAPE '\\'" for name in columns) + ")")
        values += [f"%{escaped}%"] * len(columns)
    return " AND ".join(clauses), values
