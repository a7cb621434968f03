"""What goes wrong at the worst moment: crashes between two steps, pids used again, clocks that jump, full disks."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract.errors import TrainerError, UnavailableError
from mosaic.contract.events import EventLog
from mosaic.contract.happenings import Happenings
from mosaic.contract.metrics import encode_row
from mosaic.trainer.executors.choice import Executors
from mosaic.trainer.executors.local import Identity, LocalExecutor, boot_id, start_ticks
from mosaic.trainer.live.bus import Bus
from mosaic.trainer.live.ingest import Ingest
from mosaic.trainer.registry.registry import NewRun, Registry
from mosaic.trainer.rpc.messages import run_to_pb
from mosaic.trainer.scheduling.attempts import Attempts, Registration
from mosaic.trainer.scheduling.dispatcher import Dispatcher
from mosaic.trainer.scheduling.gpu import Machine
from mosaic.trainer.scheduling.launch import prepare
from mosaic.trainer.scheduling.submission import Vault
from mosaic.trainer.states import State

# What a worker of a few lines does: events, metrics, then `then`.
WORKER = """
import os, sys, time
from mosaic.contract.events import EventLog
from mosaic.contract.paths import RunPaths
paths = RunPaths(os.environ["MOSAIC_RUN_ID"])
log = EventLog(paths.events, paths.run_id)
log.append("run_started", {})
for step in range(int(%d)):
    log.append("episode", {"step": step, "return": 1.0, "length": 1})
    time.sleep(0.02)
log.append("run_completed", {})
"""
# The same, and it ends when it may: a file called `go` in the home.
GATED = WORKER.replace(
    'log.append("run_completed"', 'while not os.path.exists("go"):\n    time.sleep(0.01)\nlog.append("run_completed"'
)


class Bench:
    """A dispatcher in this process; `crash` throws it away as kill -9 would, and makes a new one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wall, self.monotonic = time.time, time.monotonic
        self.happenings = Happenings(folder / "var/logs/trainer_daemon.log")
        self.crash()

    def crash(self) -> None:
        self.registry = Registry(self.folder, clock=lambda: self.wall(), busy_seconds=0.2)
        self.attempts, self.bus = Attempts(self.registry), Bus()
        self.relay = Ingest(self.registry, self.bus, self.happenings)
        self.executor = LocalExecutor()
        self.dispatcher = Dispatcher(
            *(self.registry, self.attempts, self.relay, self.bus, Vault(), self.happenings, Machine((), 4.0, 10_000)),
            executors=Executors(local=self.executor),
            clock=lambda: self.monotonic(),
        )
        self.dispatcher.adopt()

    def add(self, run_id: str, code: str, **columns: Any) -> None:
        payload = {"environment": {}, "arguments": [], "metadata": {"worker": {"arguments": []}}}
        command = [sys.executable, "-c", code]
        self.registry.add_run(NewRun(run_id, payload, {"run_id": run_id}, command, columns))

    def tick_until(self, run_id: str, *states: State, seconds: float = 180.0) -> Any:
        end = time.monotonic() + seconds
        while (run := self.registry.get_run(run_id)).state not in states:
            assert time.monotonic() < end, f"{run.state} {run.reason}"
            assert not run.ended, f"{run.state} {run.reason}"
            self.dispatcher.tick()
            time.sleep(0.02)
        return run


