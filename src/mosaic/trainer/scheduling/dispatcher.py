"""The dispatcher: starts a worker for a queued run, watches it, stops it on request, and settles or restarts it."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mosaic.contract.errors import MosaicError, MoveError, StorageError, UnavailableError, UnknownRunError
from mosaic.contract.frames import sweep
from mosaic.contract.happenings import Happenings
from mosaic.trainer.border import Border
from mosaic.trainer.executors.choice import Executors
from mosaic.trainer.executors.contract import ClusterError, Executor, Exit, Identity
from mosaic.trainer.executors.node_orders import read_exit
from mosaic.trainer.live.bus import Bus
from mosaic.trainer.live.ingest import Ingest
from mosaic.trainer.live.worker_requests import WorkerRequests
from mosaic.trainer.registry.registry import Registry
from mosaic.trainer.scheduling.attempts import Attempts, identity_of
from mosaic.trainer.scheduling.gpu import EVALUATING, Claim, Machine, Room
from mosaic.trainer.scheduling.launch import discard, prepare
from mosaic.trainer.scheduling.outcome import judge
from mosaic.trainer.scheduling.submission import Vault
from mosaic.trainer.states import ENDED, State

# A remote worker sends a heartbeat every 30 s; three missed ones count as lost.
SILENCE_SECONDS = 100.0
# The relay of a cluster's node sends a heartbeat every few seconds.
FAR_SILENCE_SECONDS = 60.0
# A cluster accepts a submission in a tenth of a second or more; other runs must be looked after meanwhile.
STARTS_PER_TICK = 8
# A run that repeatedly ends at once is restarted after growing delays.
QUICK_SECONDS, LONGEST_PAUSE = 10.0, 60.0
# A process started at the very moment of the crash exposes its environment only after a delay.
ADOPTION_SECONDS, ADOPTION_LOOKS = 1.0, 10
# A ring is removed within 10 s of its creator's end, whoever started that and however it ended.
SWEEP_SECONDS = 5.0
# The time for the whole process tree after the worker's own grace period.
AFTER_GRACE = 1.0


@dataclass
class Watch:
    """The daemon's in-memory state of a live run, which need not survive the daemon."""

    asked: str = ""
    kill_at: float | None = None
    killed: bool = False
    heard: float = 0.0
    next_seq: int = -1


