"""The isolation of one run: an exception in its handling is logged and shown for it, and stops no other run."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar

from mosaic.contract.errors import MoveError, TrainerError, UnknownRunError
from mosaic.contract.happenings import Happenings
from mosaic.contract.kinds import FieldError
from mosaic.trainer.registry.registry import Registry

# An error that lasts this long is shown; a shorter one (such as too many open files) is only logged.
ODD_SECONDS = 10.0

_Answer = TypeVar("_Answer")


class Border:
    """The isolation of all runs; used by the dispatcher's thread only."""

    def __init__(self, registry: Registry, happenings: Happenings, clock: Callable[[], float]) -> None:
        self._registry, self._happenings, self._clock = registry, happenings, clock
        self._since: dict[tuple[int, str], float] = {}

    def apart(self, row: sqlite3.Row, what: str, act: Callable[[sqlite3.Row], _Answer]) -> _Answer | None:
        """Call `act` for one run; return None if it raised. The registry's own errors propagate."""
        failing = (row["id"], what)
        try:
            answer = act(row)
        except (MoveError, UnknownRunError, FieldError):  # BROKEN, or deleted, since its row was read
            return None
        except TrainerError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if failing not in self._since:
                self._since[failing] = self._clock()
                self._happenings.warn("run.odd", row["run_id"], doing=what, error=text)
            if self._clock() - self._since[failing] >= ODD_SECONDS:
                self._registry.unreadable.note(row, what, f"the daemon cannot {what} it: {text}")
            return None
        if self._since.pop(failing, None) is not None:
            self._registry.unreadable.note(row, what, "")
        return answer

    def report(self) -> None:
        """Log each run that has become BROKEN, and notify its watchers."""
        for run_id, problem in self._registry.unreadable.fresh():
            self._happenings.warn("run.broken", run_id, reason=problem)
            self._registry.mark(run_id)
