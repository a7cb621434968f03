"""One run costs one row: whatever stands in a row, every list, watch and look at the others answers."""

import json
import os
import sqlite3
import subprocess
import sys
from typing import Any

import pytest

from mosaic.contract.errors import MoveError, UnknownRunError
from mosaic.contract.fields import RUN_NULLS, RUN_ROW
from mosaic.trainer.executors.local import boot_id, start_ticks
from mosaic.trainer.registry.database import MIGRATIONS
from mosaic.trainer.states import State

BAD: list[tuple[str, object]] = [
    ("max_restarts", 2147483648),
    ("attempt", 1 << 40),
    ("seed", 1.5),
    ("seed", "seven"),
    ("state", "XYZ"),
    ("state", b"\x00"),
    ("gpus", "no JSON"),
    ("gpus", "[1.5]"),
    ("gpus", "[" * 100_000),
    ("warnings", "{}"),
    ("warnings", "[1]"),
    ("step", "many"),
    ("step", -1),
    ("total_timesteps", 1e300),
    ("created_at", float("inf")),
    ("created_at", 1e300),
    ("ended_at", "yesterday"),
    ("sps", b"fast"),
    ("algo", b"\xff\xfe"),
    ("run_name", "a\x00b"),
    ("asked", "dance"),
    ("external", 7),
    ("pid", -5),
    ("cpus", "all"),
    ("cpus", float("inf")),
    ("grace", float("inf")),
    ("events_offset", -1),
]


def spoil(home: Any, run_id: str, column: str, value: object) -> None:
    """Write into the row as a stranger's program would."""
    with sqlite3.connect(home.registry.database.path) as connection:
        connection.execute(f'UPDATE runs SET "{column}" = ? WHERE run_id = ?', (value, run_id))


@pytest.mark.parametrize(("column", "value"), BAD, ids=[f"{column}-{number}" for number, (column, _) in enumerate(BAD)])
@pytest.mark.parametrize("state", ["INIT", "EXECUTING", "COMPLETED"])
def test_a_row_that_cannot_be_read_is_broken_and_hides_no_other(
    home: Any, state: str, column: str, value: object
) -> None:
    home.add("bad", env_id="CartPole-v1")
    home.add("good")
    spoil(home, "bad", "state", state)
    spoil(home, "bad", column, value)
    assert [row["run_id"] for row in (*home.attempts.queued(), *home.attempts.live())] == ["good"]
    by_id = {run.run_id: run for run in home.verbs.list_runs(curve_points=4).runs}
    assert by_id["good"].state == State.INIT and by_id["good"].queue_position == 0
    bad = home.verbs.get_run("bad")
    assert bad.state == by_id["bad"].state == State.BROKEN and bad.ended
    assert bad.reason.startswith(f"{column}: ") and "needed" in bad.reason and "\n" not in bad.reason
    assert bad.env_id == "CartPole-v1", "what can be read is shown"
    assert home.registry.counts() == {"INIT": 1, "BROKEN": 1}
    changes = home.registry.changes(0)
    assert {change.run.state for change in changes if change.run_id == "bad"} == {State.BROKEN}
    for verb in (home.verbs.cancel_run, home.verbs.pause_run, home.verbs.get_metrics):
        with pytest.raises(MoveError, match=f"run bad is BROKEN: {column}: .*mosaic delete bad"):
            verb("bad")
    home.verbs.delete_run("bad")
    with pytest.raises(UnknownRunError):
        home.verbs.get_run("bad")
    assert home.registry.counts() == {"INIT": 1}


def test_every_column_is_typed() -> None:
    with sqlite3.connect(":memory:") as connection:
        connection.executescript("".join(MIGRATIONS))
        columns = {row[1]: row for row in connection.execute("PRAGMA table_info(runs)")}
    assert set(RUN_ROW) == set(columns) - {"id"}
    assert {name for name, row in columns.items() if not row[3] and name != "id"} == RUN_NULLS
    assert all(RUN_ROW["state"].fits(state.value) == (state != State.BROKEN) for state in State)


def test_a_missing_number_is_named_where_the_table_no_longer_forbids_it(home: Any) -> None:
    home.add("bad")
    with sqlite3.connect(home.registry.database.path) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'INTEGER NOT NULL', 'INTEGER')")
    with sqlite3.connect(home.registry.database.path) as connection:
        connection.execute("UPDATE runs SET step = NULL, attempt = NULL")
    bad = home.verbs.get_run("bad")
    assert bad.state == State.BROKEN
    assert bad.reason == "attempt: a value is missing; a whole number from 0 to 2147483647 is needed (and 1 more)"


