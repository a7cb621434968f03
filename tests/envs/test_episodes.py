"""Sums of the episodes under way: handed out once, at their end, per environment."""

import numpy as np
import pytest

from cleanrl_worker.envs.episodes import Episode, Episodes, is_due


def test_an_episode_is_handed_out_once_with_its_own_sum_and_length() -> None:
    episodes = Episodes(num_envs=2)
    never = np.array([False, False])
    assert episodes.add(np.array([1.0, 10.0]), never) == []
    assert episodes.add(np.array([2.0, 20.0]), np.array([True, False])) == [Episode(env=0, ret=3.0, length=2)]
    assert episodes.add(np.array([4.0, 40.0]), np.array([False, True])) == [Episode(env=1, ret=70.0, length=3)]
    assert episodes.add(np.array([8.0, 80.0]), np.array([True, True])) == [Episode(0, 12.0, 2), Episode(1, 80.0, 1)]
    assert episodes.add(np.array([5.0, 5.0]), never) == []


def test_a_step_that_is_known_to_end_nothing_counts_too() -> None:
    episodes = Episodes(num_envs=1)
    for _ in range(3):
        assert episodes.add(np.array([0.5]), None) == []
    assert episodes.add(np.array([0.5]), np.array([True])) == [Episode(0, 2.0, 4)]


def test_what_is_handed_out_are_plain_numbers() -> None:
    (episode,) = Episodes(num_envs=1).add(np.array([1], np.float32), np.array([True]))
    assert [type(part) for part in episode] == [int, float, int]


def test_clearing_forgets_the_episodes_under_way() -> None:
    episodes = Episodes(num_envs=2)
    episodes.add(np.array([7.0, 7.0]), None)
    episodes.clear()
    assert episodes.add(np.array([1.0, 2.0]), np.array([True, True])) == [Episode(0, 1.0, 1), Episode(1, 2.0, 1)]


def test_the_rewards_given_are_left_alone() -> None:
    episodes, rewards = Episodes(num_envs=1), np.array([1.0])
    episodes.add(rewards, None)
    episodes.add(rewards, np.array([True]))
    assert rewards.tolist() == [1.0]


@pytest.mark.parametrize("num_envs", [1, 3, 7])
def test_something_due_every_ten_steps_happens_once_per_ten_for_any_number_of_environments(num_envs: int) -> None:
    steps = range(0, 700, num_envs)
    assert sum(is_due(10, step, step + num_envs) for step in steps) == 70
    assert not is_due(0, 0, 10), "0 means never"
