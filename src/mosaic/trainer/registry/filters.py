"""The filters of a list of runs, as an SQL condition."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mosaic.trainer.registry.rows import NAMELESS
from mosaic.trainer.states import State, parse_state


def where_runs(
    states: Sequence[State | str], equal: Mapping[str, str], text: str, group: str, broken: Sequence[int]
) -> tuple[str, list[Any]]:
    """Return a condition on `runs` and its values; `broken` are the rows whose stored state is ignored."""
    clauses: list[str] = ["deleting IS NOT 1"]
    values: list[Any] = []
    if states:
        wanted = [parse_state(state) for state in states]
        is_broken = "id IN (SELECT value FROM json_each(?))"
        either = f"OR {is_broken}" if State.BROKEN in wanted else f"AND NOT {is_broken}"
        clauses.append(f"(state IN ({', '.join('?' * len(wanted))}) {either})")
        values += [*wanted, json.dumps(broken)]
    for name, value in equal.items():
        if value:
            clauses.append(f"{name} = ?")
            values.append(value)
    if group:
        # A range can use an index: "0" is the character after "/".
        clauses.append('("group" = ? OR ("group" >= ? AND "group" < ?))')
        values += [group, f"{group}/", f"{group}0"]
    if text:
        escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        columns = ("run_id", "run_name", "algo", "env_id", "agent_id", "worker_id", '"group"')
        like = [f"{name} LIKE ? ESCAPE '\\'" for name in columns]
        clauses.append(f"({' OR '.join(like)} OR '{NAMELESS}' || id = ?)")
        values += [*[f"%{escaped}%"] * len(columns), text]
    return " AND ".join(clauses), values
