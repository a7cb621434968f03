"""What distant workers are to be told, and when they were last heard."""

from __future__ import annotations

import threading
import time


class WorkerRequests:
    """Orders by attempt (its nonce; a worker that nobody started has its run's id); their streams take them here."""

    def __init__(self) -> None:
        self._told: dict[str, list[tuple[str, float]]] = {}
        self._heard: dict[str, float] = {}
        self._newest: dict[str, object] = {}
        self._lock = threading.Lock()

    def tell(self, attempt: str, what: str, grace: float = 0.0) -> None:
        with self._lock:
            self._told.setdefault(attempt, []).append((what, grace))

    def attach(self, attempt: str) -> object:
        """A worker's stream begins; the one before it may not have noticed that it was cut, and counts no more."""
        with self._lock:
            self._newest[attempt] = stream = object()
        return stream

    def is_newest(self, attempt: str, stream: object) -> bool:
        """Whether this is the worker's present stream; none is once its attempt is over."""
        with self._lock:
            return self._newest.get(attempt) is stream

    def take(self, attempt: str, stream: object) -> list[tuple[str, float]]:
        """What the worker is to be told, for its present stream."""
        with self._lock:
            return self._told.pop(attempt, []) if self._newest.get(attempt) is stream else []

    def hear(self, attempt: str) -> None:
        """Its worker has just said something, if only that it lives."""
        with self._lock:
            self._heard[attempt] = time.monotonic()

    def silent_seconds(self, attempt: str) -> float | None:
        """Since it was last heard; None for one that this daemon has never heard."""
        with self._lock:
            heard = self._heard.get(attempt)
        return None if heard is None else time.monotonic() - heard

    def forget(self, attempt: str) -> None:
        """That attempt is over."""
        with self._lock:
            self._told.pop(attempt, None)
            self._heard.pop(attempt, None)
            self._newest.pop(attempt, None)
