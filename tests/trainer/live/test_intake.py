"""Typed and capped run files: a bad line hurts neither the run's later lines nor another run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mosaic.contract.fields import EVENT_BYTES, ROW_BYTES, ROW_KEYS
from mosaic.contract.happenings import Happenings
from mosaic.contract.metrics import encode_resumed, encode_row
from mosaic.trainer.executors.contract import Identity
from mosaic.trainer.live.bus import Bus
from mosaic.trainer.live.ingest import Ingest
from mosaic.trainer.live.intake import MOST_RESUMPTIONS, Intake
from mosaic.trainer.registry import metrics_store
from mosaic.trainer.registry.registry import NewRun, Registry
from mosaic.trainer.scheduling.attempts import Attempts, Registration


class Home:
    """Two live runs whose files are written by hand, and the relay that reads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = Registry(folder)
        self.attempts = Attempts(self.registry)
        self.bus = Bus()
        self.relay = Ingest(self.registry, self.bus, Happenings(folder / "var/logs/trainer_daemon.log"))
        for run_id in ("a", "b"):
            self.registry.add_run(NewRun(run_id, {"metadata": {}}, columns={"algo": "ppo"}))
            row = self.attempts.begin(run_id, [], [])
            assert row is not None
            self.attempts.register(run_id, Registration("w", Identity(1, 1, "b"), nonce=row["nonce"]))
            self.registry.paths(run_id).create()

    def write(self, *lines: bytes, run_id: str = "a", events: bool = False) -> None:
        paths = self.registry.paths(run_id)
        with (paths.events if events else paths.metrics).open("ab") as file:
            file.write(b"".join(line.rstrip(b"\n") + b"\n" for line in lines))

    def poll(self) -> Any:
        self.relay.poll(self.attempts.live())
        return self.registry.get_run("a")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.registry.close()


def event(seq: int, kind: str = "episode", run_id: str = "a", **payload: Any) -> bytes:
    told = payload or {"step": seq, "return": 1.0, "length": 1}
    return json.dumps({"event": kind, "run_id": run_id, "seq": seq, "timestamp": 1.0, "payload": told}).encode()


def row(step: int, keys: int = 1) -> bytes:
    return encode_row(step, 1.0, {f"k{n}": 0.5 for n in range(keys)})


def wide(step: int) -> bytes:
    """A row of 100,000 keys that has less than a megabyte."""
    return b'{"step":%d,"time":1.0,' % step + b",".join(b'"%x":1' % n for n in range(100_000)) + b"}"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (wide(5), "100,002 keys"),
        (row(5, 100_000), "1,288,911 bytes"),
        (json.dumps({"step": 5, "time": 1.0, "x" * 20_000_000: 1.0}).encode(), "20,000,033 bytes"),
        (json.dumps({"step": 5, "time": 1.0, "x" * 301: 1.0}).encode(), "a text (at most 300 characters"),
        (b'{"step": 5, "time": "NaN", "a": 1}', "row.time: a number between"),
        (b'{"step": 5, "time": 1e300, "a": 1}', "row.time"),
        (b'{"step": 9223372036854775808, "time": 1.0, "a": 1}', "row.step: a whole number"),
        (b'{"resumed_from": 9223372036854775808}', "row.resumed_from"),
        (b'{"step": 5, "time": 1.0, "a": [1]}', "'a' is a number"),
    ],
)
def test_a_bad_row_is_dropped_with_one_warning_and_the_next_ones_arrive(home: Home, bad: bytes, words: str) -> None:
    home.write(row(1), bad, bad)
    home.write(row(7), run_id="b")
    assert home.poll().step in (1, 2)
    assert home.registry.get_run("b").step == 7, "in the same look"
    home.write(bad, row(9))
    home.poll()
    run = home.poll()
    assert run.step == 9 and run.last_values["k0"] == 0.5
    (warning,) = run.warnings
    assert warning.startswith("a metrics row was dropped: ") and words in warning and "\n" not in warning
    assert "telemetry.bad_line run=a" in (home.folder / "var/logs/trainer_daemon.log").read_text()


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (event(1, "warning", message="x" * 20_000_000), "20,000,0"),
        (event(1, "heartbeat", step="x"), "heartbeat.step: a whole number from"),
        (event(1, "episode", step=5), "episode.return: missing"),
        (event(1, "run_completed", manifest={"artifacts": {"videos": 5}}), "videos: a list"),
        (event(1, run_id="b"), "it is of run 'b'"),
        (event(0), "its seq is 0 where 1 is next"),
        (b"no JSON", "not JSON"),
    ],
)
def test_a_bad_event_is_dropped_with_one_warning_and_the_next_ones_arrive(home: Home, bad: bytes, words: str) -> None:
    home.write(event(0), bad, bad, events=True)
    home.write(event(0, run_id="b"), run_id="b", events=True)
    home.poll()
    assert home.registry.get_run("b").next_seq == 1
    home.write(bad, event(2), event(3), events=True)
    home.poll()
    run = home.poll()
    assert run.next_seq == 4
    (warning,) = run.warnings
    assert warning.startswith("an event was dropped: ") and words in warning and len(warning) < 500
    assert [one.seq for one in home.registry.read_events("a")] == [0, 2, 3]
    assert [one.seq for one in home.registry.read_events("a", 1, 3)] == [2]


def test_lines_at_their_cap_are_accepted(home: Home) -> None:
    fill = EVENT_BYTES - len(event(0, "warning", message=""))
    home.write(event(0, "warning", message="x" * fill), event(1), events=True)
    home.write(row(1, ROW_KEYS))
    home.poll()
    run = home.poll()
    assert run.next_seq == 2 and len(run.last_values) == ROW_KEYS
    assert [text[:4] for text in run.warnings] == ["xxxx"] and len(run.warnings[0].encode()) == 4000
    assert len(row(1, ROW_KEYS)) < ROW_BYTES


def test_many_resumptions_are_taken_a_few_at_a_time(home: Home) -> None:
    home.write(*(line for step in range(40) for line in (row(step + 1), encode_resumed(step))))
    intake, live = Intake(home.registry), home.attempts.live()[0]
    reading = intake.read(live)
    assert sum("resumed_from" in one for one in reading.rows) == MOST_RESUMPTIONS and reading.full
    for _ in range(3):
        home.poll()
    assert home.registry.get_run("a").step == 39
    assert home.registry.get_run("a").warnings == ()


def test_a_run_has_so_many_metrics_and_no_more(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_store, "SERIES", 5)
    home.write(row(1, 3), encode_row(2, 1.0, {f"other{n}": 1.0 for n in range(4)}), row(3, 3))
    run = home.poll()
    assert len(run.last_values) == 5 and run.step == 3
    (warning,) = run.warnings
    assert warning.startswith("a metric was dropped: ") and "other2" in warning
    assert [s.steps.tolist() for s in home.registry.get_metrics("a", ["k0", "other0"])] == [[1, 3], [2]]


def test_a_line_over_its_cap_that_is_still_written_holds_nothing_up(home: Home) -> None:
    paths = home.registry.paths("a")
    home.write(event(0), events=True)
    with paths.events.open("ab") as file:
        file.write(b"x" * 3_000_000)
    home.write(row(1))
    run = home.poll()
    assert (run.next_seq, run.step, run.warnings) == (1, 1, ())
    with paths.events.open("ab") as file:
        file.write(b"\n" + event(2) + b"\n")
    home.poll()
    run = home.poll()
    assert run.next_seq == 3 and "3,000,000 bytes" in run.warnings[0]
