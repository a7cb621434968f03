"""Liveness by progress: which runs are stalled, by a clock of the test; and how the mark reaches clients."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract.events import Event, EventLog
from mosaic.contract.happenings import Happenings
from mosaic.contract.metrics import encode_resumed, encode_row
from mosaic.trainer.executors.contract import Identity
from mosaic.trainer.live.bus import Bus
from mosaic.trainer.live.ingest import Ingest
from mosaic.trainer.registry.registry import NewRun, Registry
from mosaic.trainer.rpc.messages import run_from_pb, run_to_pb
from mosaic.trainer.scheduling.attempts import Attempts, Registration
from mosaic.trainer.scheduling.liveness import FIRST_SECONDS, LEAST_SECONDS, Liveness
from mosaic.trainer.states import State


class Watched:
    """One run, a row of the registry as the dispatcher sees it, and the seconds that pass."""

    def __init__(self, **columns: Any) -> None:
        self.now = 1000.0
        self.liveness = Liveness(lambda: self.now)
        self.row: dict[str, Any] = {
            **{"run_id": "a", "state": "EXECUTING", "step": 0, "attempt": 1, "mode": "train", "total_timesteps": 10**9},
            **{"executor": "local", "asked": "", "closing": "", "stalled": 0, **columns},
        }
        self.seq = 0
        self.liveness.begin(self.row, [], [])
        self.look()

    def look(self) -> float | None:
        return self.liveness.look([self.row]).get("a")

    def wait(self, seconds: float, every: float = 1.0) -> float | None:
        """Let time pass with a look every second; how long it has stood still if it is stalled."""
        found = None
        for _ in range(int(seconds / every)):
            self.now += every
            found = self.look()
        return found

    def steps(self, *gaps: float) -> None:
        for gap in gaps:
            self.wait(gap)
            self.row["step"] += 10
            self.now += 0.01
            self.look()

    def tell(self, kind: str, **payload: Any) -> None:
        self.seq += 1
        self.liveness.hear("a", [Event(kind, "a", self.seq, 0.0, payload)])


def test_a_run_whose_step_stands_still_is_stalled_after_a_minute_and_moves_again_with_its_step() -> None:
    run = Watched()
    run.steps(1, 1, 1)
    assert run.wait(LEAST_SECONDS - 2) is None
    assert run.wait(4) is not None
    run.steps(1)
    assert run.look() is None


def test_five_typical_gaps_are_waited_for_where_that_is_longer() -> None:
    run = Watched()
    run.steps(*[40.0] * 5, 1, 1)
    assert run.wait(190) is None
    assert run.wait(15) is not None


def test_only_the_last_twenty_gaps_count() -> None:
    run = Watched()
    run.steps(*[40.0] * 20, *[1.0] * 20)
    assert run.wait(LEAST_SECONDS + 2) is not None


def test_before_its_first_row_a_run_has_ten_minutes() -> None:
    run = Watched(state="READY")
    assert run.wait(FIRST_SECONDS - 2) is None
    assert run.wait(4) is not None


def test_heartbeats_that_repeat_the_step_are_no_progress() -> None:
    run = Watched()
    run.steps(1)
    for _ in range(70):
        run.tell("heartbeat", step=run.row["step"], sps=100.0)
        run.wait(1)
    assert run.look() is not None


@pytest.mark.parametrize("state", ["PAUSED", "LOST"])
def test_a_run_that_is_paused_or_lost_never_stalls_and_its_pause_does_not_count_afterwards(state: str) -> None:
    run = Watched()
    run.steps(1, 1)
    run.wait(50)
    run.row["state"] = state
    assert run.wait(5000) is None
    run.row["state"] = "EXECUTING"
    assert run.wait(LEAST_SECONDS - 2) is None


def test_a_run_that_waits_in_its_cluster_never_stalls() -> None:
    assert Watched(state="HANDSHAKE", executor="slurm").wait(5000) is None


def test_a_checkpoint_that_is_written_never_stalls_and_a_hang_after_it_does() -> None:
    run = Watched()
    run.steps(1, 1)
    run.tell("heartbeat", step=run.row["step"] + 5, doing="checkpoint")
    run.row["step"] += 5  # the last row before it, read after the event
    assert run.wait(1000) is None
    run.tell("heartbeat", step=run.row["step"])  # the shell's own
    assert run.wait(1000) is None
    run.tell("checkpoint", step=run.row["step"], path="x")
    assert run.wait(LEAST_SECONDS + 2) is not None


def test_a_closing_evaluation_never_stalls() -> None:
    run = Watched()
    run.steps(1, 1)
    run.tell("heartbeat", step=run.row["step"], doing="closing evaluation")
    assert run.wait(5000) is None
    done = Watched(total_timesteps=20)
    done.steps(1, 1)
    assert done.wait(5000) is None, "all steps are done"


def test_a_script_stalls_within_a_phase_only() -> None:
    run = Watched(mode="script")
    assert run.wait(5000) is None
    run.tell("phase", status="started")
    run.steps(1, 1)
    assert run.wait(LEAST_SECONDS + 2) is not None
    run.tell("phase", status="ended")
    assert run.wait(5000) is None
    run.tell("phase", status="started")
    assert run.wait(FIRST_SECONDS - 2) is None, "before the first row of the next phase"
    assert run.wait(4) is not None


def test_an_evaluation_waits_for_episodes_that_end_in_clusters() -> None:
    run = Watched(mode="policy_eval", total_timesteps=10)
    run.steps(100, 1, 1, 1, 100, 1, 1, 1)
    assert run.wait(450) is None, "its episodes are more than its total, and take a while"
    assert run.wait(200) is not None


@pytest.mark.parametrize("stood", [10.0, 3600.0, 1e6])
def test_time_in_which_daemon_or_machine_stood_still_does_not_count(stood: float) -> None:
    run = Watched()
    run.steps(1, 1)
    run.wait(50)
    run.now += stood
    assert run.look() is None
    run.now -= 10_000  # nor does a clock that was set back
    assert run.look() is None


def test_a_new_attempt_begins_anew() -> None:
    run = Watched()
    run.steps(1, 1)
    run.row["attempt"], run.row["state"] = 2, "READY"
    assert not run.liveness.knows(run.row)
    run.liveness.begin(run.row, [], [])
    assert run.wait(FIRST_SECONDS - 2) is None


def test_a_run_that_is_asked_to_stop_keeps_what_it_has() -> None:
    run = Watched()
    run.steps(1, 1)
    run.row["asked"] = "cancel"
    assert run.wait(1000) is None
    run.row["asked"] = ""
    assert run.wait(LEAST_SECONDS + 2) is not None
    run.row["asked"] = "cancel"
    assert run.wait(5) is not None


class Home:
    """A registry and its relay under a clock of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 1000.0
        self.registry = Registry(folder)
        self.attempts = Attempts(self.registry)
        self.happenings = Happenings(folder / "var/logs/trainer_daemon.log")
        self.again()

    def again(self) -> None:
        """As a new daemon: nothing is remembered."""
        self.relay = Ingest(self.registry, Bus(), self.happenings, clock=lambda: self.now)

    def start(self, run_id: str, **columns: Any) -> None:
        self.registry.add_run(NewRun(run_id, {"metadata": {}}, columns={"algo": "ppo", **columns}))
        row = self.attempts.begin(run_id, [], [])
        assert row is not None
        self.attempts.register(run_id, Registration("w", Identity(1, 1, "b"), nonce=row["nonce"]))
        self.registry.paths(run_id).create()

    def tell(self, run_id: str, *events: tuple[str, dict[str, Any]]) -> None:
        with EventLog(self.registry.paths(run_id).events, run_id) as log:
            for kind, payload in events:
                log.append(kind, payload)

    def rows(self, run_id: str, *steps: int, apart: float = 1.0) -> None:
        with self.registry.paths(run_id).metrics.open("ab") as file:
            for step in steps:
                file.write(encode_row(step, step * apart, {"charts/SPS": 50.0}))

    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds / 4)):
            self.now += 4.0
            self.relay.poll(self.attempts.live())


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.registry.close()


