"""A real daemon under hostile data: wide rows, long lines, large warnings, from files and over gRPC."""

import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mosaic.contract.channel import PROTO_VERSION, credentials, open_channel
from mosaic.contract.events import EventLog
from mosaic.contract.fields import ROW_BYTES
from mosaic.contract.metrics import encode_row
from mosaic.contract.paths import RunPaths
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.contract.proto import trainer_pb2_grpc
from mosaic.contract.publisher import Publisher
from mosaic.trainer.executors.local import boot_id, start_ticks
from mosaic.trainer.rpc.client import Client
from mosaic.trainer.states import State

LONG = 20_000_000
MOST_MEGABYTES = 300


@pytest.fixture
def daemon(standing: Any) -> Any:
    """One for all of them."""
    return standing


@pytest.fixture
def neighbour(daemon: Any) -> Iterator[Any]:
    """Registers a run whose files this process writes, or sends."""
    names: list[str] = []
    # Which process stands for the worker: the daemon ends it with the run.
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])

    def start(name: str, *, far: bool = False) -> Any:
        daemon.client.submit_run({"algo": "tiny", "env_id": "x", "total_timesteps": 5}, external=True, run_id=name)
        names.append(name)
        paths = daemon.paths(name)
        paths.create()
        request = pb.RegisterWorkerRequest(
            run_id=name,
            proto_version=PROTO_VERSION,
            boot_id="elsewhere" if far else boot_id(),
            pid=worker.pid,
            start_ticks=start_ticks(worker.pid) or 0,
            run_folder="" if far else str(paths.folder),
        )
        stub = trainer_pb2_grpc.TrainerStub(open_channel(daemon.client.address))
        token = stub.RegisterWorker(request, metadata=credentials(daemon.client.address), timeout=180).session_token
        return (paths, stub, token) if far else paths

    yield start
    worker.kill()
    worker.wait()
    for name in names:
        with EventLog(daemon.paths(name).events, name) as log:  # what a distant worker would say
            log.append("run_completed", {})
        daemon.client.wait_run(name, 180)


def line_of(run_id: str, seq: int, kind: str, **payload: Any) -> bytes:
    told = {"event": kind, "run_id": run_id, "seq": seq, "timestamp": 1.0, "payload": payload}
    return json.dumps(told).encode() + b"\n"


def write(path: Path, *lines: bytes) -> None:
    with path.open("ab") as file:
        file.writelines(lines)


def megabytes(daemon: Any) -> float:
    return psutil.Process(daemon.process.pid).memory_info().rss / 1e6


def test_rows_of_a_hundred_thousand_keys_stall_no_other_run(daemon: Any, neighbour: Any, until: Any) -> None:
    wide, other = neighbour("wide"), neighbour("other")
    row = b'"time":1.0,' + b",".join(b'"%x":1' % n for n in range(100_000)) + b"}\n"
    assert len(row) < ROW_BYTES
    for step in range(1, 6):
        write(wide.metrics, b'{"step":%d,' % step + row)
        write(other.metrics, encode_row(step, 1.0, {"a": 1.0}))
        began = time.monotonic()
        until(lambda step=step: daemon.client.get_run("other").step == step, "the other run's row")
        assert time.monotonic() - began < 10  # it took 15 to 34 s
    write(wide.metrics, encode_row(9, 1.0, {"a": 1.0}))
    until(lambda: daemon.client.get_run("wide").step == 9, "the row after them")
    (warning,) = daemon.client.get_run("wide").warnings
    assert "100,002 keys" in warning and daemon.client.get_run("wide").last_values == {"a": 1.0}


