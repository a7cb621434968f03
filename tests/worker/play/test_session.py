"""Actions and spaces as a line of JSON holds them, and episodes that an evaluation played."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cleanrl_worker.envs.play import make_game, play_episode
from cleanrl_worker.play.game_view import open_scene
from cleanrl_worker.play.session import CommandError, Request, Session, allowed_actions, describe_actions, read_action

BOX = gym.spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, np.inf], np.float32))
PAIR = gym.spaces.MultiDiscrete([3, 2])
SWITCHES = gym.spaces.MultiBinary(2)


@pytest.mark.parametrize(
    ("space", "given", "read"),
    [
        (gym.spaces.Discrete(3), 2, 2),
        (gym.spaces.Discrete(3), 2.0, 2),
        (gym.spaces.Discrete(3, start=-1), -1, -1),
        (gym.spaces.Box(-1.0, 1.0, (1,)), 0.5, [0.5]),
        (gym.spaces.Box(-0.4, 0.4, (1,)), [0.4], [np.float32(0.4)]),
        (BOX, [0, 1e9], [0.0, 1e9]),
        (PAIR, [2, 1], [2, 1]),
        (SWITCHES, [0, 1], [0, 1]),
    ],
)
def test_action_is_read_as_the_environment_takes_it(space: gym.Space[Any], given: Any, read: Any) -> None:
    action = read_action(given, space)
    assert np.array_equal(action, read) and space.contains(action)


@pytest.mark.parametrize(
    ("space", "given"),
    [
        (gym.spaces.Discrete(3), 3),
        (gym.spaces.Discrete(3), [1]),
        (gym.spaces.Discrete(3), 10**400),
        (gym.spaces.Discrete(3), 2**64),
        (BOX, [2.0, 0.0]),
        (BOX, 0.5),
        (BOX, [0.0, float("inf")]),
        (BOX, [[0.0], [0.0, 1.0]]),
        (BOX, ["0", "0"]),
        (PAIR, [3, 0]),
        (PAIR, [0.5, 0]),
        (SWITCHES, [0, 2]),
        (SWITCHES, [0, -255]),
        (gym.spaces.Text(5), "left"),
    ],
)
def test_action_that_is_none_is_refused_with_what_is_allowed(space: gym.Space[Any], given: Any) -> None:
    with pytest.raises(CommandError, match="is not allowed; give ") as refused:
        read_action(given, space)
    assert allowed_actions(space) in str(refused.value)


def test_spaces_are_described() -> None:
    assert describe_actions(gym.spaces.Discrete(2)) == {"type": "discrete", "n": 2, "start": 0}
    assert describe_actions(BOX)["shape"] == [2]
    assert describe_actions(PAIR)["nvec"].tolist() == [3, 2]
    assert describe_actions(gym.spaces.Text(5))["type"] == "other"
    assert allowed_actions(BOX) == "a list of shape [2], numbers from [-1.0, 0.0] to [1.0, inf]"
    assert allowed_actions(PAIR) == "a list of shape [2], whole numbers from 0 to [2, 1]"


@pytest.mark.parametrize(("env_id", "atari"), [("CartPole-v1", False), ("Breakout-v5", True)])
def test_evaluated_episode_is_played_again_with_its_seed(env_id: str, atari: bool) -> None:
    game = make_game(env_id, atari=atari)

    def policy(obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        assert rng is not None
        return rng.integers(0, game.single_action_space.n, len(obs))

    evaluated = play_episode(policy, game, episode=0, seed=11)
    session = Session(Request("r", env_id, seed=0), open_scene(env_id, flat=True, atari=atari), policy)
    list(session.answer(b'{"cmd": "reset", "seed": 11}'))
    answers = list(session.answer(b'{"cmd": "step"}'))
    while answers[-1]["type"] == "step":
        answers = list(session.answer(b'{"cmd": "step"}'))
    assert evaluated is not None
    assert (answers[-1]["total_reward"], answers[-1]["episode_length"]) == (evaluated.ret, evaluated.length)


def test_lists_nested_without_end_are_answered_and_the_session_goes_on() -> None:
    session = Session(Request("r", "CartPole-v1", seed=0), open_scene("CartPole-v1"), None)
    list(session.answer(b'{"cmd": "reset"}'))
    (answer,) = session.answer(b'{"cmd": "step", "action": ' + b"[" * 900 + b"0" + b"]" * 900 + b"}")
    assert answer["type"] == "error" and "nested" in answer["message"]
    assert next(session.answer(b'{"cmd": "step", "action": 0}'))["step_index"] == 0
