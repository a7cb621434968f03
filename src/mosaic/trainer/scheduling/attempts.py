"""The attempts of runs in the registry: begun, recorded, registered, settled or requeued."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mosaic.contract.errors import AccessError, MoveError, UnknownRunError
from mosaic.trainer.executors.contract import Identity
from mosaic.trainer.registry.registry import QUEUE, Registry
from mosaic.trainer.registry.rows import next_count, update
from mosaic.trainer.registry.run_warnings import added
from mosaic.trainer.states import LIVE, State

# A placeholder for an unneeded session token: the relay has registered on the worker's behalf.
ON_BEHALF = "-"


@dataclass(frozen=True)
class Registration:
    """The fields of a worker's registration."""

    worker_id: str
    identity: Identity
    reads_files: bool = True
    nonce: str = ""
    node: str = ""


class Attempts:
    """The attempts' writes to the registry, for the dispatcher, the relay and the handshake."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._database = registry.database

    def queued(self) -> list[sqlite3.Row]:
        """Return the runs that wait for a start, in the order of the queue."""
        return self._rows(f"state = 'INIT' AND external = 0 AND deleting = 0 ORDER BY {QUEUE}")

    def live(self) -> list[sqlite3.Row]:
        """Return the runs that have a worker, or had one at the last look."""
        marks = ", ".join(f"'{state}'" for state in sorted(LIVE))
        return self._rows(f"state IN ({marks}) ORDER BY id")

    def row(self, run_id: str) -> sqlite3.Row:
        with self._database.read() as connection:
            return self._registry.row(connection, run_id)

    def recipe(self, row: sqlite3.Row) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
        """Return the accepted payload, the worker's config and its command; raise FieldError if they are damaged."""
        with self._database.read() as connection:
            payload = self._registry.unreadable.check_payload(connection, row)
            query = "SELECT config, command FROM payloads WHERE run = ?"
            config, command = connection.execute(query, (row["id"],)).fetchone()
        return payload, json.loads(config), json.loads(command)

    def begin(self, run_id: str, gpus: Sequence[int], warnings: Sequence[str]) -> sqlite3.Row | None:
        """Move a queued run to HANDSHAKE under a new nonce; return None if it is no longer queued.

        This is committed before the worker is started. After a crash between the two, the next daemon finds the worker
        by the nonce, or finds none.
        """
        with self._database.write() as connection:
            row = self._registry.row(connection, run_id)
            if row["state"] != State.INIT:
                return None
            kept = json.loads(row["warnings"])
            self._registry.move(
                connection,
                row,
                State.HANDSHAKE,
                "",
                nonce=secrets.token_hex(16),
                slot=next_count(connection, "slot"),
                started_at=row["started_at"] or self._registry.clock(),
                gpus=json.dumps(list(gpus)),
                warnings=json.dumps(added(kept, warnings)),
                **NO_WORKER,
                reads_files=1,
                exit_code=None,
                signal="",
            )
            begun = self._registry.row(connection, run_id)
        self._registry.notify()
        return begun

    def record_process(self, run_id: str, nonce: str, identity: Identity) -> None:
        """Record the worker of the attempt that the nonce identifies."""
        with self._database.write() as connection:
            connection.execute(
                "UPDATE runs SET pid = ?, start_ticks = ?, boot_id = ?, job = ? WHERE run_id = ? AND nonce = ?",
                (identity.pid, identity.start_ticks, identity.boot_id, identity.job, run_id, nonce),
            )
        self._registry.notify()

    def register(self, run_id: str, told: Registration) -> str:
        """Register a worker and return its session token; refuse a run that has a live worker."""
        token = secrets.token_urlsafe(24)
        with self._database.write() as connection:
            row = self._registry.row(connection, run_id)
            state = State(row["state"])
            if row["external"] and state == State.INIT:
                self._registry.move(connection, row, State.HANDSHAKE, "", started_at=self._registry.clock())
                row = self._registry.row(connection, run_id)
            elif state not in LIVE:
                raise MoveError(f"run {run_id} is {state}; a worker registers after it was started")
            elif row["session_hash"] and state != State.LOST and row["executor"] == "local":
                raise MoveError(f"run {run_id} has a registered worker already ({row['worker_id']})")
            if (row["nonce"] or told.nonce) and told.nonce != row["nonce"]:
                raise AccessError(f"run {run_id} was started anew; this worker is of an earlier attempt")
            columns: dict[str, Any] = {"worker_id": told.worker_id, "session_hash": _hash(token)}
            if row["executor"] != "local":
                columns |= {"reads_files": int(told.reads_files), "node": told.node or row["node"]}
            elif row["external"]:
                columns |= {
                    "pid": told.identity.pid if told.reads_files else 0,
                    "start_ticks": told.identity.start_ticks,
                    "boot_id": told.identity.boot_id,
                    "reads_files": int(told.reads_files),
                }
            if row["state"] == State.HANDSHAKE:
                self._registry.move(connection, row, State.READY, "", **columns)
            else:
                update(connection, row["id"], **columns)
        self._registry.notify()
        return token

    def check_session(self, run_id: str, token: str) -> sqlite3.Row:
        """Return the run's row if the token is that of its present worker; else raise AccessError."""
        row = self.row(run_id)
        if not row["session_hash"] or not hmac.compare_digest(row["session_hash"], _hash(token)):
            raise AccessError(f"this session token is not one of run {run_id}'s present worker")
        if row["state"] not in LIVE:
            raise AccessError(f"run {run_id} is {row['state']}; its session is over")
        return row

    def admits(self, session: str, nonce: str) -> bool:
        """Return True if a live run has this session token or this nonce; a node has no daemon token."""
        marks = ", ".join(f"'{state}'" for state in sorted(LIVE))
        given = [(column, value) for column, value in (("session_hash", session and _hash(session)), ("nonce", nonce))]
        with self._database.read() as connection:
            return any(
                connection.execute(f"SELECT 1 FROM runs WHERE {name} = ? AND state IN ({marks})", (value,)).fetchone()
                for name, value in given
                if value
            )

    def settle(self, run_id: str, to: State, reason: str, **columns: Any) -> None:
        """End a live run with a final state."""
        with self._database.write() as connection:
            row = self._registry.row(connection, run_id)
            self._registry.move(connection, row, to, reason, ended_at=self._registry.clock(), **OVER, **columns)
        self._registry.notify()

    def requeue(self, run_id: str, reason: str, *, counted: bool, ran_seconds: float = 0.0, new: bool = True) -> None:
        """Requeue a run; `counted` uses up a restart, `new` False means that nothing ever ran."""
        with self._database.write() as connection:
            row = self._registry.row(connection, run_id)
            self._registry.move(
                connection,
                row,
                State.INIT,
                reason,
                attempt=row["attempt"] + int(new),
                restarts=row["restarts"] + int(counted),
                ran_seconds=row["ran_seconds"] + ran_seconds,
                nonce="",
                **NO_WORKER,
                **OVER,
            )
        self._registry.notify()

    def mark(self, run_id: str, to: State, reason: str, *, answered: str = "") -> bool:
        """Move a run between EXECUTING, PAUSED and LOST; return False if the table no longer allows it."""
        try:
            with self._database.write() as connection:
                row = self._registry.row(connection, run_id)
                columns = {"asked": ""} if answered and row["asked"] == answered else {}
                self._registry.move(connection, row, to, reason, **columns)
        except (MoveError, UnknownRunError):
            return False
        self._registry.notify()
        return True

    def note(self, run_id: str, **columns: Any) -> None:
        """Set columns of a run."""
        with self._database.write() as connection:
            update(connection, self._registry.row(connection, run_id)["id"], **columns)
        self._registry.notify()

    def _rows(self, where: str) -> list[sqlite3.Row]:
        """Return the readable rows; a request for a BROKEN one by its id returns the reason."""
        with self._database.read() as connection:
            rows = connection.execute(f"SELECT * FROM runs WHERE {where}").fetchall()
        return [row for row in rows if not self._registry.unreadable.hidden(row)]


# The columns of an attempt's worker before it starts, and those that end with an attempt.
NO_WORKER: dict[str, Any] = {
    **{"pid": 0, "start_ticks": 0, "boot_id": "", "worker_id": "", "closing": ""},
    **{"job": "", "node": ""},
}
OVER: dict[str, Any] = {
    **{"session_hash": "", "asked": "", "asked_reason": "", "asked_grace": None, "asked_sent": 0},
    "gpus": "[]",
}


def identity_of(row: sqlite3.Row) -> Identity | None:
    """Return the worker of a run's present attempt, None if none is recorded."""
    if not row["pid"] and not row["job"]:
        return None
    return Identity(row["pid"], row["start_ticks"], row["boot_id"], row["job"])


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
