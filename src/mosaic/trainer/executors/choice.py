"""The executors of one daemon: those available, the default, and the reasons why others are unavailable."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mosaic.trainer.executors.contract import Executor
from mosaic.trainer.executors.local import LocalExecutor


class Executors:
    """Executors by name; always includes the daemon's own machine."""

    def __init__(
        self,
        others: Mapping[str, Executor] | None = None,
        *,
        default: str = "local",
        problems: Mapping[str, str] | None = None,
        local: LocalExecutor | None = None,
    ) -> None:
        self._found: dict[str, Executor] = {"local": local or LocalExecutor(), **(others or {})}
        self._problems = dict(problems or {})
        self.default = default

    def of(self, name: str) -> Executor:
        """Return the executor of this name; the local one, which does not know the run, if it is gone."""
        return self._found.get(name) or self._found["local"]

    def close(self, busy: Collection[str]) -> None:
        """Close, at the daemon's end, the executors without live runs."""
        for name, executor in self._found.items():
            if name not in busy:
                executor.close()

    def problem(self, name: str) -> str:
        """Return why runs cannot use an executor, "" if they can."""
        if name in self._found:
            return ""
        return self._problems.get(name) or f"this daemon has no executor {name!r}; it has {', '.join(self._found)}"
