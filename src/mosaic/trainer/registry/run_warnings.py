"""The warnings of a run: each and all of them within a cap, and only one for each kind of recurring problem."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mosaic.contract.fields import WARNING_BYTES, WARNINGS_BYTES
from mosaic.contract.lines import EVENT_DROPPED, ROW_DROPPED

# The prefixes of warnings that a run gets once, however often their cause recurs; the contract has two more.
SERIES_DROPPED = "a metric was dropped"
ONCE = (ROW_DROPPED, EVENT_DROPPED, SERIES_DROPPED)
MOST = 50
ONCE_BYTES = 1_000  # they always fit
_MORE = "further warnings were dropped; see logs/worker.jsonl"


def added(kept: Sequence[str], messages: Iterable[str]) -> list[str]:
    """Return the warnings with the new ones among the messages, within the caps of a run."""
    found = list(kept)
    for message in messages:
        text = cut(message)
        once = next((start for start in ONCE if text.startswith(start)), None)
        if not text or text in found or (once and any(other.startswith(once) for other in found)):
            continue
        room = WARNINGS_BYTES - sum(map(_size, found)) - _size(_MORE) - (not once) * len(ONCE) * ONCE_BYTES
        text = cut(text, ONCE_BYTES) if once else text
        if once or (len(found) < MOST and _size(text) <= room):
            found.append(text)
        elif _MORE not in found:
            found.append(_MORE)
    return found


def bounded(kept: Sequence[str], most_bytes: int = WARNINGS_BYTES) -> list[str]:
    """Return the newest warnings that fit into `most_bytes`: a row of an earlier version may hold any number."""
    found: list[str] = []
    for text in map(cut, reversed(kept)):
        most_bytes -= _size(text)
        if most_bytes < 0:
            break
        found.insert(0, text)
    return found


def cut(text: str, most_bytes: int = WARNING_BYTES) -> str:
    """Return the text, truncated if it is too long, with its size appended."""
    size = len(text) if text.isascii() else _size(text)
    if size <= most_bytes:
        return text
    ending = f"… ({size:,} bytes)"
    return text[:most_bytes].encode("utf-8", "replace")[: most_bytes - _size(ending)].decode(errors="ignore") + ending


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
