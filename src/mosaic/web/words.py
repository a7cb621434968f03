"""Numbers and times in readable form."""

from __future__ import annotations

import math
import time


def age(then: float, now: float | None = None) -> str:
    """Return the age: `12 s ago`, `3 min ago`, `2 h ago`, `5 days ago`; a dash for never."""
    if then <= 0:
        return "–"
    return f"{duration(max(0.0, (time.time() if now is None else now) - then))} ago"


def duration(seconds: float | None) -> str:
    """Format a duration: `42 s`, `3 min`, `2 h 5 min`, `4 days`."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 86_400:
        hours, rest = divmod(round(seconds / 60), 60)
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    days = round(seconds / 86_400)
    return f"{days} day" if days == 1 else f"{days} days"


def stall_mark(since: float, now: float | None = None) -> str:
    """Return the mark of a run whose step has not grown since then; "" where `since` is 0."""
    return f"STALLED {duration(max(0.0, (time.time() if now is None else now) - since))}" if since else ""


def number(value: float | None, digits: int = 4) -> str:
    """Format a number with its significant digits: `1,234,567`, `21.5`, `3.2e-05`; a dash for none."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def size(count: float) -> str:
    """Format a byte count: `512 B`, `3.4 kB`, `1.2 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def moment(then: float) -> str:
    """Return date and time of day on this machine; a dash for never."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(then)) if then > 0 else "–"


def short_id(run_id: str) -> str:
    """Return the end of a run id, which differs between runs of one day; user-chosen ids stay complete."""
    return f"…{run_id[-8:]}" if len(run_id) == 26 and run_id.isalnum() else run_id
