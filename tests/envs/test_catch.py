"""The image game: how it is seen, won and lost, by learners and by people."""

import gymnasium as gym
import numpy as np
import pytest

from cleanrl_worker.envs import play, vectors
from cleanrl_worker.envs.catch import BALL, LANDING, MOVE, PADDLE, SIZE, Catch
from cleanrl_worker.evaluation.batched import play_all
from cleanrl_worker.play.game_view import open_scene
from cleanrl_worker.run.args import RunArgs

CATCH = "mosaic/Catch-v0"
RNG = np.random.default_rng(7)


def places(frame: np.ndarray) -> tuple[int, int]:
    """Where the ball and the paddle begin in one frame."""
    return int((frame == 255).any(axis=0).argmax()), int((frame[-1] == 160).argmax())


def follow(obs: np.ndarray, _rng: np.random.Generator | None) -> np.ndarray:
    """Go where the ball will be."""
    (before, _), (ball, paddle) = places(obs[0, -2]), places(obs[0, -1])
    ahead = 2 * ball - before + BALL // 2 - (paddle + PADDLE // 2)
    return np.array([0 if abs(ahead) <= MOVE // 2 else 1 if ahead < 0 else 2])


def at_random(_obs: np.ndarray, _rng: np.random.Generator | None) -> np.ndarray:
    return RNG.integers(0, 3, 1)  # an evaluation's own generator begins with the seed of the game, as the ball does


def test_a_ball_is_seen_in_four_frames_and_ends_an_episode_caught_or_missed() -> None:
    env = Catch()
    obs, _ = env.reset(seed=1)
    assert env.observation_space.contains(obs) and obs.dtype == np.uint8 and obs.shape == (4, SIZE, SIZE)
    rewards, steps, ended = [], 0, False
    while not ended:
        before = obs
        obs, reward, ended, truncated, _ = env.step(0)
        assert (obs[:-1] == before[1:]).all() and not truncated, "the oldest frame goes, a new one comes"
        rewards.append(reward)
        steps += 1
    assert steps == LANDING == 13 and rewards[:-1] == [0.0] * (LANDING - 1) and abs(rewards[-1]) == 1.0
    again, _ = env.reset(seed=1)
    assert (again == Catch().reset(seed=1)[0]).all()


@pytest.mark.parametrize(("policy", "least", "most"), [(follow, 0.9, 1.0), (at_random, -0.9, -0.7)])
def test_random_play_loses_most_balls_and_a_paddle_that_follows_catches_them(policy, least, most) -> None:
    game = play.make_game(CATCH, atari=True)
    returns = [played.ret for played in play_all(policy, [game], 1, range(400))]
    assert least <= np.mean(returns) <= most


def test_learners_see_it_as_they_see_an_atari_game() -> None:
    envs = vectors.atari(RunArgs(env_id=CATCH, num_envs=2))
    assert envs.backend == "gymnasium" and envs.reset(1).shape == (2, 4, SIZE, SIZE)
    reached = [envs.step(np.array([0, 1])) for _ in range(LANDING)]
    assert [len(step.episodes) for step in reached] == [0] * (LANDING - 1) + [2]
    assert [episode.length for episode in reached[-1].episodes] == [LANDING] * 2
    assert (reached[-1].final_obs[:, -1] != reached[-1].obs[:, -1]).any(), "the next ball is another"
    envs.close()


def test_people_see_a_picture_and_envpool_is_refused(tmp_path) -> None:
    scene = open_scene(CATCH, flat=True, atari=True)
    scene.reset(3)
    scene.step(1)
    picture = scene.picture()
    assert scene.no_picture is None and picture is not None and picture["width"] == picture["height"] == 4 * SIZE
    envs = vectors.atari(RunArgs(env_id=CATCH, num_envs=2), video_folder=tmp_path)
    envs.reset(1)
    envs.step(np.zeros(2, np.int64))
    envs.close()
    assert (tmp_path / "episode-0.mp4").is_file()
    with pytest.raises(SystemExit, match="EnvPool has no mosaic/Catch-v0; use --env-backend gymnasium or auto"):
        vectors.atari(RunArgs(env_id=CATCH, env_backend="envpool"))
    with pytest.raises(SystemExit, match="has no vector version of its own"):
        vectors.atari(RunArgs(env_id=CATCH, vectorization="native"))
    assert gym.spec(CATCH).reward_threshold == 0.9