def test_the_mark_is_a_change_of_its_own_with_sps_zero_and_no_remaining_time(home: Home) -> None:
    home.start("a", total_timesteps=1000)
    home.wait(4)
    home.rows("a", 1, 2, 3)
    home.wait(8)
    before = home.registry.get_run("a")
    assert not before.stalled and before.sps == 50.0 and before.eta_seconds
    cursor = home.registry.last_cursor()
    home.tell("a", ("heartbeat", {"step": 3, "sps": 70.0}))
    home.wait(80)
    run = home.registry.get_run("a")
    assert run.stalled and run.state is State.EXECUTING and (run.sps, run.eta_seconds) == (0.0, None)
    assert 0 < run.stalled_since < home.registry.clock()
    assert run_from_pb(run_to_pb(run)).stalled_since == run.stalled_since
    assert home.registry.list_runs().runs[0].stalled
    (change,) = home.registry.changes(cursor)
    assert (change.kind, change.to_state) == ("marked", State.EXECUTING) and "has not grown for" in change.reason
    home.rows("a", 4)
    home.wait(4)
    run = home.registry.get_run("a")
    assert not run.stalled and run.sps == 50.0 and run.eta_seconds
    assert home.registry.changes(cursor)[-1].kind == "marked"
    log = (home.folder / "var/logs/trainer_daemon.log").read_text()
    assert "run.stalled run=a" in log and "run.moves_again run=a" in log
    assert "stalled" not in home.registry.paths("a").events.read_text(), "the worker's log is the worker's own"


