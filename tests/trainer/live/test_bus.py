"""The bus: credits, starvation, order; no subscriber holds more than it has credits for."""

import threading

from hypothesis import example, given, settings
from hypothesis import strategies as st

from mosaic.contract.events import Event
from mosaic.trainer.live.bus import MOST_CREDITS, Bus, Ended, Resumed, Starved, Subscription


def events(first: int, count: int) -> list[Event]:
    return [Event("warning", "a", seq, 0.0, {}) for seq in range(first, first + count)]


def subscribed(bus: Bus, credits: int = 10, next_seq: int = 0) -> Subscription:
    one = Subscription("a", credits)
    assert bus.subscribe(one, next_seq)
    return one


def test_events_go_to_every_subscriber_of_their_run() -> None:
    bus = Bus()
    first, second, other = subscribed(bus), subscribed(bus), Subscription("b", 10)
    bus.subscribe(other, 0)
    bus.publish("a", events(0, 3))
    assert [event.seq for event in first.take(0)] == [0, 1, 2] == [event.seq for event in second.take(0)]
    assert other.take(0) == [] and bus.subscribers == 3


def test_one_starved_and_one_resumed_however_many_are_missed() -> None:
    bus = Bus()
    one = subscribed(bus, credits=2)
    assert bus.publish("a", events(0, 5)) == 1 and bus.publish("a", events(5, 5)) == 0
    assert one.take(0)[2:] == [Starved(2)]
    one.refill(3)
    bus.publish("a", events(10, 2))
    found = one.take(0)
    assert found[0] == Resumed(2, 10) and [event.seq for event in found[1:]] == [10, 11]


def test_a_reader_without_room_is_starved_until_it_has_read_although_it_has_credit() -> None:
    bus = Bus()
    one = subscribed(bus, credits=100)
    sizes = [900_000] * 5
    assert bus.publish("a", events(0, 5), sizes) == 1
    found = one.take(0)
    assert [event.seq for event in found[:-1]] == [0, 1] and found[-1] == Starved(2)
    bus.publish("a", events(5, 1), sizes[:1])
    found = one.take(0)
    assert found[0] == Resumed(2, 5) and found[1].seq == 5


def test_the_end_names_what_was_missed_before() -> None:
    bus = Bus()
    one = subscribed(bus, credits=1)
    bus.publish("a", events(0, 3))
    bus.end("a", "COMPLETED")
    assert one.take(0)[1:] == [Starved(1), Resumed(1, 3), Ended("COMPLETED")]
    assert bus.subscribers == 0


def test_a_subscriber_that_read_the_file_further_gets_nothing_twice() -> None:
    bus = Bus()
    bus.publish("a", events(0, 4))
    late = Subscription("a", 10)
    assert not bus.subscribe(late, 2), "the bus is further: read more from the file"
    assert bus.subscribe(late, 6)
    bus.publish("a", events(4, 4))
    assert [event.seq for event in late.take(0)] == [6, 7]


@settings(max_examples=50)
@example([("refill", 313), ("publish", 295), ("refill", 182), ("publish", 206), ("refill", 301), ("publish", 301)])
@given(st.lists(st.tuples(st.sampled_from(["publish", "refill", "take"]), st.integers(0, 600)), max_size=30))
def test_received_and_missed_together_are_everything_in_order(actions: list[tuple[str, int]]) -> None:
    bus = Bus()
    one = subscribed(bus, credits=5)
    sent, held, got = 0, 0, []
    for action, number in actions:
        if action == "publish":
            bus.publish("a", events(sent, number))
            sent += number
        elif action == "refill":
            one.refill(number)
        else:
            got += one.take(0)
        held = sum(isinstance(item, Event) for item in one._items)
        assert held <= MOST_CREDITS, "who refills without reading makes nothing grow"
    bus.end("a", "FAILED")
    got += one.take(0)
    position = 0
    for item in got:
        if isinstance(item, Event):
            assert item.seq == position
            position += 1
        elif isinstance(item, Resumed):
            assert item.missed_from == position
            position = item.missed_until
    assert position == sent and isinstance(got[-1], Ended)


def test_a_producer_never_waits_for_a_subscriber() -> None:
    bus = Bus()
    subscribed(bus, credits=0)
    done = threading.Event()

    def produce() -> None:
        for number in range(1000):
            bus.publish("a", events(number * 10, 10))
        done.set()

    threading.Thread(target=produce, daemon=True).start()
    assert done.wait(180)
