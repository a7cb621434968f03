"""Events to the log and stdout; rows to events and TensorBoard; a script's TensorBoard files to rows."""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.telemetry.emitter import LifecycleEmitter, MetricsRelay, Notes, RunProgress, ScriptScalars, rows_of
from mosaic.contract.errors import EventError, StorageError
from mosaic.contract.events import EventLog, decode, last_seq, replay
from mosaic.contract.metrics import decode_row, encode_resumed, encode_row, read_rows
from mosaic.contract.paths import RunPaths
from mosaic.contract.tensorboard import ScalarReader, ScalarWriter

RETURN, LENGTH = "charts/episodic_return", "charts/episodic_length"
MEAN_RETURN = "charts/mean_return"


@pytest.fixture
def paths(home: Path) -> RunPaths:
    paths = RunPaths("run-1", home)
    paths.create()
    return paths


def test_events_go_to_the_log_and_to_the_stream_alike(paths: RunPaths) -> None:
    stream = io.StringIO()
    emitter = LifecycleEmitter(EventLog(paths.events, "run-1"), stream)
    emitter.run_started("run-1", {"seed": 1})
    emitter.heartbeat("run-1", {"step": 2})
    emitter.emit("warning", "run-1", {"message": "x"})
    assert emitter.run_failed("run-1", {"exit_code": 1})
    emitter.run_completed("run-1", {"manifest": {}})
    emitter.close()
    kinds = [event.event for event in replay(paths.events)]
    assert kinds == ["run_started", "heartbeat", "warning", "run_failed", "run_completed"]
    assert stream.getvalue().encode() == paths.events.read_bytes()


def test_emitter_without_a_log_counts_by_itself() -> None:
    stream = io.StringIO()
    emitter = LifecycleEmitter(stream=stream)
    emitter.run_started("run-1", {})
    emitter.run_completed("run-1", {})
    emitter.close()
    assert [decode(line).seq for line in stream.getvalue().splitlines()] == [0, 1]


def test_event_of_another_run_is_refused(paths: RunPaths) -> None:
    emitter = LifecycleEmitter(EventLog(paths.events, "run-1"), io.StringIO())
    with pytest.raises(EventError, match="of run run-1, not of run-2"):
        emitter.heartbeat("run-2", {})


def test_run_failed_is_said_on_stdout_when_the_disk_takes_nothing(paths: RunPaths) -> None:
    class FullLog(EventLog):
        def append_all(self, told: Any) -> Any:
            raise StorageError("cannot write: No space left on device")

    stream = io.StringIO()
    emitter = LifecycleEmitter(FullLog(paths.events, "run-1"), stream)
    with pytest.raises(StorageError):
        emitter.heartbeat("run-1", {})
    assert not emitter.run_failed("run-1", {"exit_code": 1})
    emitter.close()
    assert decode(stream.getvalue()).event == "run_failed"


def test_held_events_are_one_write_and_stand_before_what_is_said_next(paths: RunPaths) -> None:
    class Counted(EventLog):
        writes = 0

        def _write(self, lines: bytes) -> None:
            self.writes += 1
            super()._write(lines)

    stream, log = io.StringIO(), Counted(paths.events, "run-1")
    emitter = LifecycleEmitter(log, stream)
    assert emitter.flush() == [] and log.writes == 0
    for step in range(20):
        emitter.hold("episode", "run-1", {"step": step})
    assert log.writes == 0
    emitter.heartbeat("run-1", {})
    assert log.writes == 1
    emitter.hold("metrics", "run-1", {"step": 20})
    assert [event.event for event in emitter.flush()] == ["metrics"]
    emitter.close()
    events = list(replay(paths.events))
    assert [event.event for event in events] == ["episode"] * 20 + ["heartbeat", "metrics"]
    assert [event.payload["step"] for event in events[:20]] == list(range(20))
    assert [decode(line) for line in stream.getvalue().splitlines()] == events


