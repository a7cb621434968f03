"""The three long-lived streams: changes of runs, a run's events with credits, a remote worker's telemetry."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from mosaic.contract.errors import ConfigError, MosaicError, StorageError
from mosaic.contract.happenings import Happenings
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.trainer.executors.node_orders import write_exit
from mosaic.trainer.live.bus import CREDITS, MOST_CREDITS, Bus, Ended, Resumed, Starved, Subscription
from mosaic.trainer.live.frames import FrameHub
from mosaic.trainer.live.remote_workers import PUBLISHER_CREDITS, FileMirror, received
from mosaic.trainer.live.worker_requests import WorkerRequests
from mosaic.trainer.registry.registry import Registry
from mosaic.trainer.rpc import messages
from mosaic.trainer.run import Change, Run
from mosaic.trainer.scheduling.attempts import Attempts
from mosaic.trainer.states import ENDED, LIVE, State

# An idle stream checks after this time whether its reader is still connected.
IDLE_SECONDS = 1.0
PROGRESS_SECONDS = 1.0
SESSION_SECONDS = 5.0
BATCH_EVENTS = 100
BATCH_BYTES = 1 << 20


def watch_runs(
    registry: Registry, cursor: int, progress: bool, run_id: str, active: Callable[[], bool]
) -> Iterator[pb.RunChange]:
    """Yield changes after the cursor, then as they occur; with `progress` also runs with changed numbers."""
    if cursor < 0:
        cursor = registry.last_cursor()
    shown: dict[str, tuple[Any, ...]] = {}
    looked = 0.0
    while active():
        found = registry.changes(cursor, run_id=run_id)
        for change in found:
            cursor = change.cursor
            yield messages.change_to_pb(change)
        if progress and time.monotonic() - looked >= PROGRESS_SECONDS:
            looked = time.monotonic()
            for run in _moved(registry, run_id, shown):
                changed = Change(cursor, "progress", run.run_id, run.state, run.state, "", registry.clock(), run)
                yield messages.change_to_pb(changed)
        if not found:
            with registry.changed:
                if registry.last_cursor() <= cursor or run_id:
                    registry.changed.wait(IDLE_SECONDS)


def _moved(registry: Registry, run_id: str, shown: dict[str, tuple[Any, ...]]) -> list[Run]:
    live = [registry.get_run(run_id)] if run_id else registry.list_runs(states=sorted(LIVE), page_size=1000).runs
    found = []
    for run in live:
        numbers = (run.step, run.episodes, run.last_return, run.sps, run.stalled)
        if shown.get(run.run_id) != numbers:
            shown[run.run_id] = numbers
            found.append(run)
    return found


class EventStream:
    """One reader of a run's events: first from the file at its own pace, then live, with credits."""

    def __init__(self, registry: Registry, bus: Bus, happenings: Happenings, active: Callable[[], bool]) -> None:
        self._registry, self._bus, self._happenings, self._active = registry, bus, happenings, active

    def replies(self, requests: Iterator[pb.TelemetryRequest]) -> Iterator[pb.TelemetryReply]:
        first = next(requests, None)
        if first is None or first.WhichOneof("request") != "subscribe":
            raise ConfigError("the first message of StreamTelemetry is subscribe")
        asked = first.subscribe
        run = self._registry.get_run(asked.run_id)
        subscription = Subscription(run.run_id, asked.credits or CREDITS)
        threading.Thread(target=_refill, args=(requests, subscription), name="refills", daemon=True).start()
        until = asked.until_seq if asked.HasField("until_seq") else None
        self._happenings.note("runbus.subscribed", run.run_id, from_seq=asked.from_seq)
        try:
            yield from self._history_then_live(subscription, asked.from_seq, until, asked.follow)
        finally:
            subscription.close()
            self._bus.unsubscribe(subscription)
            self._happenings.note("runbus.unsubscribed", run.run_id)

    def _history_then_live(
        self, subscription: Subscription, position: int, until: int | None, follow: bool
    ) -> Iterator[pb.TelemetryReply]:
        while self._active():
            for batch in self._history(subscription, position, until):
                position = batch[-1].seq + 1
                yield _batch(batch)
            run = self._registry.get_run(subscription.run_id)
            if (until is not None and position >= until) or (position >= run.next_seq and not follow):
                return
            if position < run.next_seq:
                if not self._active() or subscription.closed:
                    return
                # Behind dropped lines, or at the end if the file was removed.
                position = next((event.seq for event in self._registry.read_events(run.run_id, position)), run.next_seq)
                continue
            if run.state in ENDED:
                yield pb.TelemetryReply(ended=pb.TelemetryReply.Ended(state=messages.state_to_pb(run.state)))
                return
            if self._bus.subscribe(subscription, position):
                break
        yield from self._live(subscription, until)

    def _history(self, subscription: Subscription, position: int, until: int | None) -> Iterator[list[pb.Event]]:
        batch: list[pb.Event] = []
        size = allowed = 0
        for event in self._registry.read_events(subscription.run_id, position, until):
            while not allowed:
                if batch:
                    yield batch
                    batch, size = [], 0
                allowed = subscription.spend(BATCH_EVENTS, IDLE_SECONDS)
                if not allowed and (not self._active() or subscription.closed):
                    return
            allowed -= 1
            message = messages.event_to_pb(event)
            batch.append(message)
            size += message.ByteSize()
            if size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if allowed:
            subscription.refill(allowed)
        if batch:
            yield batch

    def _live(self, subscription: Subscription, until: int | None) -> Iterator[pb.TelemetryReply]:
        reply = pb.TelemetryReply
        while self._active():
            items = subscription.take(IDLE_SECONDS)
            batch: list[pb.Event] = []
            for item in items:
                if isinstance(item, Starved | Resumed | Ended) and batch:
                    yield _batch(batch)
                    batch = []
                if isinstance(item, Starved):
                    yield reply(starved=reply.Starved(seq=item.seq))
                elif isinstance(item, Resumed):
                    self._happenings.note("telemetry.resumed", subscription.run_id)
                    yield reply(resumed=reply.Resumed(missed_from=item.missed_from, missed_until=item.missed_until))
                elif isinstance(item, Ended):
                    yield reply(ended=reply.Ended(state=messages.state_to_pb(State(item.state))))
                    return
                elif until is not None and item.seq >= until:
                    if batch:
                        yield _batch(batch)
                    return
                else:
                    batch.append(messages.event_to_pb(item))
            if batch:
                yield _batch(batch)
            if not items:
                self._end_if_over(subscription)

    def _end_if_over(self, subscription: Subscription) -> None:
        """End the subscription of a run that ended just as this stream went live."""
        run = self._registry.get_run(subscription.run_id)
        if run.state in ENDED and run.next_seq <= subscription.next_seq:
            subscription.end(run.state)


