"""The executors of one daemon: which there are, which is the default, and why another is not there."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mosaic.trainer.executors.contract import Executor
from mosaic.trainer.executors.local import LocalExecutor


class Executors:
    """By name; the daemon's own machine is always among them."""

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
        """The executor of this name; of a run whose executor is gone, one that knows nothing."""
        return self._found.get(name) or self._found["local"]

    def close(self, busy: Collection[str]) -> None:
        """The daemon ends: let go of what no live run of these executors needs."""
        for name, executor in self._found.items():
            if name not in busy:
                executor.close()

    def problem(self, name: str) -> str:
        """Why runs cannot go there, "" where they can."""
        if name in self._found:
            return ""
        return self._problems.get(name) or f"this daemon has no executor {name!r}; it has {', '.join(self._found)}"
