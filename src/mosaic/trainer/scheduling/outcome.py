"""The outcome of an attempt, from its closing event, exit code, requests and the cluster's report. Pure."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mosaic.trainer.executors.contract import Exit, Identity
from mosaic.trainer.states import State

REQUEUE = 75  # a worker's exit code for "state saved, restart me"
REFUSED = 2
STOPPED = ("SIGTERM", "SIGINT", "SIGHUP")


@dataclass(frozen=True)
class End:
    """The outcome of an attempt; INIT means that another one follows."""

    state: State
    reason: str = ""
    code: int | None = None
    signal: str = ""
    counted: bool = False
    began: bool = True
    lost: bool = False
    """the run passes through LOST: its machine has failed, not the run"""


def judge(
    row: sqlite3.Row | Mapping[str, Any], identity: Identity | None, ended: Exit, last_words: Callable[[], str]
) -> End:
    """Return the run's outcome, or the reason with which its next attempt begins."""
    closing = json.loads(row["closing"]) if row["closing"] else {}
    payload: Mapping[str, Any] = closing.get("payload", {})
    if row["mode"] == "script" and "script" not in payload:  # a phase's, of a worker without script support
        closing, payload = {}, {}
    told = payload.get("exit_code")
    code = ended.code if ended.code is not None else told if type(told) is int and abs(told) < 1 << 31 else None
    name = ended.signal or str(payload.get("signal") or "")
    cancelled = row["asked"] == "cancel" and payload.get("stopped_by")
    if closing.get("event") == "run_completed" and not cancelled:
        return End(State.COMPLETED, "", 0)
    if row["asked"] == "cancel":  # also a repeated evaluation, which reports its end as completed
        return End(State.CANCELLED, row["asked_reason"], code, name)
    if ended.cancelled:
        return End(State.CANCELLED, ended.cancelled, code, name)
    if ended.code == 0 and not closing:
        return End(State.COMPLETED, "", 0)
    if identity is None and row["reads_files"] and not row["external"] and not row["pid"] and not row["closing"]:
        if row["state"] == State.HANDSHAKE:
            return End(State.INIT, "its worker was never started", began=False)
    if ended.lost and not closing:
        # Nothing of it ran while it waited in the cluster's queue.
        return End(State.INIT, ended.lost, began=row["state"] != State.HANDSHAKE, lost=True)
    if code == REQUEUE:
        return End(State.INIT, "its worker was told to stop and asked to be started again")
    if code == REFUSED and not closing and not row["events_seq"]:
        return End(State.FAILED, f"refused: {last_words() or 'the worker gave no reason'}", code)
    if not closing and row["state"] == State.HANDSHAKE:
        # Python itself was still starting, and had no signal handler; after SIGINT it may exit with code 1.
        by = "SIGINT" if ended.code == 1 and last_words() == "KeyboardInterrupt" else ended.signal
        if by in STOPPED:
            return End(State.INIT, f"its worker was stopped by {by} while it started")
    reason = _reason(payload, code, name, last_words() or ended.reason) if closing or not ended.reason else ended.reason
    if row["restarts"] < row["max_restarts"] and not row["external"]:
        return End(State.INIT, reason, counted=True)
    return End(State.FAILED, reason, code, name)


def _reason(payload: Mapping[str, Any], code: int | None, signal: str, last_words: str) -> str:
    """Return why a run failed, in one line."""
    if payload.get("error"):
        return str(payload["error"])
    told = signal or (f"exit code {code}" if code is not None else "")
    if not told:
        return "its worker ended without a closing event"
    hint = payload.get("hint") or (last_words if not payload else "")
    return f"{told}: {hint}" if hint else told
