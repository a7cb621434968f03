"""The dispatcher: a queued run gets a worker, is watched, stopped when asked, and settled or started again."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mosaic.trainer.attempts import Attempts, identity_of
from mosaic.trainer.bus import Bus
from mosaic.trainer.executors.local import Exit, Identity, LocalExecutor, elapsed_seconds
from mosaic.trainer.gpu import Claim, Machine, Room
from mosaic.trainer.launch import discard, prepare
from mosaic.trainer.registry import Registry
from mosaic.trainer.relay import Relay
from mosaic.trainer.states import ENDED, State
from mosaic.trainer.submission import Vault
from mosaic.wire.errors import MosaicError, MoveError, StorageError, UnavailableError, UnknownRunError
from mosaic.wire.frames import sweep
from mosaic.wire.happenings import Happenings

REQUEUE = 75  # a worker's exit code for "my state is saved, start me again"
REFUSED = 2
# A remote worker sends a heartbeat every 30 s; three missed ones are silence.
SILENCE_SECONDS = 100.0
# A run that ends at once, again and again, is started at growing distances.
QUICK_SECONDS, LONGEST_PAUSE = 10.0, 60.0
# A process that was started in the very moment of the crash shows its environment only after a while.
ADOPTION_SECONDS, ADOPTION_LOOKS = 1.0, 10
# What the whole tree gets after the worker's own grace period is over.
AFTER_GRACE = 1.0


@dataclass
class Watch:
    """What this daemon remembers of a live run and need not survive it."""

    asked: str = ""
    kill_at: float | None = None
    heard: float = 0.0
    next_seq: int = -1


class Controls:
    """What remote workers are to be told; their streams take it from here."""

    def __init__(self) -> None:
        self._told: dict[str, list[tuple[str, float]]] = {}
        self._lock = threading.Lock()

    def tell(self, run_id: str, what: str, grace: float = 0.0) -> None:
        with self._lock:
            self._told.setdefault(run_id, []).append((what, grace))

    def take(self, run_id: str) -> list[tuple[str, float]]:
        with self._lock:
            return self._told.pop(run_id, [])


class Dispatcher:
    """Everything that happens to runs by themselves happens in `tick`, in one thread."""

    def __init__(
        self,
        registry: Registry,
        attempts: Attempts,
        relay: Relay,
        bus: Bus,
        vault: Vault,
        happenings: Happenings,
        machine: Machine,
        *,
        executor: LocalExecutor | None = None,
        clock: Callable[[], float] = time.monotonic,
        target: Callable[[], str] = lambda: "127.0.0.1:50055",
    ) -> None:
        self._registry, self._attempts, self._relay, self._bus = registry, attempts, relay, bus
        self._vault, self._happenings, self._machine = vault, happenings, machine
        self._executor = executor or LocalExecutor()
        self._clock, self._target = clock, target
        self._watches: dict[str, Watch] = {}
        self._not_before: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._unrecorded: dict[str, Identity] = {}
        self.controls = Controls()

    def adopt(self) -> None:
        """Take over what an earlier daemon left: workers that live, and starts that it did not live to record."""
        self._sweep()
        for row in self._attempts.live():
            if not row["reads_files"] or row["state"] == State.LOST:
                continue
            identity = self._identity(row)
            for _ in range(ADOPTION_LOOKS if row["nonce"] else 0):
                if identity is not None:
                    break
                time.sleep(ADOPTION_SECONDS / ADOPTION_LOOKS)
                identity = self._identity(row)
            if identity is not None and self._executor.alive(identity):
                self._happenings.note("run.adopted", row["run_id"], pid=identity.pid, state=row["state"])

    def tick(self) -> None:
        """Read what workers wrote, look after every live run, and start what there is room for."""
        rows = self._attempts.live()
        trouble: list[UnavailableError] = []
        try:
            self._relay.poll(rows)
        except UnavailableError as error:
            trouble.append(error)
        for row in self._attempts.live() if rows else ():
            try:
                self._look_after(row)
            except UnavailableError as error:  # the others' grace periods go on meanwhile
                trouble.append(error)
        if trouble:
            raise trouble[0]
        self._start_queued()

    def _identity(self, row: sqlite3.Row) -> Identity | None:
        """A run's worker, also one that was started but could not be written down."""
        identity = identity_of(row)
        if identity is None and row["nonce"]:
            identity = self._unrecorded.get(row["nonce"]) or self._executor.find(row["nonce"])
            if identity is not None:
                self._attempts.record_process(row["run_id"], row["nonce"], identity)
                self._unrecorded.pop(row["nonce"], None)
        return identity

    def _look_after(self, row: sqlite3.Row) -> None:
        run_id, identity = row["run_id"], self._identity(row)
        watch = self._watches.setdefault(run_id, Watch(heard=self._clock()))
        if not row["reads_files"]:
            self._look_after_remote(row, watch)
            return
        if identity is None and row["external"]:
            return
        if identity is None or not self._executor.alive(identity):
            self._settle(row, identity)
            return
        self._enforce_limits(row, identity)
        row = self._attempts.row(run_id)
        if row["asked"]:
            self._answer(row, identity, watch)
        else:
            watch.asked = ""

    def _enforce_limits(self, row: sqlite3.Row, identity: Identity) -> None:
        if row["asked"] == "cancel":
            return
        limit, steps = row["max_duration"], row["max_steps"]
        if limit is not None and row["ran_seconds"] + elapsed_seconds(identity) >= limit:
            self._registry.cancel_run(row["run_id"], reason=f"max_duration_seconds {limit:g} reached")
        elif steps is not None and row["step"] >= steps:
            self._registry.cancel_run(row["run_id"], reason=f"max_steps {steps} reached")

    def _answer(self, row: sqlite3.Row, identity: Identity, watch: Watch) -> None:
        """Do what was asked of a run; a signal is sent once, force is used when the grace period is over."""
        run_id, asked = row["run_id"], row["asked"]
        if asked == "cancel":
            self._stop(row, identity, watch)
        elif asked and asked != watch.asked:
            self._happenings.note(f"run.{asked}_requested", run_id)
            act, to = (
                (self._executor.pause, State.PAUSED) if asked == "pause" else (self._executor.go_on, State.EXECUTING)
            )
            if not act(identity, row["nonce"]):  # nobody but us will tell
                self._attempts.mark(run_id, to, "", answered=asked)
                self._happenings.note("run.paused" if asked == "pause" else "run.continued", run_id)
        watch.asked = asked

    def _stop(self, row: sqlite3.Row, identity: Identity, watch: Watch) -> None:
        grace = row["grace"] if row["asked_grace"] is None else row["asked_grace"]
        if watch.asked != "cancel":
            watch.kill_at = self._clock() + grace + AFTER_GRACE
            watch.asked = "cancel"  # also if nothing below can be written: a second SIGTERM would end it at once
            self._happenings.note(
                "run.cancel_requested", row["run_id"], reason=row["asked_reason"], grace_seconds=f"{grace:g}"
            )
            if row["asked_sent"]:  # by the daemon before this one
                return
            self._executor.terminate(identity)
            self._attempts.note(row["run_id"], asked_sent=1)
            if row["state"] == State.PAUSED:
                self._executor.wake(identity, row["nonce"])
        elif watch.kill_at is not None:
            watch.kill_at = min(watch.kill_at, self._clock() + grace + AFTER_GRACE)
            if self._clock() >= watch.kill_at:
                self._happenings.warn("run.killed", row["run_id"], grace_seconds=f"{grace:g}")
                self._executor.kill_tree(identity, row["nonce"])

    def _look_after_remote(self, row: sqlite3.Row, watch: Watch) -> None:
        run_id = row["run_id"]
        if row["events_seq"] != watch.next_seq:
            watch.next_seq, watch.heard = row["events_seq"], self._clock()
        if not row["asked"]:
            watch.asked = ""
        if row["closing"]:
            self._settle(row, None)
        elif row["state"] == State.LOST and row["asked"] == "cancel":
            self._settle(row, None)  # there is nobody to ask
        elif row["asked"] and row["asked"] != watch.asked:
            watch.asked = row["asked"]
            self._happenings.note(f"run.{row['asked']}_requested", run_id, reason=row["asked_reason"])
            grace = row["grace"] if row["asked_grace"] is None else row["asked_grace"]
            self.controls.tell(run_id, row["asked"], grace)
        elif row["state"] != State.LOST and self._clock() - watch.heard > SILENCE_SECONDS:
            if self._attempts.mark(run_id, State.LOST, f"its worker has said nothing for {SILENCE_SECONDS:.0f} s"):
                self._happenings.warn("run.lost", run_id)

    def _settle(self, row: sqlite3.Row, identity: Identity | None) -> None:
        """A worker has ended: read the rest of what it wrote, end what it left, and say how the run stands."""
        run_id = row["run_id"]
        ended = Exit(None) if identity is None else self._executor.exit(identity)
        if row["reads_files"]:
            self._executor.kill_tree(identity, row["nonce"])
        row = self._relay.drain(run_id)
        if row["state"] in ENDED:
            return
        end = self._judge(row, identity, ended)
        ran = elapsed_seconds(identity) if identity is not None else 0.0
        try:
            if end.state is State.INIT:
                self._attempts.requeue(run_id, end.reason, counted=end.counted, ran_seconds=ran, new=end.began)
                self._delay(run_id, ran)
                self._happenings.note("run.requeued", run_id, reason=end.reason, attempt=row["attempt"] + 1)
            else:
                self._attempts.settle(run_id, end.state, end.reason, exit_code=end.code, signal=end.signal)
                self._happenings.note(f"run.{end.state.lower()}", run_id, reason=end.reason, exit_code=end.code)
                self._vault.forget(run_id)
                self._bus.end(run_id, end.state)
                self._not_before.pop(run_id, None)
                self._pauses.pop(run_id, None)
                if end.state is State.COMPLETED:
                    discard(self._attempts.recipe(row)[0], self._registry.paths(run_id))
        except (MoveError, UnknownRunError) as error:  # somebody else settled it in between
            self._happenings.warn("daemon.trouble", run_id, error=error)
        if row["reads_files"]:
            self._sweep(run_id)
        self._watches.pop(run_id, None)
        if identity is not None:
            self._executor.forget(identity)

    def _sweep(self, run_id: str | None = None) -> None:
        """Remove the frame rings that dead processes left, of one run or of all."""
        for name in sweep(run_id):
            self._happenings.note("fastlane.swept", run_id or "-", ring=name)

    def _judge(self, row: sqlite3.Row, identity: Identity | None, ended: Exit) -> End:
        """How an attempt ended, from its closing event, its exit code, and what was asked of it."""
        closing = json.loads(row["closing"]) if row["closing"] else {}
        payload: Mapping[str, Any] = closing.get("payload", {})
        if row["mode"] == "script" and "script" not in payload:  # a phase's, of a worker that knows nothing of scripts
            closing, payload = {}, {}
        told = payload.get("exit_code")
        code = ended.code if ended.code is not None else told if type(told) is int and abs(told) < 1 << 31 else None
        name = ended.signal or str(payload.get("signal") or "")
        if closing.get("event") == "run_completed":
            return End(State.COMPLETED, "", 0)
        if row["asked"] == "cancel":
            return End(State.CANCELLED, row["asked_reason"], code, name)
        if ended.code == 0 and not closing:
            return End(State.COMPLETED, "", 0)
        if identity is None and row["reads_files"] and not row["external"] and not row["pid"] and not row["closing"]:
            if row["state"] == State.HANDSHAKE:
                return End(State.INIT, "its worker was never started", began=False)
        if code == REQUEUE:
            return End(State.INIT, "its worker was told to stop and asked to be started again")
        if code == REFUSED and not closing and not row["events_seq"]:
            return End(State.FAILED, f"refused: {self._last_words(row) or 'the worker gave no reason'}", code)
        reason = _reason(payload, code, name, self._last_words(row))
        if row["restarts"] < row["max_restarts"] and not row["external"]:
            return End(State.INIT, reason, counted=True)
        return End(State.FAILED, reason, code, name)

    def _last_words(self, row: sqlite3.Row) -> str:
        """The last line that the worker itself wrote to stderr."""
        try:
            lines = self._registry.paths(row["run_id"]).worker_stderr_log.read_bytes()[-4096:].splitlines()
        except OSError:
            return ""
        words = lines[-1].decode(errors="replace") if lines else ""
        return self._happenings.masked(words.removeprefix(f"{row['worker_type']}-worker: "))

    def _delay(self, run_id: str, ran: float) -> None:
        """Let a run that ended at once wait, each time twice as long."""
        before = self._pauses.pop(run_id, 0.0)
        if ran < QUICK_SECONDS:
            self._pauses[run_id] = min(LONGEST_PAUSE, max(1.0, 2 * before))
            self._not_before[run_id] = self._clock() + self._pauses[run_id]

    def _start_queued(self) -> None:
        queued = self._attempts.queued()
        if not queued:
            return
        held = [(_claim(row), json.loads(row["gpus"])) for row in self._attempts.live() if row["reads_files"]]
        room = Room.beside(self._machine, held)
        for row in queued:
            if self._not_before.get(row["run_id"], 0.0) > self._clock():
                continue
            gpus = room.grant(_claim(row))
            if gpus is not None:
                self._start(row, gpus)

    def _start(self, row: sqlite3.Row, gpus: list[int]) -> None:
        run_id = row["run_id"]
        secrets = self._vault.of(run_id)
        gone = [name for name in json.loads(row["secret_names"]) if name not in secrets]
        warnings = (
            [f"the daemon was restarted and no longer has {', '.join(gone)}: tracking is offline"] if gone else []
        )
        if row["gpus_requested"] and not gpus:
            warnings.append("this machine has fewer GPUs than were asked for; this attempt trains on the CPU")
        begun = self._attempts.begin(run_id, gpus, warnings)
        if begun is None:
            return
        if gone:
            self._happenings.warn("run.secrets_gone", run_id, names=",".join(gone))
        self._happenings.note("run.starting", run_id, attempt=begun["attempt"], slot=begun["slot"], gpus=gpus or None)
        try:
            recipe = self._attempts.recipe(begun)
            launch = prepare(begun, recipe, self._registry.paths(run_id), secrets, self._target())
            identity = self._executor.start(
                launch.command, launch.environment, launch.folder, launch.stdout, launch.stderr
            )
        except (StorageError, OSError) as error:  # a full disk is no fault of the run: it waits
            self._attempts.requeue(run_id, self._happenings.masked(str(error)), counted=False, new=False)
            self._delay(run_id, 0.0)
            self._happenings.warn("run.requeued", run_id, reason=error)
            return
        except MosaicError as error:
            self._attempts.settle(run_id, State.FAILED, self._happenings.masked(str(error)))
            self._happenings.warn("run.failed", run_id, reason=error)
            return
        self._watches[run_id] = Watch(heard=self._clock())
        self._unrecorded[begun["nonce"]] = identity
        self._attempts.record_process(run_id, begun["nonce"], identity)
        self._unrecorded.pop(begun["nonce"])
        self._happenings.note("run.started", run_id, pid=identity.pid)


@dataclass(frozen=True)
class End:
    """How an attempt ended; INIT means that another one follows."""

    state: State
    reason: str = ""
    code: int | None = None
    signal: str = ""
    counted: bool = False
    began: bool = True


def _reason(payload: Mapping[str, Any], code: int | None, signal: str, last_words: str) -> str:
    """Why a run failed, in one line."""
    if payload.get("error"):
        return str(payload["error"])
    told = signal or (f"exit code {code}" if code is not None else "")
    if not told:
        return "its worker ended without a closing event"
    hint = payload.get("hint") or (last_words if not payload else "")
    return f"{told}: {hint}" if hint else told


def _claim(row: sqlite3.Row) -> Claim:
    return Claim(row["cpus"], row["memory_mb"], row["gpus_requested"], bool(row["gpus_mandatory"]))