def test_what_is_held_is_bounded(paths: RunPaths) -> None:
    emitter = LifecycleEmitter(EventLog(paths.events, "run-1"), io.StringIO())
    for step in range(emitter.HELD + 1):
        emitter.hold("metrics", "run-1", {"step": step})
    assert last_seq(paths.events) == emitter.HELD - 1
    emitter.flush()
    emitter.close()
    assert [event.payload["step"] for event in replay(paths.events)] == list(range(emitter.HELD + 1))


def test_a_disk_that_takes_nothing_for_a_while_loses_no_held_event(paths: RunPaths) -> None:
    class Sometimes(EventLog):
        full = True

        def append_all(self, told: Any) -> Any:
            if self.full:
                raise StorageError("cannot write: No space left on device")
            return super().append_all(told)

    log = Sometimes(paths.events, "run-1")
    emitter = LifecycleEmitter(log, io.StringIO())
    emitter.hold("episode", "run-1", {"step": 1})
    with pytest.raises(StorageError):
        emitter.flush()
    log.full = False
    assert emitter.run_failed("run-1", {"exit_code": 1})
    emitter.close()
    assert [event.event for event in replay(paths.events)] == ["episode", "run_failed"]


EMIT_MUCH = """
import sys, time
from pathlib import Path
from cleanrl_worker.telemetry.emitter import LifecycleEmitter
from mosaic.contract.events import EventLog
emitter = LifecycleEmitter(EventLog(Path(sys.argv[1]), "run-1"))
emitter._outlet.PATIENCE_SECONDS = 0.3
emitter.heartbeat("run-1", {})
time.sleep(0.5)
for step in range(3000):
    emitter.emit("metrics", "run-1", {"step": step})
emitter.close()
"""