class Dispatcher:
    """All automatic changes of runs happen in `tick`, in one thread."""

    def __init__(
        self,
        registry: Registry,
        attempts: Attempts,
        relay: Ingest,
        bus: Bus,
        vault: Vault,
        happenings: Happenings,
        machine: Machine,
        *,
        executors: Executors | None = None,
        clock: Callable[[], float] = time.monotonic,
        target: Callable[[], str] = lambda: "127.0.0.1:50055",
        controls: WorkerRequests | None = None,
    ) -> None:
        self._registry, self._attempts, self._relay, self._bus = registry, attempts, relay, bus
        self._vault, self._happenings, self._machine = vault, happenings, machine
        self._executors = executors or Executors()
        self._clock, self._target = clock, target
        self._watches: dict[str, Watch] = {}
        self._not_before: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._unrecorded: dict[str, Identity] = {}
        self._border = Border(registry, happenings, clock)
        self._sweep_at = 0.0
        self.controls = controls or WorkerRequests()

    def adopt(self) -> None:
        """Adopt an earlier daemon's runs: living workers, and starts that a crash left unrecorded."""
        self._sweep()
        for run_id, reason in self._registry.left:
            self._happenings.warn("run.delete_refused", run_id, reason=reason)
        for row in self._attempts.live():
            self._border.apart(row, "adopt", self._adopt)
        self._border.report()

    def _adopt(self, row: sqlite3.Row) -> None:
        # A cluster is queried later: a daemon must start without it.
        far = not self._executors.of(row["executor"]).here or self._executors.problem(row["executor"])
        if far or not row["reads_files"] or row["state"] == State.LOST:
            return
        identity = self._identity(row)
        for _ in range(ADOPTION_LOOKS if row["nonce"] else 0):
            if identity is not None:
                break
            time.sleep(ADOPTION_SECONDS / ADOPTION_LOOKS)
            identity = self._identity(row)
        if identity is not None and self._executors.of(row["executor"]).alive(identity):
            whom = {"job": identity.job} if identity.job else {"pid": identity.pid}
            self._happenings.note("run.adopted", row["run_id"], state=row["state"], **whom)

    def tick(self) -> None:
        """Read new output of workers, look after every live run, and start queued runs if resources are free."""
        self._registry.database.check_file()
        if self._clock() >= self._sweep_at:
            self._sweep()
        rows = self._attempts.live()
        trouble: list[UnavailableError] = []
        try:
            self._relay.poll(rows, lambda row, read: self._border.apart(row, "read", read))
        except UnavailableError as error:
            trouble.append(error)
        for row in self._attempts.live() if rows else ():
            try:
                self._border.apart(row, "look after", self._look_after)
            except ClusterError as error:  # its runs continue unobserved; local runs are not affected
                self._say_why(row, str(error))
            except UnavailableError as error:  # the others' grace periods continue meanwhile
                trouble.append(error)
        self._border.report()
        if trouble:
            raise trouble[0]
        self._start_queued()

    def _identity(self, row: sqlite3.Row) -> Identity | None:
        """Return a run's worker, also one that was started but could not be recorded."""
        identity = identity_of(row)
        if identity is None and row["nonce"]:
            identity = self._unrecorded.get(row["nonce"]) or self._executors.of(row["executor"]).find(row["nonce"])
            if identity is not None:
                self._attempts.record_process(row["run_id"], row["nonce"], identity)
                self._unrecorded.pop(row["nonce"], None)
        return identity

    def _look_after(self, row: sqlite3.Row) -> None:
        if problem := self._executors.problem(row["executor"]):
            self._say_why(row, problem)  # another daemon's settings: its state is unknown, and nothing is decided
            return
        run_id, identity = row["run_id"], self._identity(row)
        watch = self._watches.setdefault(run_id, Watch(heard=self._clock()))
        if not row["reads_files"] and row["external"]:
            self._look_after_remote(row, watch)
            return
        if identity is None and row["external"]:
            return
        executor = self._executors.of(row["executor"])
        told = None if executor.here else read_exit(self._registry.paths(run_id), row["nonce"])
        if told is not None and identity is not None and row["asked"] != "cancel":
            told = executor.last_word(identity, told)
            if told is None:
                return
        if identity is None or told is not None or not executor.alive(identity):
            self._settle(row, identity, told)
            return
        if not executor.here:
            self._look_far(row, identity, executor, watch)
        self._enforce_limits(row, identity)
        row = self._attempts.row(run_id)
        if row["asked"]:
            self._answer(row, identity, watch)
        else:
            watch.asked = ""

    def _look_far(self, row: sqlite3.Row, identity: Identity, executor: Executor, watch: Watch) -> None:
        """Record the node of a cluster's run, and mark it LOST if neither the node nor its files report anything."""
        run_id = row["run_id"]
        node = executor.running_on(identity)
        if node and node != row["node"]:
            self._attempts.note(run_id, node=node)
            self._happenings.note("run.placed", run_id, node=node, job=identity.job)
        why = executor.waits_because(identity)
        if why and row["state"] == State.HANDSHAKE and why != row["reason"]:
            self._attempts.note(run_id, reason=why)
        if row["events_seq"] != watch.next_seq:
            watch.next_seq, watch.heard = row["events_seq"], self._clock()
        unheard = self.controls.silent_seconds(row["nonce"])
        silent = min([self._clock() - watch.heard, *([] if unheard is None else [unheard])])
        if row["state"] in (State.READY, State.EXECUTING, State.PAUSED) and silent > FAR_SILENCE_SECONDS:
            if self._attempts.mark(run_id, State.LOST, f"nothing was heard of {node or 'its node'} for {silent:.0f} s"):
                self._happenings.warn("run.lost", run_id, node=node)

    def _enforce_limits(self, row: sqlite3.Row, identity: Identity) -> None:
        if row["asked"] == "cancel":
            return
        limit, steps = row["max_duration"], row["max_steps"]
        if (
            limit is not None
            and row["ran_seconds"] + self._executors.of(row["executor"]).elapsed_seconds(identity) >= limit
        ):
            self._registry.cancel_run(row["run_id"], reason=f"max_duration_seconds {limit:g} reached")
        elif steps is not None and row["step"] >= steps:
            self._registry.cancel_run(row["run_id"], reason=f"max_steps {steps} reached")

    def _answer(self, row: sqlite3.Row, identity: Identity, watch: Watch) -> None:
        """Carry out a request; a signal is sent once, force is used after the grace period."""
        run_id, asked, executor = row["run_id"], row["asked"], self._executors.of(row["executor"])
        if asked == "cancel":
            self._stop(row, identity, watch)
        elif asked and asked != watch.asked:
            self._happenings.note(f"run.{asked}_requested", run_id)
            act, to = (executor.pause, State.PAUSED) if asked == "pause" else (executor.go_on, State.EXECUTING)
            if not act(identity, row["nonce"]):  # only we can record it
                self._attempts.mark(run_id, to, "", answered=asked)
                self._happenings.note("run.paused" if asked == "pause" else "run.continued", run_id)
        watch.asked = asked

    def _stop(self, row: sqlite3.Row, identity: Identity, watch: Watch) -> None:
        grace = row["grace"] if row["asked_grace"] is None else row["asked_grace"]
        executor = self._executors.of(row["executor"])
        if watch.asked != "cancel":
            watch.kill_at = self._clock() + grace + AFTER_GRACE
            watch.asked = "cancel"  # also if nothing below can be written: a second SIGTERM would end it at once
            self._happenings.note(
                "run.cancel_requested", row["run_id"], reason=row["asked_reason"], grace_seconds=f"{grace:g}"
            )
            if row["asked_sent"]:  # by the previous daemon
                return
            executor.terminate(identity, row["nonce"], grace)
            self._attempts.note(row["run_id"], asked_sent=1)
            if row["state"] == State.PAUSED:
                executor.wake(identity, row["nonce"])
        elif watch.kill_at is not None:
            watch.kill_at = min(watch.kill_at, self._clock() + grace + AFTER_GRACE)
            if self._clock() >= watch.kill_at:
                if not watch.killed:
                    self._happenings.warn("run.killed", row["run_id"], grace_seconds=f"{grace:g}")
                watch.killed = True
                executor.kill_tree(identity, row["nonce"])

    def _look_after_remote(self, row: sqlite3.Row, watch: Watch) -> None:
        run_id = row["run_id"]
        if row["events_seq"] != watch.next_seq:
            watch.next_seq, watch.heard = row["events_seq"], self._clock()
        if not row["asked"]:
            watch.asked = ""
        if row["closing"]:
            self._settle(row, None)
        elif row["state"] == State.LOST and row["asked"] == "cancel":
            self._settle(row, None)  # there is no executor to ask
        elif row["asked"] and row["asked"] != watch.asked:
            watch.asked = row["asked"]
            self._happenings.note(f"run.{row['asked']}_requested", run_id, reason=row["asked_reason"])
            grace = row["grace"] if row["asked_grace"] is None else row["asked_grace"]
            self.controls.tell(run_id, row["asked"], grace)
        elif row["state"] != State.LOST and self._clock() - watch.heard > SILENCE_SECONDS:
            if self._attempts.mark(run_id, State.LOST, f"its worker has said nothing for {SILENCE_SECONDS:.0f} s"):
                self._happenings.warn("run.lost", run_id)

    def _settle(self, row: sqlite3.Row, identity: Identity | None, told: Exit | None = None) -> None:
        """Settle an ended run: read its remaining output, end its leftover processes, and record its state."""
        run_id, executor = row["run_id"], self._executors.of(row["executor"])
        ended = told or (Exit(None) if identity is None else executor.exit(identity))
        if executor.here and row["reads_files"]:
            executor.kill_tree(identity, row["nonce"])
        row = self._relay.drain(run_id)
        if row["state"] in ENDED:
            return
        end = judge(row, identity, ended, lambda: self._last_words(row))
        ran = executor.elapsed_seconds(identity) if identity is not None else 0.0
        try:
            if end.lost and row["state"] != State.LOST and self._attempts.mark(run_id, State.LOST, end.reason):
                self._happenings.warn("run.lost", run_id, reason=end.reason)
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
        except (MoveError, UnknownRunError) as error:  # settled concurrently
            self._happenings.warn("daemon.trouble", run_id, error=error)
        if executor.here and row["reads_files"]:
            self._sweep(run_id)
        self._watches.pop(run_id, None)
        self.controls.forget(row["nonce"] or run_id)
        if identity is not None:
            executor.forget(identity)

    def _sweep(self, run_id: str | None = None) -> None:
        """Remove the frame rings that dead processes left, of one run or of all."""
        if run_id is None:
            self._sweep_at = self._clock() + SWEEP_SECONDS
        for name in sweep(run_id):
            self._happenings.note("fastlane.swept", run_id or "-", ring=name)

    def _last_words(self, row: sqlite3.Row) -> str:
        """Return the last line that the worker itself wrote to stderr."""
        try:
            with open(self._registry.paths(row["run_id"]).worker_stderr_log, "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
                lines = file.read(4096).splitlines()
        except OSError:
            return ""
        words = lines[-1].decode(errors="replace") if lines else ""
        return self._happenings.masked(words.removeprefix(f"{row['worker_type']}-worker: "))

    def _delay(self, run_id: str, ran: float) -> None:
        """Delay a run that ended at once, each time twice as long."""
        before = self._pauses.pop(run_id, 0.0)
        if ran < QUICK_SECONDS:
            self._pauses[run_id] = min(LONGEST_PAUSE, max(1.0, 2 * before))
            self._not_before[run_id] = self._clock() + self._pauses[run_id]

    def _start_queued(self) -> None:
        queued = self._attempts.queued()
        if not queued:
            return
        here = [row for row in self._attempts.live() if row["reads_files"] and self._executors.of(row["executor"]).here]
        room = Room.beside(self._machine, [(_claim(row), json.loads(row["gpus"])) for row in here])
        left = STARTS_PER_TICK
        for row in queued:
            if self._not_before.get(row["run_id"], 0.0) > self._clock():
                continue
            executor = self._executors.of(row["executor"])
            if problem := self._executors.problem(row["executor"]) or executor.waits_for():
                self._say_why(row, problem)
            elif not executor.here:
                left -= 1
                if left >= 0:  # the cluster has its own queue
                    self._border.apart(row, "start", partial(self._start, gpus=[]))
            elif (gpus := room.grant(_claim(row))) is not None:
                self._border.apart(row, "start", partial(self._start, gpus=gpus))

    def _say_why(self, row: sqlite3.Row, problem: str) -> None:
        """Record why a run waits for its cluster: still starting, or unknown under this daemon's settings."""
        if row["reason"] != problem:
            self._attempts.note(row["run_id"], reason=problem)
            self._happenings.warn("run.waits", row["run_id"], reason=problem)

    def _start(self, row: sqlite3.Row, gpus: list[int]) -> None:
        run_id, recipe = row["run_id"], self._attempts.recipe(row)
        secrets = self._vault.of(run_id)
        gone = [name for name in json.loads(row["secret_names"]) if name not in secrets]
        warnings = (
            [f"the daemon was restarted and no longer has {', '.join(gone)}: tracking is offline"] if gone else []
        )
        executor = self._executors.of(row["executor"])
        if row["gpus_requested"] and not gpus and executor.here:
            warnings.append("this machine has fewer GPUs than were asked for; this attempt trains on the CPU")
        begun = self._attempts.begin(run_id, gpus, warnings)
        if begun is None:
            return
        if gone:
            self._happenings.warn("run.secrets_gone", run_id, names=",".join(gone))
        self._happenings.note("run.starting", run_id, attempt=begun["attempt"], slot=begun["slot"], gpus=gpus or None)
        try:
            paths = self._registry.paths(run_id)
            launch = prepare(begun, recipe, paths, secrets if executor.here else None, self._target())
            identity = executor.start(launch)
        except (StorageError, ClusterError, OSError) as error:  # a full disk is not the run's fault: it waits
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
        self._happenings.note(
            "run.started", run_id, **({"job": identity.job} if identity.job else {"pid": identity.pid})
        )


def _claim(row: sqlite3.Row) -> Claim:
    asked = (row["cpus"], row["memory_mb"], row["gpus_requested"], bool(row["gpus_mandatory"]))
    return Claim(*asked, evaluates=row["mode"] in EVALUATING)