def _refill(requests: Iterator[pb.TelemetryRequest], subscription: Subscription) -> None:
    try:
        for request in requests:
            if request.WhichOneof("request") == "refill":
                subscription.refill(min(request.refill, MOST_CREDITS))
    except grpc.RpcError:
        subscription.close()  # the reader has disconnected


def _batch(events: list[pb.Event]) -> pb.TelemetryReply:
    return pb.TelemetryReply(batch=pb.TelemetryReply.Batch(events=events))


class PublisherStream:
    """A remote worker's stream: its data is stored and acknowledged, and requests are sent back."""

    def __init__(
        self, registry: Registry, attempts: Attempts, controls: WorkerRequests, session: str, active: Callable[[], bool]
    ) -> None:
        self._registry, self._attempts, self._controls = registry, attempts, controls
        self._session, self._active = session, active
        self._out: queue.SimpleQueue[pb.Control | MosaicError | None] = queue.SimpleQueue()

    def controls(self, batches: Iterator[pb.TelemetryBatch]) -> Iterator[pb.Control]:
        first = next(batches, None)
        if first is None or not first.run_id:
            raise ConfigError("the first message of PublishTelemetry names its run_id")
        run_id = first.run_id
        row = self._attempts.check_session(run_id, self._session)
        if row["reads_files"] and row["executor"] == "local":
            raise ConfigError(f"run {run_id} lies on this machine; the daemon reads its files itself")
        attempt = row["nonce"] or run_id
        stream = self._controls.attach(attempt)
        # If a node writes the files that are read here, its stream carries only requests, and nothing to store.
        mirror = None if row["reads_files"] else FileMirror(self._registry, run_id)
        yield _stored(mirror)
        yield pb.Control(credits=pb.Control.Credits(credits=PUBLISHER_CREDITS))
        received = _after(first, batches)
        thread = threading.Thread(target=self._receive, args=(run_id, attempt, stream, received, mirror), daemon=True)
        thread.start()
        while self._active():
            for what, grace in self._controls.take(attempt, stream):
                yield _order(what, grace)
            try:
                item = self._out.get(timeout=0.25)
            except queue.Empty:
                if not self._controls.is_newest(attempt, stream):
                    return  # a node that vanished silently would keep its stream open for hours
                continue
            if item is None:
                return
            if isinstance(item, MosaicError):
                raise item
            yield item

    def _receive(
        self,
        run_id: str,
        attempt: str,
        stream: object,
        batches: Iterator[pb.TelemetryBatch],
        mirror: FileMirror | None,
    ) -> None:
        starved = False
        try:
            for batch in batches:
                self._attempts.check_session(run_id, self._session)
                if not self._controls.is_newest(attempt, stream):
                    break  # the present stream has sent or will send the same
                self._controls.hear(attempt)
                if batch.HasField("exit"):
                    write_exit(self._registry.paths(run_id), attempt, batch.exit.code, batch.exit.signal)
                    self._out.put(_stored(mirror, exit=True))
                    continue
                if mirror is None:
                    continue
                try:
                    events = [received(event, run_id) for event in batch.events]
                    mirror.store(events, batch.metrics_offset, batch.metrics)
                except StorageError:
                    # The worker keeps everything in its own file and resends from the last stored position.
                    if not starved:
                        self._out.put(pb.Control(starved=pb.Control.Starved()))
                    starved = True
                    time.sleep(IDLE_SECONDS)
                if starved and mirror.next_seq > (batch.events[-1].seq if batch.events else -1):
                    starved = False
                    self._out.put(pb.Control(resumed=pb.Control.Resumed()))
                self._out.put(_stored(mirror))
                self._out.put(pb.Control(credits=pb.Control.Credits(credits=len(batch.events))))
            self._out.put(None)
        except MosaicError as error:
            self._out.put(error)
        except grpc.RpcError:
            self._out.put(None)  # the worker has exited, or its stream was cut