@pytest.fixture
def bench(tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    one = Bench(tmp_path / "home")
    yield one
    for row in one.attempts.live():
        one.executor.kill_tree(Identity(row["pid"], row["start_ticks"], row["boot_id"]), row["nonce"])
    one.registry.close()


def test_a_crash_before_the_worker_was_started_costs_nothing(bench: Bench) -> None:
    bench.add("a", WORKER % 2)
    assert bench.attempts.begin("a", [], []) is not None
    bench.crash()
    run = bench.tick_until("a", State.COMPLETED)
    assert (run.attempt, run.restarts) == (1, 0)
    assert [event.event for event in bench.registry.read_events("a")].count("run_started") == 1


def test_a_crash_after_the_start_and_before_it_was_recorded_finds_the_worker(bench: Bench) -> None:
    bench.add("a", GATED % 5)
    row = bench.attempts.begin("a", [], [])
    assert row is not None
    launch = prepare(row, bench.attempts.recipe(row), bench.registry.paths("a"), {}, "")
    identity = bench.executor.start(launch)
    bench.crash()
    assert bench.registry.get_run("a").pid == identity.pid
    (bench.folder / "go").touch()
    run = bench.tick_until("a", State.COMPLETED)
    assert run.attempt == 1
    assert [event.seq for event in bench.registry.read_events("a")] == list(range(7))
    os.waitpid(identity.pid, 0)


def test_a_worker_that_lived_and_died_unrecorded_is_settled_by_what_it_wrote(bench: Bench) -> None:
    bench.add("a", "")
    bench.attempts.begin("a", [], [])
    bench.registry.paths("a").create()
    with EventLog(bench.registry.paths("a").events, "a") as log:
        log.append("run_started", {})
        log.append("run_completed", {})
    bench.crash()
    bench.tick_until("a", State.COMPLETED)


def test_a_pid_that_is_used_again_adopts_no_stranger(bench: Bench, lives: Callable[[int], bool]) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        ticks = start_ticks(stranger.pid)
        assert ticks is not None
        for run_id, identity in (
            ("earlier", Identity(stranger.pid, ticks - 1, boot_id())),
            ("other-boot", Identity(stranger.pid, ticks, "another boot")),
        ):
            bench.add(run_id, "")
            row = bench.attempts.begin(run_id, [], [])
            assert row is not None
            bench.attempts.record_process(run_id, row["nonce"], identity)
            bench.registry.cancel_run(run_id) if run_id == "earlier" else None
        bench.crash()
        assert "run.adopted" not in (bench.folder / "var/logs/trainer_daemon.log").read_text()
        bench.tick_until("earlier", State.CANCELLED)
        failed = bench.tick_until("other-boot", State.FAILED)
        assert failed.reason == "its worker ended without a closing event"
        assert lives(stranger.pid), "a stranger is neither signalled nor killed"
    finally:
        stranger.kill()
        stranger.wait()


def test_jumps_of_the_wall_clock_end_no_run_and_lose_no_order(bench: Bench) -> None:
    bench.add("a", GATED % 1, max_duration=3600.0)
    bench.tick_until("a", State.EXECUTING)
    now = time.time()
    for jump in (-86_400.0, 86_400.0 * 365, -3600.0):
        bench.wall = lambda jump=jump: now + jump
        for _ in range(3):
            bench.dispatcher.tick()
        bench.add(f"later-{jump:.0f}", WORKER % 1)
    assert bench.registry.get_run("a").state == State.EXECUTING
    (bench.folder / "go").touch()
    bench.tick_until("a", State.COMPLETED)
    order = [run.run_id for run in bench.registry.list_runs().runs]
    assert order == ["later--3600", "later-31536000", "later--86400", "a"]
    cursors = [change.cursor for change in bench.registry.changes(0)]
    assert cursors == sorted(cursors)


def test_a_grace_period_is_measured_by_a_clock_that_nobody_sets(
    bench: Bench, lives: Callable[[int], bool], until: Callable[..., Any]
) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('deaf', 'w'); time.sleep(600)"
    bench.add("a", stubborn, grace=1000.0)
    bench.dispatcher.tick()
    pid = bench.registry.get_run("a").pid
    until((bench.folder / "deaf").exists, "the worker to hear nothing")
    bench.registry.cancel_run("a")
    bench.wall = lambda: time.time() + 10_000
    for _ in range(5):
        bench.dispatcher.tick()
    assert lives(pid)
    bench.monotonic = lambda: time.monotonic() + 1002
    bench.tick_until("a", State.CANCELLED)
    assert not lives(pid)


def fill(bench: Bench, run_id: str, first: int, count: int) -> None:
    paths = bench.registry.paths(run_id)
    paths.create()
    with EventLog(paths.events, run_id) as log, paths.metrics.open("ab") as metrics:
        for number in range(first, first + count):
            log.append("episode", {"step": number, "return": 1.0, "length": 1})
            metrics.write(encode_row(number, 1.0, {f"tag-{tag}": float(number) for tag in range(20)}))


def test_a_full_disk_loses_nothing_and_no_state_lies_meanwhile(bench: Bench) -> None:
    bench.add("a", "import time; time.sleep(600)")
    bench.dispatcher.tick()
    fill(bench, "a", 0, 50)
    bench.dispatcher.tick()
    writer = bench.registry.database._writer
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages}")
    fill(bench, "a", 50, 3000)
    for _ in range(3):
        with pytest.raises(UnavailableError, match="free some space"):
            bench.dispatcher.tick()
    seen = bench.registry.get_run("a")
    assert seen.state == State.EXECUTING and seen.next_seq == 50 and seen.step == 49
    with pytest.raises(UnavailableError):
        bench.add("b", "x" * 100_000)
    writer.execute("PRAGMA max_page_count = 1000000")
    bench.dispatcher.tick()
    after = bench.registry.get_run("a")
    assert after.next_seq == 3050 and after.step == 3049
    for series in bench.registry.get_metrics("a"):
        assert series.values.tolist() == [float(number) for number in range(3050)]


