"""The states of a run and the table of allowed moves."""

from __future__ import annotations

from enum import StrEnum

from mosaic.contract.errors import ConfigError, MoveError, nearest, shown


class State(StrEnum):
    """A run's state, under its name in gRPC messages."""

    INIT = "INIT"  # queued
    HANDSHAKE = "HANDSHAKE"  # its worker is being started
    READY = "READY"  # its worker has registered
    EXECUTING = "EXECUTING"  # telemetry came
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    LOST = "LOST"  # a remote worker that has fallen silent
    BROKEN = "BROKEN"  # shown for a row that cannot be read, never stored


# A worker holds resources in these.
LIVE = frozenset({State.HANDSHAKE, State.READY, State.EXECUTING, State.PAUSED, State.LOST})
ENDED = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED, State.BROKEN})
_ENDS = {State.COMPLETED, State.FAILED, State.CANCELLED, State.LOST}

MOVES: dict[State, frozenset[State]] = {
    # A queued run may end without having begun: refused, cancelled, or found to be impossible.
    State.INIT: frozenset({State.HANDSHAKE, State.FAILED, State.CANCELLED}),
    # Back to INIT: a retry, exit 75, or a start of which a daemon's crash left no trace.
    State.HANDSHAKE: frozenset({State.READY, State.INIT, *_ENDS}),
    State.READY: frozenset({State.EXECUTING, State.INIT, *_ENDS}),
    State.EXECUTING: frozenset({State.PAUSED, State.INIT, *_ENDS}),
    State.PAUSED: frozenset({State.EXECUTING, State.INIT, *_ENDS}),
    State.LOST: frozenset({State.EXECUTING, State.FAILED, State.CANCELLED, State.INIT}),
    State.COMPLETED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
    State.BROKEN: frozenset(),
}


def parse_state(name: str) -> State:
    """The state of this name, in any case; ConfigError names those there are."""
    try:
        return State(name.upper())
    except ValueError:
        names = [state.value for state in State]
        raise ConfigError(
            f"there is no state {shown(name)}{nearest(name, names)}; the states are {', '.join(names)}"
        ) from None


def check_move(run_id: str, present: State, to: State) -> None:
    """Refuse a move that is not in the table."""
    if to not in MOVES[present]:
        allowed = ", ".join(sorted(MOVES[present])) or "nothing: it has ended"
        raise MoveError(f"run {run_id} is {present} and cannot become {to}; allowed: {allowed}")
