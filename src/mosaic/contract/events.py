"""Events as their readers accept them: the envelope, and every field of the payload that somebody acts on."""

from __future__ import annotations

from mosaic.contract.fields import EVENT, EVENT_PAYLOADS
from mosaic.contract.kinds import DEPTH, FieldError, Table, bounded
from mosaic.wire.errors import EventError
from mosaic.wire.events import Event, decode


def decoded(line: bytes) -> Event | None:
    """Return the event of a line, None where it is not one."""
    try:
        return checked(line)
    except (EventError, FieldError):
        return None


def checked(line: bytes) -> Event:
    """Return the event of a line; EventError or FieldError names the field, its value and its range."""
    event = decode(line)
    EVENT.check_fields({"seq": event.seq, "timestamp": event.timestamp}, event.event)
    # To look into every value takes longer than all the rest: only a line with many brackets can be deep.
    if line.count(b"[") + line.count(b"{") > DEPTH:
        bounded(event.payload, event.event, wide=True)
    table = EVENT_PAYLOADS.get(event.event)
    if isinstance(table, Table):
        table.check_fields(event.payload, event.event)
    elif table is not None:
        table.check(event.payload, event.event)
    return event