def test_a_locked_registry_is_waited_for_and_the_worker_is_not_forgotten(bench: Bench) -> None:
    bench.add("a", WORKER % 40)
    begun = bench.attempts.begin("a", [], [])
    assert begun is not None
    bench.attempts.requeue("a", "", counted=False, new=False)
    # Locked from the very moment in which the worker has been started and is to be written down.
    other = sqlite3.connect(bench.registry.database.path, isolation_level=None)
    started = bench.executor.start

    def start_then_lock(*given: Any) -> Identity:
        identity = started(*given)
        other.execute("BEGIN IMMEDIATE")
        return identity

    bench.executor.start = start_then_lock  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="another program holds the file"):
        bench.dispatcher.tick()
    for _ in range(3):
        with pytest.raises(UnavailableError):
            bench.dispatcher.tick()
    assert bench.registry.get_run("a").state == State.HANDSHAKE, "reading works meanwhile"
    other.execute("ROLLBACK")
    other.close()
    run = bench.tick_until("a", State.COMPLETED)
    assert run.attempt == 1
    kinds = [event.event for event in bench.registry.read_events("a")]
    assert kinds.count("run_started") == 1 and kinds.count("episode") == 40


def test_lines_that_are_no_events_and_no_rows_are_passed_over(bench: Bench) -> None:
    bench.add("a", "import time; time.sleep(600)")
    bench.dispatcher.tick()
    fill(bench, "a", 0, 2)
    paths = bench.registry.paths("a")
    huge = json.dumps({"event": "episode", "run_id": "a", "seq": 2**70, "timestamp": 1.0, "payload": {}})
    with paths.metrics.open("ab") as metrics:
        metrics.write(b"garbage\n\xff\xfe\n{}\n" + b'{"step": 123456789012345678901234567890, "time": 1.0, "x": 1}\n')
        metrics.write(b'{"step": 7, "time": 1.0, "x": "NaN"}\n{"step": 8, "ti')
    with paths.events.open("ab") as events:
        events.write(b"garbage\n" + huge.encode() + b"\n[]\n")
        line = {"event": "checkpoint", "run_id": "a", "seq": 2, "timestamp": 1.0, "payload": {"path": 5, "step": 2**80}}
        events.write(json.dumps(line).encode() + b"\n")
        odd = {
            "event": "checkpoint",
            "run_id": "a",
            "seq": 3,
            "timestamp": 2**64 - 1,
            "payload": {"path": "x", "step": True},
        }
        events.write(json.dumps(odd).encode() + b"\n")
    bench.dispatcher.tick()
    run = bench.registry.get_run("a")
    assert (run.next_seq, run.step) == (2, 7)
    assert sorted(text.partition(":")[0] for text in run.warnings) == [
        "a metrics row was dropped",
        "an event was dropped",
    ]
    with paths.metrics.open("ab") as metrics:
        metrics.write(b'me": 2.0, "x": 3.0}\n')
    bench.dispatcher.tick()
    assert bench.registry.get_metrics("a", ["x"])[0].steps.tolist() == [7, 8]


