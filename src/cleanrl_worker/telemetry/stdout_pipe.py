"""A shell's stdout, whose reader may be slow, stuck or gone."""

from __future__ import annotations

import collections
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TextIO


class Outlet:
    """A writer with its own thread: a reader that stops reading must not block the shell.

    Past the limit the newest lines are dropped; the gap in `seq` shows it, and the log has all lines.
    """

    LIMIT = 20_000
    PATIENCE_SECONDS = 5.0

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._lines: collections.deque[bytes] = collections.deque()
        self._changed = threading.Condition()
        self._closing = stream is None  # a process may be started without a stdout
        self._thread: threading.Thread | None = None

    def put(self, lines: Sequence[bytes]) -> None:
        with self._changed:
            if self._closing or len(self._lines) >= self.LIMIT:
                return
            self._lines.extend(lines[: self.LIMIT - len(self._lines)])
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="stdout", daemon=True)
            self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(self.PATIENCE_SECONDS)

    def _work(self) -> None:
        write = self._writer()
        while True:
            with self._changed:
                while not self._lines and not self._closing:
                    self._changed.wait()
                if not self._lines:
                    return
                data = b"".join(self._lines)
                self._lines.clear()
            try:
                write(data)
            except (OSError, ValueError):  # the reader is gone, or the stream was closed
                self._silence()
                return

    def _writer(self) -> Callable[[bytes], None]:
        stream = self._stream
        assert stream is not None

        def write_text(data: bytes) -> None:
            stream.write(data.decode())
            stream.flush()

        # Bypass the stream's buffer: a thread stuck in its lock would make the interpreter abort at exit.
        def write(data: bytes) -> None:
            while data:
                data = data[os.write(descriptor, data) :]

        try:
            descriptor = stream.fileno()
        except (OSError, ValueError):  # not backed by a file
            return write_text
        stream.flush()
        return write

    def _silence(self) -> None:
        """Redirect later prints of this process to /dev/null instead of a broken pipe."""
        with self._changed:
            self._closing = True
            self._lines.clear()
        if self._stream is sys.stdout and sys.stdout is sys.__stdout__:
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 1)
