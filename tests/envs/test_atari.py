"""Atari games prepared frame by frame, against ale-py's own vector environment and EnvPool."""

from dataclasses import dataclass
from functools import reduce
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cleanrl_worker.envs import vectors
from cleanrl_worker.envs.atari import SIZE, Atari, Shrinker
from cleanrl_worker.run.args import RunArgs

pytest.importorskip("ale_py")


BACKENDS = {  # what an algorithm's flags choose among
    "one by one": {"env_backend": "gymnasium"},
    "envpool": {"env_backend": "envpool"},
    "native": {"env_backend": "gymnasium", "vectorization": "native"},
}


@dataclass
class SameStart:
    """Games after the same number of no-ops, which no two backends draw alike."""

    no_ops: int

    def pool(self, env_id: str) -> tuple[str, dict[str, Any]]:
        return env_id, {"noop_max": 0 if env_id.startswith("ALE/") else 1}  # the least: EnvPool counts FIRE as one

    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        game: Any = env.unwrapped
        game._no_ops = self.no_ops
        return env


@pytest.mark.parametrize(
    ("game", "backends", "no_ops"),
    [
        ("Breakout", ("envpool", "native"), 0),
        ("SpaceInvaders", ("envpool", "native"), 0),
        ("Freeway", ("envpool",), 1),  # without FIRE, EnvPool plays one no-op or more
        ("Freeway", ("native",), 0),
    ],
)
def test_an_algorithm_sees_the_same_game_whichever_backend_it_is_given(
    game: str, backends: tuple[str, ...], no_ops: int
) -> None:
    """Whole stacks, clipped rewards and ends, up to the first lost life: after it, only ale-py's does not wait."""
    pytest.importorskip("envpool")
    envs = {
        name: vectors.atari(RunArgs(env_id=f"{game}-v5", **BACKENDS[name]), view=SameStart(no_ops))
        for name in ("one by one", *backends)
    }
    first = {name: one.reset(1)[0] for name, one in envs.items()}
    for name in backends:
        assert (first["one by one"][3] == first[name][3]).all()
    assert "envpool" not in first or (first["one by one"] == first["envpool"]).all()
    rng, paid = np.random.default_rng(1), 0.0
    for count in range(1, 151):
        action = rng.integers(envs["one by one"].single_action_space.n, size=1)
        steps = {name: one.step(action) for name, one in envs.items()}
        ours = steps.pop("one by one")
        for name, step in steps.items():
            held = min(count + 1, 4) if name == "native" else 4  # its stack begins with black screens
            assert np.array_equal(ours.final_obs[0, -held:], step.final_obs[0, -held:]), (name, count)
            assert ours.rewards.tolist() == step.rewards.tolist(), (name, count)
            assert ours.terminations.tolist() == step.terminations.tolist(), (name, count)
        paid += ours.rewards[0]
        assert ours.rewards[0] in (-1, 0, 1)
        if ours.terminations[0]:
            break
    assert count > 30 and (game == "Freeway" or paid > 0), "an invader pays 5 or more: clipping shows"
    for one in envs.values():
        one.close()


@pytest.mark.parametrize("game", ["Pong", "Qbert", "AirRaid"])
def test_small_screens_are_those_of_opencvs_formula_in_float32(game: str) -> None:
    env, rng = Atari(f"{game}-v5"), np.random.default_rng(1)
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
    env = Atari("Freeway-v5")
    starts = [env.reset(seed=seed)[0].tobytes() for seed in (1, 2, 3, 4, 1)]
    assert starts[0] == starts[4] and len(set(starts)) > 1


def test_a_name_that_is_no_game_is_refused_with_the_nearest() -> None:
    with pytest.raises(SystemExit, match="'Pogn-v5' is no id of an Atari game here; did you mean 'ALE/Pong-v5'"):
        vectors.EnvMaker("Pogn-v5", frames=True)()


@pytest.mark.parametrize("frames", [41, 42, 43, 44])
def test_the_screen_at_which_a_game_is_cut_off_is_its_last_one_and_not_black(
    frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit counts frames, no-ops included: it may fall on any of the four that a step takes."""
    monkeypatch.setattr("cleanrl_worker.envs.atari.FRAMES", frames)
    env = Atari("Breakout-v5", no_ops=0)
    env.reset(seed=1)
    truncated = False
    while not truncated:
        obs, _, terminated, truncated, _ = env.step(0)
        assert not terminated
    assert np.abs(obs[-1].astype(int) - obs[-2]).mean() < 1, "the ball and the paddle move, the rest stays"
    env.close()