def test_a_stalled_run_can_be_cancelled_and_its_end_takes_the_mark_off(home: Home) -> None:
    home.start("a", total_timesteps=1000)
    home.rows("a", 1)
    home.wait(80)
    assert home.registry.get_run("a").stalled
    assert home.registry.cancel_run("a").asked == "cancel"
    assert home.registry.get_run("a").stalled
    home.attempts.settle("a", State.CANCELLED, "cancelled")
    assert not home.registry.get_run("a").stalled


def test_a_new_daemon_keeps_marks_and_knows_the_gaps_of_before(home: Home) -> None:
    home.start("quick", total_timesteps=10**6)
    home.start("slow", total_timesteps=10**6)
    home.rows("quick", *range(1, 10))
    home.rows("slow", *range(1, 10), apart=100.0)
    home.wait(80)
    home.again()
    home.wait(12)
    assert [home.registry.get_run(run_id).stalled for run_id in ("quick", "slow")] == [True, False]
    home.wait(300)
    assert not home.registry.get_run("slow").stalled
    home.wait(300)
    assert home.registry.get_run("slow").stalled


def test_a_new_daemon_knows_of_an_evaluation_or_checkpoint_that_began_before(home: Home) -> None:
    home.start("a", total_timesteps=1000)
    home.rows("a", 1, 2)
    home.tell("a", ("heartbeat", {"step": 2, "doing": "closing evaluation"}), ("metrics", {"step": 2, "eval/x": 1.0}))
    home.wait(8)
    home.again()
    home.wait(1000)
    assert not home.registry.get_run("a").stalled


def test_a_resumption_that_goes_back_is_progress(home: Home) -> None:
    home.start("a", total_timesteps=1000)
    home.rows("a", 10, 20, 30)
    home.wait(40)
    with home.registry.paths("a").metrics.open("ab") as file:
        file.write(encode_resumed(10))
    home.wait(40)
    assert home.registry.get_run("a").step == 10 and not home.registry.get_run("a").stalled


def test_the_document_of_a_run_shows_that_it_is_stalled(home: Home) -> None:
    home.start("a", total_timesteps=1000)
    home.rows("a", 1)
    home.wait(80)
    document = json.loads(json.dumps(home.registry.get_run("a").to_json(), default=str))
    assert document["stalled"] is True and document["stalled_since"] > 0
