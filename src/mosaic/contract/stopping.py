"""Stop signals: clusters, systemd and terminals signal all processes of a run at once, and the run must save itself."""

from __future__ import annotations

import contextlib
import os
import signal
import time

TYPE_CHECKING = False  # typing takes 6 ms to import, in which Ctrl-C would still be a traceback

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A signal to all processes arrives again from the parent process, which received the same one and forwards it.
TOGETHER_SECONDS = 3.0


class Stops:
    """The stop signals of a process: the first counts, and later ones; all within a moment of the first are one."""

    def __init__(self) -> None:
        self._first: float | None = None
        self.again = False
        """signalled again, later: the sender does not want to wait"""

    def told(self) -> bool:
        """Record a stop signal; return True if it counts. Safe in a signal handler."""
        now = time.monotonic()
        if self._first is None:
            self._first = now
            return True
        self.again = self.again or now - self._first > TOGETHER_SECONDS
        return self.again

    def seconds(self) -> float:
        """Return the seconds since the first signal, 0.0 if none was received."""
        return 0.0 if self._first is None else time.monotonic() - self._first


def end_at_once(code: int, *numbers: signal.Signals) -> dict[signal.Signals, Any]:
    """End this process with `code` at one of these signals, whatever it does; return the previous handlers.

    It is for a program's start: an exception during an import would be a traceback, or be swallowed.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os._exit(code)

    before = {}
    for number in numbers:
        with contextlib.suppress(ValueError):  # only the main thread may set handlers
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, a shell's background job
                before[number] = signal.signal(number, end)
    return before


@contextlib.contextmanager
def ending_at_once(code: int, *numbers: signal.Signals) -> Iterator[None]:
    """Apply `end_at_once` inside the context."""
    before = end_at_once(code, *numbers)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def heed_only(parent: int) -> None:
    """Ignore stop signals except SIGTERM from `parent`, in a process that a run needs while it saves.

    It is for processes of multiprocessing: their creator ends them with SIGTERM, and need not be their parent process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not hasattr(signal, "sigwaitinfo") or signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        return
    import threading

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_when_told, args=(parent,), name="stop", daemon=True).start()


def _end_when_told(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(128 + signal.SIGTERM)
