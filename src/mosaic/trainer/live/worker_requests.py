"""Requests for remote workers, and the time of each worker's last message."""

from __future__ import annotations

import threading
import time


class WorkerRequests:
    """Pending requests by attempt: its nonce, or the run's id for a worker that the daemon did not start."""

    def __init__(self) -> None:
        self._told: dict[str, list[tuple[str, float]]] = {}
        self._heard: dict[str, float] = {}
        self._newest: dict[str, object] = {}
        self._lock = threading.Lock()

    def tell(self, attempt: str, what: str, grace: float = 0.0) -> None:
        with self._lock:
            self._told.setdefault(attempt, []).append((what, grace))

    def attach(self, attempt: str) -> object:
        """Begin a worker's stream; it replaces the previous one, which may not have noticed that it was cut."""
        with self._lock:
            self._newest[attempt] = stream = object()
        return stream

    def is_newest(self, attempt: str, stream: object) -> bool:
        """Return True for the worker's present stream; False once its attempt is over."""
        with self._lock:
            return self._newest.get(attempt) is stream

    def take(self, attempt: str, stream: object) -> list[tuple[str, float]]:
        """Return and remove the pending requests, for the worker's present stream only."""
        with self._lock:
            return self._told.pop(attempt, []) if self._newest.get(attempt) is stream else []

    def hear(self, attempt: str) -> None:
        """Record that its worker has just sent a message or a heartbeat."""
        with self._lock:
            self._heard[attempt] = time.monotonic()

    def silent_seconds(self, attempt: str) -> float | None:
        """Return the seconds since its last message; None if this daemon has received none."""
        with self._lock:
            heard = self._heard.get(attempt)
        return None if heard is None else time.monotonic() - heard

    def forget(self, attempt: str) -> None:
        """Forget an attempt that is over."""
        with self._lock:
            self._told.pop(attempt, None)
            self._heard.pop(attempt, None)
            self._newest.pop(attempt, None)