@pytest.mark.parametrize(
    "run_id", ["", "../../etc", b"\xff", "a\x00b", "x" * 500, "ä"], ids=["", "..", "blob", "NUL", "long", "ä"]
)
def test_a_run_whose_id_cannot_be_read_is_named_by_its_row(home: Any, run_id: Any) -> None:
    home.add("good")
    home.add("bad")
    spoil(home, "bad", "run_id", run_id)
    assert [run.run_id for run in home.verbs.list_runs().runs] == ["row-2", "good"]
    assert [run.run_id for run in home.verbs.list_runs(text="row-2").runs] == ["row-2"]
    assert home.verbs.get_run("row-2").reason.startswith("run_id: ")
    for unknown in ("row-1", "row-3", "row-" + "9" * 40):
        with pytest.raises(UnknownRunError):
            home.verbs.get_run(unknown)
    home.verbs.delete_run("row-2")
    assert [run.run_id for run in home.verbs.list_runs().runs] == ["good"]


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("payload", "{", "payload: no valid JSON"),
        ("payload", "[]", "payload: a JSON object is needed"),
        ("payload", '{"a": ' * 10_000 + "1" + "}" * 10_000, "payload: nested deeper than 64 levels"),
        ("payload", '{"metadata": {"worker": [1]}}', "payload.metadata.worker: a JSON object is needed"),
        ("payload", b"\xff", "payload: a JSON object is needed"),
        ("config", "7", "config: a JSON object is needed"),
        ("command", "[1]", "command: a JSON list of texts is needed"),
    ],
)
def test_a_payload_that_cannot_be_read_makes_its_run_broken(home: Any, column: str, value: object, reason: str) -> None:
    home.add("bad")
    with sqlite3.connect(home.registry.database.path) as connection:
        connection.execute(f"UPDATE payloads SET {column} = ?", (value,))
    bad = home.verbs.get_run("bad")
    assert bad.state == State.BROKEN and bad.reason.startswith(reason) and bad.payload == {}
    assert home.verbs.list_runs().runs[0].state == State.BROKEN and home.attempts.queued() == []
    home.verbs.delete_run("bad")


def test_a_payload_that_is_gone_is_found_when_the_registry_is_opened(home: Any) -> None:
    home.add("bad")
    with sqlite3.connect(home.registry.database.path) as connection:
        connection.execute("DELETE FROM payloads")
    fresh = type(home.registry)(home.registry.home)
    assert fresh.list_runs(states=["BROKEN"]).runs[0].reason == "payload: missing"
    assert fresh.unreadable.fresh() == [("bad", "payload: missing")]
    fresh.close()


def test_broken_runs_are_found_by_their_state_and_by_no_other(home: Any) -> None:
    for run_id in ("a", "b"):
        home.add(run_id)
    spoil(home, "a", "seed", 1.5)
    assert home.verbs.list_runs().total == 2
    assert [run.run_id for run in home.verbs.list_runs(states=["BROKEN"]).runs] == ["a"]
    assert [run.run_id for run in home.verbs.list_runs(states=["INIT"]).runs] == ["b"]
    assert home.verbs.list_runs(states=["INIT", "BROKEN"]).total == 2
    spoil(home, "a", "seed", 1)
    assert home.verbs.get_run("a").state == State.INIT, "a row that was repaired is a run again"
    assert [run.run_id for run in home.verbs.list_runs(states=["INIT"]).runs] == ["b", "a"]


def test_a_broken_run_whose_worker_lives_stays(home: Any) -> None:
    home.add("bad")
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with process:
        for column, value in (("pid", process.pid), ("start_ticks", start_ticks(process.pid)), ("boot_id", boot_id())):
            spoil(home, "bad", column, value)
        spoil(home, "bad", "gpus", "?")
        with pytest.raises(MoveError, match=f"its worker still runs; end it with: kill {process.pid}"):
            home.verbs.delete_run("bad")
        process.kill()
    home.verbs.delete_run("bad")


def test_a_broken_run_whose_lock_is_held_stays(home: Any) -> None:
    import fcntl

    home.add("bad")
    spoil(home, "bad", "pid", "none")
    paths = home.registry.paths("bad")
    paths.create()
    with paths.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        with pytest.raises(MoveError, match=f"kill {os.getpid()}"):
            home.verbs.delete_run("bad")
    home.verbs.delete_run("bad")


def test_changes_artefacts_and_values_that_cannot_be_read_are_left_out(served: Any) -> None:
    served.add("a")
    served.execute("a")
    served.append("a", rows=({"step": 1, "charts/episodic_return": 1.0, "x": 2.0},))
    with sqlite3.connect(served.registry.database.path) as connection:
        connection.execute("UPDATE changes SET kind = 'odd', from_state = 'XYZ', to_state = 7, timestamp = 'now'")
        connection.execute("UPDATE series SET value = 'much' WHERE key = 'x'")
        connection.execute("UPDATE points SET vals = x'00'")
        connection.execute("INSERT INTO artifacts VALUES (1, 'policy', x'ff', 'x', 0)")
        connection.execute("INSERT INTO artifacts VALUES (1, 'policy', ?, 1, 0)", ("y" * 400,))
    run = served.verbs.get_run("a")
    assert run.last_values == {"charts/episodic_return": 1.0} and [len(one.path) for one in run.artifacts] == [400]
    assert served.verbs.list_runs(curve_points=4).runs[0].curve == ()
    change = next(iter(served.verbs.watch_runs(0)))
    assert (change.kind, change.run_id, change.from_state, change.timestamp) == ("marked", "a", None, 0.0)
    with pytest.raises(Exception, match=r"the curves of run a cannot be read.*metrics.jsonl"):
        served.verbs.get_metrics("a")


def test_a_run_that_would_take_for_ever_has_no_remaining_time(home: Any) -> None:
    home.add("a", total_timesteps=1 << 60)
    home.execute("a")
    spoil(home, "a", "sps", 5e-324)
    run = home.verbs.get_run("a")
    assert run.state == State.EXECUTING and run.eta_seconds is None
    spoil(home, "a", "sps", float("inf"))
    assert home.verbs.get_run("a").eta_seconds == 0.0
    json.dumps(home.verbs.get_run("a").to_json())


def test_warnings_of_many_megabytes_do_not_fill_a_list(home: Any) -> None:
    for run_id in "abcd":
        home.add(run_id, warnings=json.dumps(["w" * 1000] * 20_000))
    found = home.verbs.list_runs().runs
    assert [len(run.warnings) for run in found] == [64] * 4
