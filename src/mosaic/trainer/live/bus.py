"""Fan-out of events to subscribers with credits: one that does not refill misses events, and slows down no other."""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from mosaic.contract.events import Event

CREDITS = 200
MOST_CREDITS = 400
# For the lines of events that wait for one reader; one event may have a megabyte.
MOST_HELD_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Starved:
    """The subscriber has no credit; events from `seq` on are skipped."""

    seq: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The subscriber has credit again; it missed missed_from <= seq < missed_until."""

    missed_from: int
    missed_until: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The run has ended; nothing follows."""

    state: str


Item = Event | Starved | Resumed | Ended


class Subscription:
    """One reader of one run. Its credits plus its waiting events never exceed MOST_CREDITS.

    A reader that refills without reading gets nothing more; one that refills what it has read never reaches that bound.
    """

    def __init__(self, run_id: str, credits: int) -> None:
        self.run_id = run_id
        self.next_seq = 0
        self._credits = min(MOST_CREDITS, credits)
        self._items: collections.deque[Item] = collections.deque()
        self._held = self._held_bytes = 0
        self._changed = threading.Condition()
        self._missed_from: int | None = None
        self._missed_until = 0
        self._closed = False

    def refill(self, credits: int) -> None:
        """Add credits for this many more events, up to the cap."""
        with self._changed:
            self._credits = min(MOST_CREDITS - self._held, self._credits + max(0, credits))
            if self._credits and self._missed_from is not None:
                self._items.append(Resumed(self._missed_from, self._missed_until))
                self._missed_from = None
            self._changed.notify_all()

    def offer(self, events: Sequence[Event], sizes: Sequence[int] = ()) -> bool:
        """Accept the events that credit and room allow; return True if the subscriber starves here. Never waits."""
        starves = False
        with self._changed:
            for event, size in zip_longest(events, sizes, fillvalue=0):
                assert isinstance(event, Event)
                if event.seq < self.next_seq:  # read from the file already
                    continue
                self.next_seq = event.seq + 1
                has_room = self._held_bytes + size <= MOST_HELD_BYTES
                if self._credits and self._missed_from is None and has_room:
                    self._credits -= 1
                    self._held += 1
                    self._held_bytes += size
                    self._items.append(event)
                    continue
                if self._missed_from is None:
                    starves = True
                    self._missed_from = event.seq
                    self._items.append(Starved(event.seq))
                self._missed_until = event.seq + 1
            self._changed.notify_all()
        return starves

    def end(self, state: str) -> None:
        """Mark the run as ended; first report the missed events."""
        with self._changed:
            if self._missed_from is not None:
                self._items.append(Resumed(self._missed_from, self._missed_until))
                self._missed_from = None
            self._items.append(Ended(state))
            self._changed.notify_all()

    def spend(self, most: int, seconds: float) -> int:
        """Use up to `most` credits for events read from the file; wait for the first. Return 0 if none arrived."""
        with self._changed:
            if not self._credits and not self._closed:
                self._changed.wait(seconds)
            spent = 0 if self._closed else min(most, self._credits)
            self._credits -= spent
            return spent

    def take(self, seconds: float) -> list[Item]:
        """Return all waiting items at once; wait for the first, at most `seconds`."""
        with self._changed:
            if not self._items and not self._closed:
                self._changed.wait(seconds)
            items = list(self._items)
            self._items.clear()
            self._held = self._held_bytes = 0
            if self._credits and self._missed_from is not None:  # it had credit, but no room
                self._items.append(Resumed(self._missed_from, self._missed_until))
                self._missed_from = None
        return items

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed


class Bus:
    """The subscriptions of each run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._next_seq: dict[str, int] = {}

    def subscribe(self, subscription: Subscription, next_seq: int) -> bool:
        """Send live events from `next_seq` on; return False if the run is already further: read its file first."""
        with self._lock:
            if self._next_seq.get(subscription.run_id, 0) > next_seq:
                return False
            subscription.next_seq = next_seq
            self._subscriptions.setdefault(subscription.run_id, []).append(subscription)
            return True

    def unsubscribe(self, subscription: Subscription) -> None:
        with self._lock:
            rest = [one for one in self._subscriptions.get(subscription.run_id, ()) if one is not subscription]
            if rest:
                self._subscriptions[subscription.run_id] = rest
            else:
                self._subscriptions.pop(subscription.run_id, None)

    def publish(self, run_id: str, events: Sequence[Event], sizes: Sequence[int] = ()) -> int:
        """Forward events that the registry has, with the sizes of their lines; return how many subscribers starve."""
        with self._lock:
            if events:
                self._next_seq[run_id] = events[-1].seq + 1
            return sum(one.offer(events, sizes) for one in self._subscriptions.get(run_id, ()))

    def end(self, run_id: str, state: str) -> None:
        """Notify the readers of a run that it has ended."""
        with self._lock:
            self._next_seq.pop(run_id, None)
            for one in self._subscriptions.pop(run_id, ()):
                one.end(state)

    @property
    def subscribers(self) -> int:
        with self._lock:
            return sum(map(len, self._subscriptions.values()))
