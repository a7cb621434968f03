"""Live frames through the daemon: from a local run's ring, and from a remote worker on demand."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from mosaic.contract.channel import credentials
from mosaic.contract.errors import ConfigError, UnknownRunError
from mosaic.contract.frames import FastLaneWriter
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.trainer.executors.local import Identity
from mosaic.trainer.scheduling.attempts import Registration


def test_a_local_runs_ring_is_read_and_its_writer_knows_that_somebody_looks(served: Any) -> None:
    served.add("a")
    served.execute("a")
    writer = FastLaneWriter.create("a", served.registry.paths("a").fastlane)
    try:
        assert not writer.watched
        writer.tell(label="(Eval)", note="batch 1")
        frames = served.verbs.stream_frames("a", max_fps=60)
        pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)

        def draw() -> None:
            while not writer.watched:
                time.sleep(0.02)
            writer.publish(pixels.tobytes(), 3, 2, 3, last_reward=1.5, rolling_return=2.5, step_rate_hz=10.0, step=42)

        drawing = threading.Thread(target=draw, daemon=True)
        drawing.start()
        frame = next(frame for frame in frames if frame.data)
        assert (frame.width, frame.height, frame.channels, frame.step) == (3, 2, 3, 42)
        assert frame.data == pixels.tobytes() and frame.last_reward == 1.5
        assert (frame.label, frame.note) == ("(Eval)", "batch 1")
        served.end("a")
        assert all(not frame.data for frame in frames), "the stream ends with the run"
        drawing.join(10)
        log = (served.registry.home / "var" / "logs" / "trainer_daemon.log").read_text()
        assert "fastlane.connected" in log and "size=3x2" in log
        assert "fastlane.frame_published" in log and "frames=1" in log
    finally:
        writer.close()


def test_a_run_without_a_ring_says_why_and_ends(served: Any) -> None:
    served.add("a")
    served.execute("a")
    frames = served.verbs.stream_frames("a")
    assert "shows nothing yet" in next(frames).reason
    served.end("a")
    assert all(frame.reason for frame in frames)
    log = (served.registry.home / "var" / "logs" / "trainer_daemon.log").read_text()
    assert log.count("fastlane.unavailable") == 1 and "fastlane.header_invalid" not in log
    with pytest.raises(UnknownRunError):
        next(served.verbs.stream_frames("nobody"))
    with pytest.raises(ConfigError, match="max_fps"):
        next(served.verbs.stream_frames("a", max_fps=-1.0))


def test_a_ring_that_cannot_be_read_is_told_once(served: Any) -> None:
    served.add("a")
    served.execute("a")
    record = served.registry.paths("a").fastlane
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text("{}")
    frames = served.verbs.stream_frames("a", max_fps=60)
    assert "shows nothing yet" in next(frames).reason
    assert next(frames).reason
    served.end("a")
    assert all(frame.reason for frame in frames)
    log = (served.registry.home / "var" / "logs" / "trainer_daemon.log").read_text()
    assert log.count("fastlane.header_invalid") == 1


@contextlib.contextmanager
def far_worker(served: Any) -> Iterator[list[bool]]:
    """A worker of run `far` that sends a frame when one is wanted; what it was told of that, in order."""
    session = served.attempts.register("far", Registration("w", Identity(1, 1, "elsewhere"), reads_files=False))
    demanded: list[bool] = []
    sending = threading.Event()

    def frames() -> Iterator[pb.Frame]:
        yield pb.Frame(run_id="far")
        assert sending.wait(180)
        yield pb.Frame(run_id="another-run", width=1, height=1, channels=3, data=b"abc", encoding="raw")
        time.sleep(60)

    metadata = credentials(served.verbs.address, session)
    stream = served.verbs._stub.PublishFrames(frames(), metadata=metadata, timeout=180)

    def listen() -> None:
        with contextlib.suppress(grpc.RpcError):
            for control in stream:
                demanded.append(control.demand.frames)
                if demanded[-1]:
                    sending.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    yield demanded
    stream.cancel()
    listener.join(10)


def until(demanded: list[bool], *wanted: list[bool]) -> None:
    end = time.monotonic() + 180
    while demanded not in wanted:
        assert time.monotonic() < end, demanded
        time.sleep(0.02)


def test_a_remote_worker_sends_frames_only_while_somebody_watches(served: Any) -> None:
    served.add("far", external=1)
    with far_worker(served) as demanded:
        until(demanded, [False])
        watching = served.verbs.stream_frames("far")
        frame = next(watching)
        assert (frame.data, frame.run_id) == (b"abc", "far")
        watching.close()
        until(demanded, [False, True, False])


def test_who_watches_before_the_worker_has_said_where_it_runs_sees_it_all_the_same(served: Any) -> None:
    """Until then the daemon takes the run's files to be at hand."""
    served.add("far", external=1)
    watching = served.verbs.stream_frames("far")
    assert "shows nothing yet" in next(watching).reason
    with far_worker(served) as demanded:
        until(demanded, [True], [False, True])  # a frame that never comes would be waited for without end
        assert next(frame.data for frame in watching if frame.data) == b"abc"
        watching.close()


def test_frames_of_a_run_need_its_session(served: Any) -> None:
    served.add("far", external=1)
    served.attempts.register("far", Registration("w", Identity(1, 1, "elsewhere"), reads_files=False))
    client = served.verbs
    for given in ("", "made-up"):
        with pytest.raises(grpc.RpcError) as refused:
            metadata = credentials(client.address, given)
            list(client._stub.PublishFrames(iter([pb.Frame(run_id="far")]), metadata=metadata, timeout=180))
        assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