def test_a_deletion_that_was_cut_short_is_finished_at_the_next_start(bench: Bench) -> None:
    bench.add("a", "")
    bench.registry.cancel_run("a")
    bench.registry.paths("a").create()
    with bench.registry.database.write() as connection:
        connection.execute("UPDATE runs SET deleting = 1")
    assert bench.registry.list_runs().total == 0
    bench.crash()
    assert not bench.registry.paths("a").folder.exists()
    assert bench.registry.changes(0)[-1].kind == "deleted"


def test_a_registry_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    with registry.database.write() as connection:
        connection.execute("PRAGMA user_version = 99")
    registry.close()
    with pytest.raises(TrainerError, match=r"has format 99.*update mosaic-rl"):
        Registry(tmp_path)


def test_a_registry_that_is_no_database_is_told_from_a_full_disk(tmp_path: Path) -> None:
    file = tmp_path / "var" / "trainer" / "mosaic.db"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"not a database at all, but long enough to look at " * 100)
    with pytest.raises(TrainerError, match=r"is damaged.*recreate it from the run folders with: mosaic rebuild"):
        Registry(tmp_path)


def test_a_run_that_ends_at_once_is_started_at_growing_distances(bench: Bench) -> None:
    now = [1000.0]
    bench.monotonic = lambda: now[0]
    bench.add("a", "import sys; sys.exit(75)")
    distances = []
    for attempt in range(1, 9):
        began = now[0]
        while bench.registry.get_run("a").attempt == attempt:
            bench.dispatcher.tick()
            time.sleep(0.01)
            now[0] += 0.0 if bench.registry.get_run("a").state != State.INIT else 0.5
        distances.append(now[0] - began)
    assert distances[0] < distances[2] < distances[4] and max(distances) <= 61
    assert bench.registry.get_run("a").restarts == 0


def test_a_remote_worker_that_falls_silent_is_lost_and_found_again(bench: Bench) -> None:
    now = [1000.0]
    bench.monotonic = lambda: now[0]
    columns = {"external": 1}
    for run_id in ("a", "b"):
        bench.add(run_id, "", **columns)
        bench.attempts.register(run_id, Registration("w", Identity(1, 1, "elsewhere"), reads_files=False))
        fill(bench, run_id, 0, 1)
    bench.dispatcher.tick()
    now[0] += 101
    bench.dispatcher.tick()
    assert bench.registry.get_run("a").state == State.LOST
    fill(bench, "a", 1, 1)
    bench.dispatcher.tick()
    assert bench.registry.get_run("a").state == State.EXECUTING
    bench.registry.cancel_run("b")
    bench.dispatcher.tick()
    assert bench.registry.get_run("b").state == State.CANCELLED, "there is nobody to ask"
    with EventLog(bench.registry.paths("a").events, "a") as log:
        log.append("run_completed", {})
    bench.tick_until("a", State.COMPLETED)


