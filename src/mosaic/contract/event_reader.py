"""Events as their readers accept them: the envelope, and every field of the payload that a reader uses."""

from __future__ import annotations

from mosaic.contract.errors import EventError
from mosaic.contract.events import Event, decode
from mosaic.contract.fields import EVENT, EVENT_PAYLOADS
from mosaic.contract.kinds import DEPTH, FieldError, Table, bounded

_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def decoded(line: bytes) -> Event | None:
    """Return the event of a line, None if it is not one."""
    try:
        return checked(line)
    except (EventError, FieldError):
        return None


def checked(line: bytes) -> Event:
    """Return the event of a line; raise EventError or FieldError with the field, its value and its range."""
    event = decode(line)
    EVENT.check_fields({"seq": event.seq, "timestamp": event.timestamp}, event.event)
    if _may_be_deep(line):
        bounded(event.payload, event.event, wide=True)
    table = EVENT_PAYLOADS.get(event.event)
    if isinstance(table, Table):
        table.check_fields(event.payload, event.event)
    elif table is not None:
        table.check(event.payload, event.event)
    return event


def _may_be_deep(line: bytes) -> bool:
    """Return True unless the brackets alone show that the line is not nested too deep.

    Inspecting every value of a batch of steps would take forty times as long as decoding it.
    """
    left = line.translate(None, _NO_BRACKETS)
    for _ in range(DEPTH):
        if not left:
            return False
        left = left.replace(b"[]", b"").replace(b"{}", b"")
    return True
