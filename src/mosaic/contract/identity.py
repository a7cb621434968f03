"""The identity of a process: its pid is reused, but not in the same tick of the same boot of a machine."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

LINUX = sys.platform.startswith("linux")
# psutil's create_time has the same resolution.
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def start_ticks(pid: int, *, dead: bool = False) -> int | None:
    """Return when a process began, in ticks; None if it does not run (`dead`: accept a zombie)."""
    if pid <= 0:
        return None
    if LINUX:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return None
        # The name in brackets may contain anything; the fields after it are fixed: state is the first, start the 20th.
        fields = stat[stat.rfind(b")") + 2 :].split()
        return None if fields[0] in (b"Z", b"X") and not dead else int(fields[19])
    import psutil

    try:
        process = psutil.Process(pid)
        zombie = process.status() == psutil.STATUS_ZOMBIE
        return None if zombie and not dead else int(process.create_time() * TICKS_PER_SECOND)
    except psutil.Error:
        return None


@cache
def boot_id() -> str:
    """Return an id that changes when the machine restarts."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        import psutil

        return f"boot-{psutil.boot_time():.0f}"


def own_identity() -> dict[str, Any]:
    """Return the fields of a card that identify this process."""
    pid = os.getpid()
    return {"pid": pid, "start_ticks": start_ticks(pid) or 0, "boot_id": boot_id()}


def is_running(pid: int, ticks: int, boot: str) -> bool:
    """Return True if exactly this process still runs, on this machine, since its last boot."""
    return boot == boot_id() and start_ticks(pid) == ticks
