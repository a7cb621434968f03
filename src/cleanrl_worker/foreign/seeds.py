"""`env.seed(n)`, as environments had it before their `reset` took the seed."""

from __future__ import annotations

from typing import Any, List, Optional


def seed(env: Any, seed: Optional[int] = None) -> List[Optional[int]]:
    """Have the environment's next reset seed it, unless that reset is given a seed itself."""
    base = env.unwrapped
    reset = type(base).reset

    def reset_seeded(*, seed: Optional[int] = None, options: Any = None) -> Any:
        base.__dict__.pop("reset", None)
        return reset(base, seed=first if seed is None else seed, options=options)

    first = seed
    base.reset = reset_seeded
    return [seed]