def test_reader_that_goes_away_harms_nobody(paths: RunPaths) -> None:
    command = [sys.executable, "-c", EMIT_MUCH + "print('still here')", str(paths.events)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert (process.wait(120), process.stderr.read()) == (0, b"")
    process.stderr.close()
    assert len(list(replay(paths.events))) == 3001


def test_reader_that_never_reads_blocks_nobody(paths: RunPaths) -> None:
    process = subprocess.Popen([sys.executable, "-c", EMIT_MUCH, str(paths.events)], stdout=subprocess.PIPE)
    assert process.wait(120) == 0
    assert len(list(replay(paths.events))) == 3001
    assert process.stdout is not None
    process.stdout.close()


class Heard:
    """Collects what a relay emits."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, kind: str, payload: dict[str, Any]) -> None:
        self.events.append((kind, payload))


def append(paths: RunPaths, *lines: bytes) -> None:
    with paths.metrics.open("ab") as file:
        file.write(b"".join(lines))


def scalars_in(folder: Path) -> list[tuple[int, str, float]]:
    files = sorted(folder.glob("events.out.tfevents.*"))
    return [(step, tag, value) for file in files for _, step, tag, value in ScalarReader(file).read()]


def test_rows_become_events_and_scalars(paths: RunPaths) -> None:
    heard = Heard()
    relay = MetricsRelay(paths, heard, events=True, tensorboard=paths.tensorboard)
    relay.poll()
    append(
        paths, encode_row(10, 1.5, {RETURN: 9.0, LENGTH: 10}), encode_row(20, 2.5, {"losses/v": 0.5, "charts/SPS": 7})
    )
    append(paths, encode_row(30, 3.5, {RETURN: 11.0, LENGTH: 12})[:-5])
    relay.poll()
    assert heard.events == [
        ("episode", {"step": 10, "return": 9.0, "length": 10}),
        ("metrics", {"step": 20, "losses/v": 0.5, "charts/SPS": 7}),
    ]
    expected = [(10, RETURN, 9.0), (10, LENGTH, 10.0), (20, "losses/v", 0.5), (20, "charts/SPS", 7.0)]
    assert scalars_in(paths.tensorboard) == expected
    append(paths, encode_row(30, 3.5, {RETURN: 11.0, LENGTH: 12})[-5:])
    relay.close()
    assert heard.events[2:] == [("episode", {"step": 30, "return": 11.0, "length": 12})]
    assert relay.progress.step == 30


def test_relay_starts_at_the_files_present_end(paths: RunPaths) -> None:
    append(paths, encode_row(10, 1.0, {RETURN: 9.0, LENGTH: 10}))
    heard = Heard()
    relay = MetricsRelay(paths, heard, events=True, tensorboard=None)
    append(paths, encode_row(20, 1.0, {RETURN: 8.0, LENGTH: 10}))
    relay.close()
    assert [payload["step"] for _, payload in heard.events] == [20]


def test_telemetry_off_still_counts_and_writes_scalars(paths: RunPaths) -> None:
    heard = Heard()
    relay = MetricsRelay(paths, heard, events=False, tensorboard=paths.tensorboard)
    append(paths, encode_row(10, 1.0, {RETURN: 9.0, LENGTH: 10}), encode_row(10, 1.0, {"losses/v": 1.0}))
    relay.close()
    assert heard.events == [] and relay.progress.last_return == 9.0
    assert len(scalars_in(paths.tensorboard)) == 3


def test_notes_of_the_algorithm_become_events_and_what_is_none_is_left_out(paths: RunPaths) -> None:
    heard = Heard()
    paths.notes.parent.mkdir(parents=True, exist_ok=True)
    paths.notes.write_text('{"event": "checkpoint", "payload": {"step": 1}}\n')
    notes = Notes(paths, heard)
    with paths.notes.open("a") as file:
        file.write('{"event": "resumed", "payload": {"step": 2}}\nno json\n{"event": "run_failed", "payload": {}}\n')
        file.write('{"event": "warning", "payload": {"message": "m"}}\n{"event": "check')
    notes.poll()
    assert heard.events == [("resumed", {"step": 2}), ("warning", {"message": "m"})]


def test_resumption_opens_a_file_that_purges(paths: RunPaths) -> None:
    heard = Heard()
    relay = MetricsRelay(paths, heard, events=True, tensorboard=paths.tensorboard)
    append(paths, encode_row(30, 1.0, {"losses/v": 1.0}))
    relay.poll()
    append(paths, encode_resumed(20), encode_row(25, 1.0, {"losses/v": 2.0}))
    relay.close()
    assert [kind for kind, _ in heard.events] == ["metrics", "metrics"]
    assert len(list(paths.tensorboard.iterdir())) == 2
    assert relay.progress.step == 25


def test_rows_that_a_killed_shell_had_not_copied_reach_tensorboard_at_the_resumption(paths: RunPaths) -> None:
    relay = MetricsRelay(paths, Heard(), events=True, tensorboard=paths.tensorboard)
    append(paths, encode_row(10, 1.0, {"losses/v": 1.0}))
    relay.poll()
    append(
        paths, encode_row(20, 2.0, {"losses/v": 2.0}), encode_row(30, 3.0, {"losses/v": 3.0})
    )  # never polled: killed
    relay = MetricsRelay(paths, Heard(), events=True, tensorboard=paths.tensorboard)
    append(paths, encode_resumed(20), encode_row(30, 4.0, {"losses/v": 4.0}))
    relay.close()
    files = sorted(paths.tensorboard.iterdir())
    assert [[scalar[1] for scalar in ScalarReader(file).read()] for file in files] == [[10], [20, 30]]


def test_bad_line_is_reported_once_and_passed_over(paths: RunPaths) -> None:
    heard = Heard()
    relay = MetricsRelay(paths, heard, events=True, tensorboard=None)
    append(
        paths, encode_row(1, 1.0, {"a": 1.0}), b"print in the wrong place\n", b"{}\n", encode_row(2, 1.0, {"a": 2.0})
    )
    relay.close()
    assert [kind for kind, _ in heard.events] == ["metrics", "warning", "metrics"]
    assert "metrics.jsonl" in heard.events[1][1]["message"]


@pytest.mark.parametrize("wide", [{f"k{n}": 0.5 for n in range(5000)}, {"x" * 2_000_000: 0.5}])
def test_a_row_over_its_cap_is_one_warning_and_no_event(paths: RunPaths, wide: dict[str, float]) -> None:
    heard = Heard()
    relay = MetricsRelay(paths, heard, events=True, tensorboard=None)
    append(paths, encode_row(1, 1.0, wide), encode_row(2, 1.0, wide), encode_row(3, 1.0, {"a": 2.0}))
    relay.close()
    assert [kind for kind, _ in heard.events] == ["warning", "metrics"]
    message = heard.events[0][1]["message"]
    assert message.startswith("a metrics row was dropped: ") and "bytes" in message and len(message) < 1000


def test_a_run_that_logs_no_mean_is_judged_by_the_mean_of_its_last_hundred_episodes() -> None:
    progress = RunProgress()
    assert progress.summary(0.0) == {
        "final_return": None,
        "best_return": None,
        "episodes": 0,
        "steps": 0,
        "seconds": 0.0,
        "sps": None,
    }
    progress.take({"step": 1, "time": 0.0, RETURN: 500.0})
    for step in range(2, 102):
        progress.take({"step": step, "time": 0.0, RETURN: 10.0 if step % 2 else 20.0})
    told = progress.summary(0.0)
    best = (500.0 + 10 * 20.0 + 9 * 10.0) / 20  # the first mean of as many as twenty episodes
    assert (told["final_return"], told["best_return"], told["episodes"]) == (15.0, best, 101)
    assert progress.steps_per_second(2.0) == 50.5
    progress.take({"step": 102, "time": 0.0, "charts/SPS": 77})
    assert progress.steps_per_second(2.0) == 77


def test_scalars_of_a_step_form_a_row_and_episodes_stand_apart() -> None:
    scalars = [
        (1.0, 5, RETURN, 9.0),
        (1.0, 5, LENGTH, 10.0),
        (1.1, 5, RETURN, 8.0),
        (1.1, 5, LENGTH, 11.0),
        (1.2, 5, "losses/v", 0.5),
        (1.2, 5, "charts/SPS", 7.0),
        (1.3, 5, "step", 5.0),
        (1.4, 6, "losses/v", 0.25),
    ]
    assert [decode_row(line) for line in rows_of(scalars)] == [
        {"step": 5, "time": 1.0, RETURN: 9.0, LENGTH: 10.0},
        {"step": 5, "time": 1.1, RETURN: 8.0, LENGTH: 11.0},
        {"step": 5, "time": 1.2, "losses/v": 0.5, "charts/SPS": 7.0},
        {"step": 6, "time": 1.4, "losses/v": 0.25},
    ]
    assert list(rows_of([])) == []


def test_scripts_own_files_are_read_as_they_grow(paths: RunPaths) -> None:
    old = ScalarWriter(paths.folder / "runs" / "before")
    old.add("losses/v", 9.0, 1, 1.0)
    old.close()
    ours = ScalarWriter(paths.tensorboard)
    scalars = ScriptScalars(paths, paths.tensorboard)
    assert scalars.folder is None
    writer = ScalarWriter(paths.folder / "runs" / "CartPole-v1__mine__1__2")
    ours.add("losses/v", 7.0, 1, 1.0)
    ours.close()
    for step in (1, 2):
        writer.add("losses/v", step / 2, step, 1.0)
        writer.flush()
        scalars.poll()
    assert [(row["step"], row["losses/v"]) for row in read_rows(paths.metrics)] == [(1, 0.5), (2, 1.0)]
    assert scalars.folder == paths.folder / "runs"


def test_late_file_is_found_within_a_second_of_polls_and_at_the_end(paths: RunPaths) -> None:
    scalars = ScriptScalars(paths, None)
    scalars.poll()
    for number, last in ((1, False), (2, True)):
        writer = ScalarWriter(paths.folder / f"elsewhere{number}")
        writer.add("a", 1.0, number, 1.0)
        writer.close()
        for _ in range(1 if last else 4):
            scalars.poll(last=last)
        assert [row["step"] for row in read_rows(paths.metrics)] == list(range(1, number + 1))


def test_corrupt_file_of_a_script_is_left_alone(paths: RunPaths) -> None:
    scalars = ScriptScalars(paths, None)
    writer = ScalarWriter(paths.folder / "runs" / "x")
    writer.add("a", 1.0, 1, 1.0)
    writer.close()
    with writer.path.open("ab") as file:
        file.write(os.urandom(64))
    scalars.poll(last=True)
    scalars.poll(last=True)
    assert [row["step"] for row in read_rows(paths.metrics)] == [1]


def test_real_summary_writer_is_understood(paths: RunPaths, until: Callable[..., None]) -> None:
    torch_tensorboard = pytest.importorskip("torch.utils.tensorboard")
    scalars = ScriptScalars(paths, None)
    writer = torch_tensorboard.SummaryWriter(str(paths.folder / "runs" / "mine"))
    writer.add_text("hyperparameters", "|a|b|")
    writer.add_scalar(RETURN, 12.0, 40)
    writer.add_scalar(LENGTH, 12, 40)
    writer.add_scalar("charts/SPS", 100, 40)
    writer.close()
    scalars.poll(last=True)
    rows = [{key: value for key, value in row.items() if key != "time"} for row in read_rows(paths.metrics)]
    assert rows == [{"step": 40, RETURN: 12.0, LENGTH: 12.0}, {"step": 40, "charts/SPS": 100.0}]


def test_passing_on_is_cheap(paths: RunPaths) -> None:
    emitter = LifecycleEmitter(EventLog(paths.events, "run-1"), io.StringIO())
    relay = MetricsRelay(
        paths, lambda kind, payload: emitter.hold(kind, "run-1", payload), events=True, tensorboard=None
    )
    append(paths, *(encode_row(step, 1.0, {RETURN: 1.0, LENGTH: 5}) for step in range(2000)))
    began = time.process_time()
    relay.close()
    emitter.close()
    # 800 episodes a second, as PPO makes on CartPole at first, must stay a small part of one core.
    assert (time.process_time() - began) / 2000 < 0.0005
    assert json.loads(paths.events.read_bytes().splitlines()[-1])["seq"] == 1999


def test_final_and_best_return_are_those_of_the_logged_mean_after_twenty_episodes() -> None:
    progress = RunProgress()
    for step in range(1, 41):
        progress.take({"step": step, "time": 0.0, RETURN: 500.0})
        progress.take({"step": step, "time": 0.0, MEAN_RETURN: 900.0 if step == 5 else float(step)})
    progress.take({"step": 41, "time": 0.0, MEAN_RETURN: 30.0})
    assert (progress.summary(0.0)["final_return"], progress.summary(0.0)["best_return"]) == (30.0, 40.0)


def test_another_stage_of_a_curriculum_chooses_its_best_anew() -> None:
    progress = RunProgress()
    for step in range(1, 21):
        progress.take({"step": step, "time": 0.0, RETURN: 9.0})
    progress.take({"step": 20, "time": 0.0, "curriculum/stage": 0, MEAN_RETURN: 9.0})
    assert progress.summary(0.0)["best_return"] == 9.0
    progress.take({"step": 21, "time": 0.0, "curriculum/stage": 1})
    progress.take({"step": 22, "time": 0.0, RETURN: 2.0})
    told = progress.summary(0.0)
    assert (told["final_return"], told["best_return"], told["episodes"]) == (2.0, None, 21)


def test_resumption_restores_return_best_and_episodes_of_the_attempt_before(paths: RunPaths) -> None:
    before = [encode_row(step, 0.0, {RETURN: 1.0}) for step in range(1, 31)]
    before += [encode_row(30, 0.0, {MEAN_RETURN: 7.0}), encode_row(40, 0.0, {MEAN_RETURN: 99.0})]
    paths.metrics.write_bytes(b"".join(before))
    relay = MetricsRelay(paths, Heard(), events=True, tensorboard=None)
    with paths.metrics.open("ab") as file:
        file.write(encode_resumed(30))
    relay.poll()
    told = relay.progress.summary(0.0)
    assert (told["final_return"], told["best_return"], told["episodes"], told["steps"]) == (7.0, 7.0, 30, 30)
    with paths.metrics.open("ab") as file:
        file.write(encode_row(35, 0.0, {RETURN: 1.0}) + encode_row(36, 0.0, {MEAN_RETURN: 5.0}))
    relay.poll()
    told = relay.progress.summary(0.0)
    assert (told["final_return"], told["best_return"], told["episodes"], told["steps"]) == (5.0, 7.0, 31, 36)
