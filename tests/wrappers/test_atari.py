"""Atari games prepared frame by frame, against ale-py's own vector environment and EnvPool."""

from functools import reduce

import numpy as np
import pytest

from cleanrl_worker.kit import envs as kit_envs
from cleanrl_worker.kit import pools
from cleanrl_worker.wrappers.atari import SIZE, Atari, Shrinker

pytest.importorskip("ale_py")


@pytest.mark.parametrize("game", ["Breakout", "Pong"])
def test_the_three_backends_show_the_same_screens_and_rewards(game: str) -> None:
    """From the same start, with the same actions, up to the first lost life: after it, only ale-py's does not wait."""
    pytest.importorskip("envpool")
    plain = Atari(game, no_ops=0)
    options = {"reward_clipping": False, "repeat_action_probability": 0.0, "noop_max": 0}
    native = kit_envs.make_native(f"ALE/{game}-v5", 1, **options)
    pool = pools.make_pool(f"{game}-v5", 1, 1, noop_max=1, episodic_life=False)
    first = plain.reset(seed=1)[0][-1], native.reset(seed=1)[0][0][-1], pool.reset()[0][0][-1]
    assert (first[0] == first[1]).all() and (first[0] == first[2]).all()
    rng = np.random.default_rng(1)
    for _ in range(150):
        action = int(rng.integers(plain.action_space.n))
        obs, reward, terminated, _, _ = plain.step(action)
        others = [native.step(np.array([action])), pool.step(np.array([action]))]
        for seen, rewards, _, _, _ in others:
            assert np.array_equal(obs[-1], seen[0][-1])
            assert reward == rewards[0]
        if terminated:
            break
    native.close()


@pytest.mark.parametrize("game", ["Pong", "Qbert", "AirRaid"])
def test_small_screens_are_those_of_opencvs_formula_in_float32(game: str) -> None:
    env, rng = Atari(game), np.random.default_rng(1)
    env.reset(seed=1)
    seen = []
    for _ in range(25):
        if any(env.step(int(rng.integers(env.action_space.n)))[2:4]):
            env.reset()
        seen.append(env._screens.max(axis=0))
    height, width = seen[0].shape
    assert height == (250 if game == "AirRaid" else 210)
    seen += list(rng.integers(0, 256, (10, height, width)).astype(np.uint8))
    few = np.array([0, 20, 87, 147, 255], np.uint8)  # with few colours many means lie half-way between two numbers
    seen += list(rng.choice(few, (10, height, width)))
    shrink = Shrinker(height, width)
    for screen in seen:
        np.testing.assert_array_equal(shrink(screen), shrunk(screen), strict=True)
    env.close()


def shrunk(screen: np.ndarray) -> np.ndarray:
    """The mean of each area the plain way: one pixel after the other, the columns and then the rows."""
    rows, columns = (shares(pixels) for pixels in screen.shape)
    half = reduce(np.add, (screen[:, at] * share for at, share in columns))
    whole = reduce(np.add, (half[at] * share[:, None] for at, share in rows))
    return np.rint(whole).astype(np.uint8)


def shares(pixels: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """For the first, second, … of the pixels that each of 84 covers: which it is, and its share of the mean."""
    scale = pixels / SIZE
    begins = np.arange(SIZE) * scale
    found = []
    for nth in range(int(scale) + 2):
        at = np.floor(begins + 1e-9).astype(int) + nth
        covered = np.minimum(begins + scale, at + 1.0) - np.maximum(begins, at)
        share = np.where((at < pixels) & (covered > 1e-6), covered / scale, 0.0)
        found.append((np.minimum(at, pixels - 1), share.astype(np.float32)))
    return found


def test_a_life_is_an_episode_and_a_reset_goes_on_with_the_game() -> None:
    env = Atari("BreakoutNoFrameskip-v4")
    obs, _ = env.reset(seed=1)
    assert env.observation_space.contains(obs) and (obs == obs[0]).all(), "the first screen fills the stack"
    ends = 0
    while not env.game_over:
        _, _, terminated, truncated, _ = env.step(0)
        assert not truncated
        ends += terminated
        if terminated and not env.game_over:
            env.reset()
    assert ends == 5, "Breakout has five lives"
    env.reset()
    assert not env.game_over
    env.close()


def test_a_whole_game_goes_on_by_itself_and_is_drawn_in_colour() -> None:
    env = Atari("Breakout-v5", lives=False, render_mode="rgb_array")
    env.reset(seed=1)
    steps, ended = 0, False
    while not ended:
        _, _, ended, _, _ = env.step(0)
        steps += 1
    assert steps > 50 and env.game_over
    assert env.render().shape == (210, 160, 3)
    env.close()


def test_no_op_starts_differ_by_seed_and_repeat_with_it() -> None:
    env = Atari("Freeway")
    starts = [env.reset(seed=seed)[0].tobytes() for seed in (1, 2, 3, 4, 1)]
    assert starts[0] == starts[4] and len(set(starts)) > 1


def test_a_name_that_is_no_game_is_refused_with_the_nearest() -> None:
    with pytest.raises(SystemExit, match="'Pogn-v5' is no Atari game; did you mean 'ALE/Pong-v5'"):
        kit_envs.EnvMaker("Pogn-v5", frames=True)()


@pytest.mark.parametrize("frames", [41, 42, 43, 44])
def test_the_screen_at_which_a_game_is_cut_off_is_its_last_one_and_not_black(
    frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit counts frames, no-ops included: it may fall on any of the four that a step takes."""
    monkeypatch.setattr("cleanrl_worker.wrappers.atari.FRAMES", frames)
    env = Atari("Breakout", no_ops=0)
    env.reset(seed=1)
    truncated = False
    while not truncated:
        obs, _, terminated, truncated, _ = env.step(0)
        assert not terminated
    assert np.abs(obs[-1].astype(int) - obs[-2]).mean() < 1, "the ball and the paddle move, the rest stays"
    env.close()
