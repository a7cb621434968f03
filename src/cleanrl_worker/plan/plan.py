"""The plan of a run: its algorithm's process before the start."""

from dataclasses import dataclass
from pathlib import Path

from cleanrl_worker.plan.script_era import NO_ERA, ScriptEra


@dataclass(frozen=True)
class Plan:
    """An algorithm's process before the start: a module or script, its interpreter and its arguments."""

    module: str | None
    script: Path | None
    callable: str
    ours: bool
    interpreter: str
    argv: tuple[str, ...]
    num_threads: int
    """threads for OpenMP and similar libraries; 0 keeps their defaults"""
    warnings: tuple[str, ...] = ()
    era: ScriptEra = NO_ERA
    """the Gymnasium era that a user's script expects"""

    @property
    def name(self) -> str:
        """Return the script's path or the module's name."""
        return str(self.module if self.script is None else self.script)