@pytest.mark.parametrize("odd", [{"exit_code": "three", "signal": 9}, {"exit_code": 2**40}, {"exit_code": None}])
def test_a_foreign_worker_that_tells_nonsense_at_its_end_is_told_of_all_the_same(bench: Bench, odd: Any) -> None:
    bench.add("a", "")
    bench.attempts.begin("a", [], [])
    bench.registry.paths("a").create()
    with EventLog(bench.registry.paths("a").events, "a") as log:
        log.append("run_started", {})
        log.append("run_failed", odd)
    bench.crash()
    run = bench.tick_until("a", State.FAILED)
    assert run_to_pb(run).state and run.exit_code is None


def test_a_run_whose_files_cannot_be_read_is_shown_broken_and_stops_no_other(bench: Bench) -> None:
    bench.add("odd", GATED % 3)
    bench.add("good", GATED % 3)
    bench.tick_until("odd", State.EXECUTING)
    bench.tick_until("good", State.EXECUTING)
    events = bench.registry.paths("odd").events
    events.rename(events.with_suffix(".kept"))
    events.mkdir()
    bench.dispatcher.tick()
    assert bench.registry.get_run("odd").state == State.EXECUTING, "what may pass is only logged"
    real = bench.monotonic
    bench.monotonic = lambda: real() + 60.0
    bench.dispatcher.tick()
    odd = bench.registry.get_run("odd")
    assert odd.state == State.BROKEN and "the daemon cannot read it: " in odd.reason
    (bench.folder / "go").touch()
    assert bench.tick_until("good", State.COMPLETED).episodes == 3
    log = (bench.folder / "var/logs/trainer_daemon.log").read_text()
    assert log.count("run.odd run=odd") <= 2 and log.count("run.broken run=odd") == 1
    assert [change.kind for change in bench.registry.changes(0, run_id="odd")][-1] == "marked"
    events.rmdir()
    events.with_suffix(".kept").rename(events)
    for _ in range(3):
        bench.dispatcher.tick()
    assert bench.tick_until("odd", State.COMPLETED).reason == "", "what was mended is a run again"


def test_a_pipe_in_place_of_the_events_delays_no_other_run(bench: Bench) -> None:
    bench.add("odd", GATED % 1)
    bench.tick_until("odd", State.EXECUTING)
    events = bench.registry.paths("odd").events
    events.unlink()
    os.mkfifo(events)
    bench.dispatcher.tick()
    bench.add("good", WORKER % 2)
    bench.tick_until("good", State.COMPLETED)


def test_a_row_that_breaks_while_its_run_lives_stops_no_tick(bench: Bench) -> None:
    bench.add("bad", GATED % 1, gpus_requested=0)
    bench.add("good", GATED % 1)
    bench.tick_until("bad", State.EXECUTING)
    for column, value in (("gpus", "?"), ("step", "far"), ("state", "XYZ")):
        with sqlite3.connect(bench.registry.database.path) as connection:
            connection.execute(f"UPDATE runs SET {column} = ? WHERE run_id = 'bad'", (value,))
        bench.dispatcher.tick()
        assert bench.registry.get_run("bad").state == State.BROKEN
    bench.crash()
    assert bench.registry.get_run("bad").reason.endswith("(and 2 more)")
    (bench.folder / "go").touch()
    bench.tick_until("good", State.COMPLETED)
    log = (bench.folder / "var/logs/trainer_daemon.log").read_text()
    assert log.count("run.broken run=bad") == 2, "once by each daemon"


def test_a_queued_run_whose_payload_breaks_is_not_started(bench: Bench) -> None:
    bench.add("bad", WORKER % 1)
    bench.add("good", WORKER % 1)
    with sqlite3.connect(bench.registry.database.path) as connection:
        connection.execute("UPDATE payloads SET config = '{' WHERE run = 1")
    bench.tick_until("good", State.COMPLETED)
    bad = bench.registry.get_run("bad")
    assert bad.state == State.BROKEN and bad.reason.startswith("config: no valid JSON") and not bad.pid
