"""What the view of a run knows beforehand, and the lines about several."""

import io
import time
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from mosaic.commands.run import follow
from mosaic.commands.run.follow import progress_of, sum_line
from mosaic.console import status_line
from mosaic.trainer.run import Run
from mosaic.trainer.states import State


@pytest.mark.parametrize(
    ("env_id", "threshold"),
    [("CartPole-v1", 475.0), ("Acrobot-v1", -100.0), ("LunarLander-v3", 200.0), ("Pendulum-v1", None), ("My-v0", None)],
)
def test_threshold_is_the_one_the_catalog_tells(env_id: str, threshold: float | None) -> None:
    run = Run("R", State.INIT, env_id=env_id, algo="/home/me/my_ppo.py", folder="/tmp/x")
    assert progress_of(run).reward_threshold == threshold and progress_of(run).algo == "my_ppo.py"


def test_an_evaluation_counts_episodes() -> None:
    assert progress_of(Run("R", State.INIT, mode="policy_eval", folder="/tmp/x")).unit == "episodes"


def test_several_runs_are_summed_up_in_a_line() -> None:
    runs = [
        Run("A", State.COMPLETED, total_timesteps=100, step=104),
        Run("B", State.EXECUTING, total_timesteps=100, step=50),
    ]
    assert sum_line(runs) == "1 of 2 runs have ended · 150 of 200 steps (75%)"


def test_a_followed_run_that_stands_still_is_marked_until_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PLAIN_SECONDS", 0.01)
    run = Run("R", State.EXECUTING, folder="/tmp/x", step=5, total_timesteps=10)
    since = time.time() - 75

    answers = [replace(run, stalled=True, stalled_since=since)]

    class Asked:
        def get_run(self, run_id: str) -> Any:
            return answers[-1]

    out, client, progress = io.StringIO(), Asked(), progress_of(run)
    progress.step, progress.steps_per_second, progress.status = 5, 100.0, "training"

    def until(word: str) -> None:
        end = time.monotonic() + 60
        while word not in out.getvalue():
            assert time.monotonic() < end
            time.sleep(0.01)

    with follow._noting_stalls(client, progress, Console(file=out)):  # type: ignore[arg-type]
        until("STALLED")
        line = status_line(progress)
        assert "STALLED 1:1" in line and "0 steps/s" in line and "left" not in line
        answers.append(run)
        until("moves again")
    assert "left" in status_line(progress)
