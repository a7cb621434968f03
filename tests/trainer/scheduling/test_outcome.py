"""The end of an attempt, judged from its row alone."""

import json
from typing import Any

from mosaic.trainer.executors.contract import Exit
from mosaic.trainer.scheduling.outcome import judge
from mosaic.trainer.states import State


def ended(asked: str = "", **payload: Any) -> tuple[State, str]:
    row = {
        **{"mode": "policy_eval", "asked": asked, "asked_reason": "cancelled", "reads_files": 1, "external": 0},
        **{"pid": 7, "state": "EXECUTING", "restarts": 0, "max_restarts": 0, "events_seq": 3},
        "closing": json.dumps({"event": "run_completed", "payload": payload}),
    }
    end = judge(row, None, Exit(0), lambda: "")
    return end.state, end.reason


def test_a_repeated_evaluation_that_is_cancelled_is_cancelled() -> None:
    assert ended("cancel", stopped_by="SIGTERM") == (State.CANCELLED, "cancelled")


def test_a_run_that_completes_while_it_is_cancelled_is_completed() -> None:
    assert ended("cancel") == (State.COMPLETED, "")
    assert ended("", stopped_by="SIGTERM") == (State.COMPLETED, "")