def frame_controls(
    attempts: Attempts, hub: FrameHub, session: str, frames: Iterator[pb.Frame], active: Callable[[], bool]
) -> Iterator[pb.Control]:
    """Forward a remote worker's frames to the hub; notify the worker when viewing starts or stops."""
    first = next(frames, None)
    if first is None or not first.run_id:
        raise ConfigError("the first message of PublishFrames names its run_id")
    run_id = first.run_id
    attempts.check_session(run_id, session)

    def receive() -> None:
        try:
            for frame in frames:
                if frame.data or frame.reason:
                    frame.run_id = run_id
                    hub.put(run_id, frame)
        except grpc.RpcError:
            pass  # the worker has exited

    threading.Thread(target=receive, name="frames", daemon=True).start()
    told: bool | None = None
    looked = time.monotonic()
    while active():
        if time.monotonic() - looked > SESSION_SECONDS:  # a node that vanished silently ends no stream
            attempts.check_session(run_id, session)
            looked = time.monotonic()
        if (wanted := hub.wanted(run_id)) != told:
            told = wanted
            yield pb.Control(demand=pb.Control.Demand(frames=wanted))
        time.sleep(IDLE_SECONDS / 4)


def _after(first: pb.TelemetryBatch, rest: Iterator[pb.TelemetryBatch]) -> Iterator[pb.TelemetryBatch]:
    yield first
    yield from rest


def _stored(mirror: FileMirror | None, *, exit: bool = False) -> pb.Control:
    next_seq, offset = (0, 0) if mirror is None else (mirror.next_seq, mirror.metrics_offset)
    return pb.Control(stored=pb.Control.Stored(next_seq=next_seq, metrics_offset=offset, exit=exit))


def _order(what: str, grace: float) -> pb.Control:
    if what == "cancel":
        return pb.Control(cancel=pb.Control.Cancel(grace_seconds=grace))
    return pb.Control(pause=pb.Control.Pause()) if what == "pause" else pb.Control(go_on=pb.Control.Continue())