def test_eight_readers_of_a_log_with_long_lines_leave_the_daemon_small(daemon: Any, neighbour: Any, until: Any) -> None:
    paths = neighbour("long")
    before = megabytes(daemon)
    write(paths.events, *(line_of("long", seq, "warning", message=f"{seq}") for seq in range(50)))
    for seq in range(50, 54):
        write(paths.events, line_of("long", seq, "warning", message="x" * LONG))
    write(paths.events, *(line_of("long", seq, "stage", text="y" * 900_000) for seq in range(54, 74)))
    write(paths.events, line_of("long", 74, "warning", message="last"))
    until(lambda: daemon.client.get_run("long").next_seq == 75, "the last event")
    seen: list[list[int]] = []

    def read(number: int) -> None:
        with Client(daemon.client.address.target, token=daemon.client.address.token) as client:
            seen.append([event.seq for event in client.read_events("long", number)])

    readers = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for reader in readers:
        reader.start()
    peak = before
    while any(reader.is_alive() for reader in readers):
        peak = max(peak, megabytes(daemon))
        time.sleep(0.01)
    assert sorted(seen) == sorted([*range(number, 50), *range(54, 75)] for number in range(8))
    assert peak < MOST_MEGABYTES, f"{before:.0f} MB before"
    warnings = daemon.client.get_run("long").warnings
    assert [text for text in warnings if text.startswith("an event was dropped: it has 20,000,")]


def test_a_reader_that_follows_gets_what_comes_behind_dropped_lines(daemon: Any, neighbour: Any, until: Any) -> None:
    paths = neighbour("gaps")
    seen: list[int] = []

    def follow() -> None:
        with Client(daemon.client.address.target, token=daemon.client.address.token) as client:
            for event in client.follow_events("gaps"):
                seen.append(event.seq)
                if event.event == "stage":
                    return

    reader = threading.Thread(target=follow)
    reader.start()
    for first in range(0, 60, 6):
        write(paths.events, *(line_of("gaps", first + n, "warning", message="x") for n in range(3)))
        write(paths.events, line_of("gaps", first + 3, "heartbeat", step="x"))
        write(paths.events, line_of("gaps", first + 4, "warning", message="x" * 2_000_000))
        until(lambda: daemon.client.get_run("gaps").next_seq > first, "what was written")  # noqa: B023
    write(paths.events, line_of("gaps", 60, "stage", step=1))
    reader.join(180)
    assert seen == [first + n for first in range(0, 60, 6) for n in range(3)] + [60]


@pytest.mark.parametrize("size", [LONG, 900_000])
def test_large_warnings_leave_lists_and_pages_readable(daemon: Any, neighbour: Any, until: Any, size: int) -> None:
    for number in range(4):
        paths = neighbour(f"loud-{size}-{number}")
        for seq in range(4):
            write(paths.events, line_of(paths.run_id, seq, "warning", message=f"{seq} " + "x" * size))
        write(paths.events, line_of(paths.run_id, 4, "stage", step=1))
        until(lambda paths=paths: daemon.client.get_run(paths.run_id).next_seq == 5, "the last event")
    runs = daemon.client.list_runs(text=f"loud-{size}", page_size=1000).runs
    assert len(runs) == 4
    for run in runs:
        assert 1 <= len(run.warnings) <= 4 and sum(map(len, run.warnings)) <= 64_000
    assert next(iter(daemon.client.watch_runs(0))).cursor == 1


def test_published_events_that_are_dropped_leave_no_gap_and_later_ones_arrive(
    daemon: Any, neighbour: Any, until: Any
) -> None:
    _, stub, token = neighbour("far", far=True)

    def event(seq: int, kind: str, payload: bytes, timestamp: float = 1.0) -> pb.Event:
        return pb.Event(event=kind, seq=seq, timestamp=timestamp, payload=payload)

    sent = [
        event(0, "warning", b'{"message": "first"}'),
        event(1, "heartbeat", b'{"step": "x"}'),
        event(2, "warning", b'{"message": "' + b"x" * LONG + b'"}'),
        event(3, "no such kind", b"{}"),
        event(4, "warning", b"no JSON"),
        event(5, "warning", b"{}", timestamp=float("nan")),
        event(6, "warning", b'{"message": "last"}'),
    ]
    wide = b'{"step": 1, "time": 1.0, "' + b"x" * 3_000_000 + b'": 1}\n{"step": 2, "time": 1.0, "a": 1}\n'
    batches = [
        pb.TelemetryBatch(run_id="far", events=sent),
        pb.TelemetryBatch(metrics=wide[:1_000_000]),
        pb.TelemetryBatch(metrics=wide[1_000_000:], metrics_offset=1_000_000),
    ]
    metadata = credentials(daemon.client.address, token)
    stored = [c.stored for c in stub.PublishTelemetry(iter(batches), metadata=metadata) if c.HasField("stored")]
    assert (stored[-1].next_seq, stored[-1].metrics_offset) == (7, len(wide))
    until(lambda: daemon.client.get_run("far").step == 2, "the row after the wide one")
    run = daemon.client.get_run("far")
    assert run.next_seq == 7
    assert [text.partition(":")[0] for text in run.warnings] == [
        "first",
        "an event was dropped",
        "last",
        "a metrics row was dropped",
    ]
    assert "heartbeat.step: a whole number" in run.warnings[1]


