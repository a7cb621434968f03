import math

from mosaic.contract.returns import RunReturn


def test_the_logged_mean_is_the_return_whatever_single_episodes_were() -> None:
    run = RunReturn()
    for _ in range(30):
        run.add_episode(9.0)
    assert (run.value, run.best) == (9.0, 9.0)
    run.add_mean(5.0)
    run.add_mean(7.0)
    run.add_mean(6.0)
    run.add_episode(100.0)
    assert (run.value, run.best, run.last, run.episodes) == (6.0, 7.0, 100.0, 31)


def test_fewer_than_twenty_episodes_choose_no_best() -> None:
    run = RunReturn()
    for _ in range(19):
        run.add_episode(1.0)
    run.add_mean(50.0)
    assert (run.value, run.best) == (50.0, None)
    run.add_episode(1.0)
    run.add_mean(3.0)
    assert run.best == 3.0
    run.add_mean(4.0, episodes=5)  # a batch of an evaluation
    assert (run.value, run.best) == (4.0, 3.0)


def test_returns_of_another_environment_choose_the_best_anew() -> None:
    run = RunReturn()
    for _ in range(20):
        run.add_episode(8.0)
    run.restart()
    assert (run.value, run.best, run.episodes) == (None, None, 20)
    run.add_episode(1.0)
    assert (run.value, run.best) == (1.0, None)


def test_a_mean_of_nan_is_never_the_best() -> None:
    run = RunReturn()
    for _ in range(20):
        run.add_episode(8.0)
    run.add_mean(math.nan)
    assert math.isnan(run.value or 0.0) and run.best is None
