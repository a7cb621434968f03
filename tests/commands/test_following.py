"""What the view of a run knows beforehand, and the lines about several."""

import pytest

from mosaic.commands.following import progress_of, sum_line
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
