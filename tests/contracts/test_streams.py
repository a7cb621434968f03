"""Streams over gRPC: changes from a cursor, events with credits, STARVED and RESUMED."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mosaic.contract.channel import credentials
from mosaic.contract.errors import ConfigError
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.trainer.states import State


def subscribe(home: Any, requests: Iterator[pb.TelemetryRequest]) -> Any:
    client = home.verbs
    return client._stub.StreamTelemetry(requests, metadata=credentials(client.address), timeout=180)


def first(run_id: str, **fields: Any) -> pb.TelemetryRequest:
    return pb.TelemetryRequest(subscribe=pb.TelemetryRequest.Subscribe(run_id=run_id, follow=True, **fields))


class Requests:
    """An open stream of requests."""

    def __init__(self, *given: pb.TelemetryRequest) -> None:
        self._given = list(given)
        self._changed = threading.Condition()

    def put(self, request: pb.TelemetryRequest) -> None:
        with self._changed:
            self._given.append(request)
            self._changed.notify()

    def __iter__(self) -> "Requests":
        return self

    def __next__(self) -> pb.TelemetryRequest:
        with self._changed:
            self._changed.wait_for(lambda: self._given, 60)
            return self._given.pop(0)


def test_changes_are_watched_from_a_cursor(served: Any) -> None:
    served.add("a")
    served.verbs.cancel_run("a")
    watch = served.verbs.watch_runs(0)
    seen = [next(watch), next(watch)]
    assert [(c.kind, c.from_state, c.to_state) for c in seen] == [
        ("moved", None, State.INIT),
        ("moved", State.INIT, State.CANCELLED),
    ]
    again = served.verbs.watch_runs(seen[0].cursor)
    assert next(again).cursor == seen[1].cursor
    served.verbs.delete_run("a")
    gone = next(watch)
    assert (gone.kind, gone.run, gone.run_id) == ("deleted", None, "a")
    watch.close()
    again.close()


def test_a_watcher_from_now_on_sees_only_what_comes_and_numbers_that_move(served: Any) -> None:
    served.add("old")
    found: list[Any] = []

    def watch() -> None:
        for change in served.verbs.watch_runs(-1, progress=True):
            found.append(change)
            if change.kind == "progress" and change.run.step == 5:
                return

    reader = threading.Thread(target=watch, daemon=True)
    reader.start()
    end = time.monotonic() + 180
    while not found:  # until the watcher is there
        assert time.monotonic() < end
        served.add(f"early-{time.monotonic_ns()}")
        time.sleep(0.1)
    served.add("a", total_timesteps=10)
    served.execute("a")
    served.append("a", rows=({"step": 5, "charts/SPS": 3.0},))
    reader.join(180)
    assert not reader.is_alive(), found
    assert {c.run_id.partition("-")[0] for c in found} == {"early", "a"}


def test_followed_events_come_in_order_to_the_end_however_slow_the_reader(served: Any) -> None:
    served.add("a")
    served.execute("a")

    def produce() -> None:
        for batch in range(40):
            served.append("a", *(("warning", {"message": f"{batch}-{n}"}) for n in range(50)))
        served.end("a")

    producer = threading.Thread(target=produce)
    producer.start()
    seqs = []
    for event in served.verbs.follow_events("a"):
        seqs.append(event.seq)
        if len(seqs) % 100 == 0:
            time.sleep(0.02)
    producer.join()
    assert seqs == list(range(2001))


def test_a_reader_without_credit_is_passed_over_told_once_and_told_when_it_goes_on(served: Any) -> None:
    served.add("a")
    served.execute("a")
    requests = Requests(first("a", from_seq=1, credits=3))
    stream = subscribe(served, requests)
    while not served.bus.subscribers:
        time.sleep(0.02)
    slow_and_fast = threading.Thread(target=list, args=(served.verbs.follow_events("a"),))
    slow_and_fast.start()
    for number in range(10):  # seq 1 to 10
        served.append("a", ("warning", {"message": str(number)}))
    requests.put(pb.TelemetryRequest(refill=5))
    replies = []
    while not any(reply.HasField("resumed") for reply in replies):
        replies.append(next(stream))
    served.append("a", ("warning", {"message": "after"}))
    served.end("a")
    replies += stream
    told = [reply.WhichOneof("reply") for reply in replies]
    assert told.count("starved") == 1 and told.count("resumed") == 1 and told[-1] == "ended"
    starved, resumed = (next(r for r in replies if r.HasField(kind)) for kind in ("starved", "resumed"))
    assert starved.starved.seq == 4
    assert (resumed.resumed.missed_from, resumed.resumed.missed_until) == (4, 11)
    got = [event.seq for reply in replies for event in reply.batch.events]
    assert got == [1, 2, 3, 11]
    missed = [event.seq for event in served.verbs.read_events("a", 4, 11)]
    assert missed == list(range(4, 11)), "what was missed is read by cursor"
    slow_and_fast.join(120)
    assert not slow_and_fast.is_alive(), "one reader's hunger is not another's"


def test_credits_are_capped(served: Any) -> None:
    served.add("a")
    served.execute("a")
    requests = Requests(first("a", from_seq=1, credits=4_000_000_000), pb.TelemetryRequest(refill=4_000_000_000))
    stream = subscribe(served, requests)
    while not served.bus.subscribers:
        time.sleep(0.02)
    served.append("a", *(("warning", {"message": "x"}) for _ in range(500)))
    served.end("a")
    assert sum(len(reply.batch.events) for reply in stream) == 400


def test_history_waits_for_credit_and_starves_nobody(served: Any) -> None:
    served.add("a")
    served.execute("a")
    served.append("a", *(("warning", {"message": "x"}) for _ in range(300)))
    served.end("a")
    requests = Requests(first("a", credits=100))
    stream = subscribe(served, requests)
    assert sum(len(next(stream).batch.events) for _ in range(1)) == 100
    requests.put(pb.TelemetryRequest(refill=400))
    rest = list(stream)
    assert sum(len(reply.batch.events) for reply in rest) == 201 and rest[-1].HasField("ended")


def test_a_stream_that_begins_with_something_else_is_refused(served: Any) -> None:
    import grpc

    with pytest.raises(grpc.RpcError, match="first message of StreamTelemetry is subscribe"):
        list(subscribe(served, iter([pb.TelemetryRequest(refill=3)])))
    with pytest.raises(grpc.RpcError, match="is unknown"):
        list(subscribe(served, iter([first("nobody")])))


def test_streams_that_were_left_are_let_go(served: Any) -> None:
    served.add("a")
    served.execute("a")
    for _ in range(5):
        events = served.verbs.follow_events("a")
        next(events)
        events.close()
    end = time.monotonic() + 120
    while served.bus.subscribers:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_daemon_without_workers_refuses_submissions_clearly(served: Any) -> None:
    with pytest.raises(ConfigError, match="no worker is installed"):
        served.verbs.submit_run({"algo": "ppo", "env_id": "x", "total_timesteps": 1})
