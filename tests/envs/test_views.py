"""Which environment is seen how, and actions that stick."""

import gymnasium as gym
import numpy as np
import pytest

from cleanrl_worker.envs import pools, vectors
from cleanrl_worker.envs.minigrid import GridView
from cleanrl_worker.envs.procgen import ProcgenView
from cleanrl_worker.envs.views import StickyView, view_of


@pytest.mark.parametrize(
    ("env_id", "args", "view"),
    [
        ("CartPole-v1", {}, None),
        ("Pong-v5", {"repeat_action_probability": 0.0}, None),
        ("Pong-v5", {"repeat_action_probability": 0.25}, StickyView(0.25)),
        ("MiniGrid-Empty-5x5-v0", {"mission": True}, GridView(mission=True)),
        ("starpilot", {"distribution_mode": "hard", "num_levels": 2}, ProcgenView("hard", 0, 2)),
        ("mosaic/Catch-v0", {"distribution_mode": "auto"}, ProcgenView()),
    ],
)
def test_an_id_and_the_args_of_a_run_tell_how_it_sees(env_id: str, args: dict[str, object], view: object) -> None:
    assert view_of(env_id, args) == view


@pytest.mark.parametrize(("probability", "same"), [(0.0, False), (1.0, True)])
def test_an_action_that_always_sticks_makes_no_difference_in_envpool(probability: float, same: bool) -> None:
    def screen(action: int) -> np.ndarray:
        games = pools.make_games("Pong-v5", 1, 0, None, clip=True, view=StickyView(probability))
        games.reset(0)
        for _ in range(30):
            obs = games.step(np.array([action])).obs
        return obs

    assert np.array_equal(screen(2), screen(3)) == same


def test_an_action_that_always_sticks_makes_no_difference_in_gymnasium() -> None:
    env = vectors.EnvMaker("mosaic/Catch-v0", view=StickyView(1 - 1e-12), frames=True)()
    assert isinstance(env, vectors.SeededEpisodes) and isinstance(env.env, gym.wrappers.StickyAction)
    screens = []
    for later in (1, 2):
        env.reset(seed=3)
        env.step(0)
        screens.append(env.step(later)[0])
    assert np.array_equal(*screens)
