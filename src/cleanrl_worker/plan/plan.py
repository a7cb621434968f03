"""The plan of a run: its algorithm's process before it is started."""

from dataclasses import dataclass
from pathlib import Path

from cleanrl_worker.plan.script_era import NO_ERA, ScriptEra


@dataclass(frozen=True)
class Plan:
    """The algorithm's process before it is started: a module or a script, its interpreter and its arguments."""

    module: str | None
    script: Path | None
    callable: str
    ours: bool
    interpreter: str
    argv: tuple[str, ...]
    num_threads: int
    """threads for OpenMP and its like; 0 leaves them alone"""
    warnings: tuple[str, ...] = ()
    era: ScriptEra = NO_ERA
    """what a script of the user's own expects of Gymnasium"""

    @property
    def name(self) -> str:
        """What is run: a script's path or a module."""
        return str(self.module if self.script is None else self.script)
