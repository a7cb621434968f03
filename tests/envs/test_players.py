"""Atari games for several players: what each sees, gets and does."""

import gymnasium as gym
import numpy as np
import pytest
from needs import needed

from cleanrl_worker.envs.players import Match, is_match, register
from cleanrl_worker.envs.views import view_of
from mosaic.catalog import find, ids


@pytest.fixture(autouse=True)
def installed() -> None:
    needed("pettingzoo")


def test_the_catalog_has_the_games_that_pettingzoo_has() -> None:
    from pathlib import Path

    import pettingzoo.atari

    games = {path.stem for path in Path(pettingzoo.atari.__file__).parent.glob("*_v[0-9].py")}
    assert set(ids("atari", "multiplayer")) == games
    assert all(is_match(env_id) == (find(env_id).group == "multiplayer") for env_id in ids())
    assert [(game, register(game)) for game in sorted(games)] == [(game, find(game).players) for game in sorted(games)]


def test_players_see_the_same_screens_and_which_of_them_they_are() -> None:
    match = Match("pong_v3")
    obs, _ = match.reset(seed=1)
    assert obs.shape == (2, 6, 84, 84) and obs.dtype == np.uint8
    assert (obs[0, :4] == obs[1, :4]).all() and obs[0, 0].std() > 0
    assert obs[:, 4:].max(axis=(2, 3)).tolist() == [[1, 0], [0, 1]]
    after, *_ = match.step(np.array([2, 3]))
    assert (after[0, :3] == obs[0, 1:4]).all(), "the newest screen comes last"
    assert match.render().shape == (210, 160, 3)
    match.close()


def test_a_point_of_one_player_is_the_loss_of_the_other_and_a_seed_repeats_a_game() -> None:
    def play(seed: int) -> tuple[list[float], np.ndarray]:
        match, rng = Match("pong_v3"), np.random.default_rng(3)
        match.reset(seed=seed)
        rewards = []
        for _ in range(120):
            obs, reward, *_ = match.step(rng.integers(0, 6, 2))
            assert reward == match.rewards[0] == -match.rewards[1]
            rewards.append(reward)
        match.close()
        return rewards, obs

    rewards, obs = play(5)
    again, same = play(5)
    assert rewards == again and (obs == same).all()
    assert any(rewards)


def test_gymnasium_makes_a_game_that_was_registered_and_others_are_refused_in_one_line() -> None:
    assert register("boxing_v2") == 2
    view = view_of("boxing_v2", {})
    assert view is not None
    env = view.wrap(gym.make("boxing_v2", disable_env_checker=True))
    assert env.action_space == gym.spaces.MultiDiscrete([18, 18])
    env.close()
    with pytest.raises(SystemExit, match="'pnog_v3' is no game of PettingZoo; did you mean 'pong_v3'"):
        register("pnog_v3")
