"""`env.seed(n)`, from the time before `reset` accepted the seed."""

from __future__ import annotations

from typing import Any, List, Optional


def seed(env: Any, seed: Optional[int] = None) -> List[Optional[int]]:
    """Seed the environment's next reset, unless that reset receives a seed."""
    base = env.unwrapped
    reset = type(base).reset

    def reset_seeded(*, seed: Optional[int] = None, options: Any = None) -> Any:
        base.__dict__.pop("reset", None)
        return reset(base, seed=first if seed is None else seed, options=options)

    first = seed
    base.reset = reset_seeded
    return [seed]