def test_a_distant_workers_long_lines_do_not_keep_its_later_ones_back(
    daemon: Any, neighbour: Any, until: Any, tmp_path: Path
) -> None:
    _, _, token = neighbour("sends", far=True)
    there = RunPaths("sends", tmp_path)
    there.create()
    write(there.events, line_of("sends", 0, "run_started"))
    write(there.events, line_of("sends", 1, "warning", message="x" * 80_000_000), b"no JSON\n")
    write(there.events, line_of("sends", 3, "warning", message="last"))
    long = json.dumps({"step": 1, "time": 1.0, "x" * 5_000_000: 1.0}).encode() + b"\n"
    write(there.metrics, encode_row(1, 1.0, {"a": 1.0}), long, encode_row(2, 1.0, {"a": 2.0}))
    publisher = Publisher(daemon.client.address, token, there, lambda what, grace: None)
    publisher.start()
    until(lambda: daemon.client.get_run("sends").step == 2, "the last row")
    until(lambda: daemon.client.get_run("sends").next_seq == 4, "the last event")
    assert publisher.close() is None
    warnings = daemon.client.get_run("sends").warnings
    assert any("an event was dropped: it has 80,000,0" in text for text in warnings) and "last" in warnings
    assert any("a metrics row was dropped: it has 5,000,0" in text for text in warnings)
    assert daemon.paths("sends").metrics.read_bytes() == there.metrics.read_bytes()


def test_wide_rows_of_a_users_script_are_one_warning_although_its_shell_sees_them_too(
    daemon: Any, tmp_path: Path
) -> None:
    script = tmp_path / "wide.py"
    script.write_text(
        "import argparse, json, time\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--env-id'), parser.add_argument('--total-timesteps'), parser.add_argument('--seed')\n"
        "parser.parse_args()\n"
        "for step in range(1, 6):\n"
        "    row = {f'k{n}': 0.5 for n in range(5000 if step < 5 else 1)}\n"
        "    open('metrics.jsonl', 'a').write(json.dumps({'step': step, 'time': 1.0, **row}) + '\\n')\n"
        "    time.sleep(0.3)\n"
    )
    run = daemon.client.train(str(script), "CartPole-v1", seed=1, total_timesteps=5).wait(300).info
    assert (run.state, run.step) == (State.COMPLETED, 5), run.reason
    told = [text for text in run.warnings if "dropped" in text]
    assert len(told) == 1 and "5,002 keys" in told[0]


def test_an_unwritable_registry_is_reported_with_the_time_of_its_states(daemon: Any, until: Any) -> None:
    run = daemon.submit({"episodes": 100_000, "pause": 0.02})
    daemon.until_state(run.run_id, State.EXECUTING)
    assert daemon.client.health()["trouble"] == ""
    other = sqlite3.connect(daemon.home / "var/trainer/mosaic.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    before = time.strftime("%Y-%m-%d %H:%M")
    told = until(lambda: daemon.client.health()["trouble"], "the trouble")
    stamp = told.partition("; the states of runs are true up to ")[2]
    assert before[:-6] <= stamp <= time.strftime("%Y-%m-%d %H:%M:%S")
    assert told.startswith("the registry ") and "another program holds the file" in told
    other.execute("ROLLBACK")
    other.close()
    until(lambda: daemon.client.health()["trouble"] == "", "the daemon to write again")
    daemon.client.cancel_run(run.run_id)
