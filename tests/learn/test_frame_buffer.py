"""The memory of frames gives back every transition as it was, however episodes begin and end."""

from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from cleanrl_worker.envs.episodes import Step
from cleanrl_worker.learn.frame_buffer import FrameReplay
from cleanrl_worker.run import checkpoint

SHAPE = (4, 3, 3)


class Whole(NamedTuple):
    """A transition kept the plain way."""

    obs: np.ndarray
    action: int
    reward: float
    next_obs: np.ndarray
    terminated: bool
    env: int
    episode: int


class Games:
    """Environments with stacked frames whose episodes end at random; `padding` is what a first stack is filled with."""

    def __init__(self, num_envs: int, padding: str, seed: int = 0, mean_length: int = 7) -> None:
        self.rng, self.num_envs, self.padding, self.mean_length = (
            np.random.default_rng(seed),
            num_envs,
            padding,
            mean_length,
        )
        self.episodes = np.arange(num_envs)
        self.obs = self.reset()

    def reset(self) -> np.ndarray:
        self.episodes = self.episodes.max() + 1 + np.arange(self.num_envs)
        self.obs = np.stack([self._first() for _ in range(self.num_envs)])
        return self.obs

    def _first(self) -> np.ndarray:
        frame = self._frame()
        stack = np.zeros(SHAPE, np.uint8) if self.padding == "zeros" else np.stack([frame] * 4)
        stack[-1] = frame
        return stack

    def _frame(self) -> np.ndarray:
        return self.rng.integers(0, 256, SHAPE[1:]).astype(np.uint8)

    def step(self, actions: np.ndarray) -> Step:
        final = np.stack([np.concatenate([stack[1:], self._frame()[None]]) for stack in self.obs])
        terminations, truncations = self.rng.random((2, self.num_envs)) < 0.5 / self.mean_length
        obs = final.copy() if (terminations | truncations).any() else final
        for env in np.flatnonzero(terminations | truncations):
            self.episodes[env] = self.episodes.max() + 1
            if self.padding != "goes on":  # a lost life shows no new beginning
                obs[env] = self._first()
        self.obs = obs
        return Step(obs, self.rng.random(self.num_envs), terminations, truncations, final, [])


def play(memory: FrameReplay, games: Games, steps: int, kept: deque[Whole], resets: tuple[int, ...] = ()) -> None:
    obs = games.obs
    for step in range(steps):
        if step in resets:
            obs = games.reset()
        actions, episodes = games.rng.integers(0, 9, games.num_envs), games.episodes.copy()
        reached = games.step(actions)
        memory.add(obs, actions, reached)
        for env in range(games.num_envs):
            told = obs[env], int(actions[env]), float(reached.rewards[env]), reached.final_obs[env]
            kept.append(Whole(*told, bool(reached.terminations[env]), env, int(episodes[env])))
        obs = reached.obs


def check(memory: FrameReplay, kept: deque[Whole]) -> None:
    """Every transition that the memory holds is as it was, and so is the way to the next one."""
    expected = list(kept)[-len(memory) :]
    numbers = np.arange(memory.first, memory.added)
    found, after = memory.take(numbers), memory.after(numbers)
    assert np.array_equal(found.obs, np.stack([whole.obs for whole in expected]))
    assert np.array_equal(found.next_obs, np.stack([whole.next_obs for whole in expected]))
    assert found.actions.tolist() == [whole.action for whole in expected]
    assert np.array_equal(found.rewards, np.array([whole.reward for whole in expected], np.float32))
    assert found.terminations.tolist() == [float(whole.terminated) for whole in expected]
    for index, later in enumerate(after - memory.first):
        same = (at for at in range(index + 1, len(expected)) if expected[at].episode == expected[index].episode)
        assert (later if later >= 0 else None) == next(same, None)


@pytest.mark.parametrize("padding", ["repeated", "zeros", "goes on"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_transitions_come_back_as_they_were_across_every_kind_of_end(padding: str, num_envs: int) -> None:
    memory, games = FrameReplay(60, SHAPE), Games(num_envs, padding)
    kept: deque[Whole] = deque(maxlen=60)
    for _ in range(4):
        play(memory, games, 29, kept, resets=(11, 12))
        assert len(memory) == min(memory.added, 60)
        check(memory, kept)


def test_a_frame_is_kept_once() -> None:
    memory, games = FrameReplay(1000, SHAPE), Games(2, "repeated", mean_length=10**9)
    play(memory, games, 100, deque())
    assert memory.seen == 2 * 101
    lives = FrameReplay(1000, SHAPE)
    play(lives, Games(2, "goes on"), 100, deque())
    assert lives.seen == 2 * (100 + 1), "a lost life shows no new frame"


def test_a_million_transitions_of_atari_fit_into_eight_gigabytes() -> None:
    assert FrameReplay(1_000_000, (4, 84, 84)).nbytes < 8e9  # zeros take no memory before they are written


def test_episodes_so_short_that_frames_run_out_cost_old_transitions_only() -> None:
    memory, games = FrameReplay(2000, SHAPE), Games(2, "repeated", mean_length=1)
    kept: deque[Whole] = deque(maxlen=2000)
    play(memory, games, 1100, kept)
    assert 1500 < len(memory) < 2000
    check(memory, kept)


def test_episodes_of_one_step_that_all_begin_alike_do_not_empty_the_memory() -> None:
    memory, first = FrameReplay(200, SHAPE), np.full((1, *SHAPE), 7, np.uint8)
    over, rng = np.ones(1, bool), np.random.default_rng(0)
    for step in range(4000):
        final = np.concatenate([first[:, 1:], rng.integers(0, 256, (1, 1, *SHAPE[1:])).astype(np.uint8)], axis=1)
        memory.add(first, np.zeros(1, int), Step(first, np.full(1, step), over, ~over, final, []))
        assert len(memory) == min(step + 1, 200)
    found = memory.take(np.arange(memory.first, memory.added))
    assert np.all(found.obs == 7) and np.array_equal(found.rewards, np.arange(3800, 4000))


def test_samples_are_drawn_evenly_by_the_generator_alone() -> None:
    memory, games = FrameReplay(40, SHAPE), Games(2, "repeated")
    play(memory, games, 57, deque())
    first, again, other = (memory.sample(20, np.random.default_rng(seed)) for seed in (4, 4, 5))
    assert np.array_equal(first.obs, again.obs) and not np.array_equal(first.obs, other.obs)
    assert first.obs.dtype == np.uint8 and first.obs.shape == (20, *SHAPE)
    drawn = memory.sample(20_000, np.random.default_rng(1)).rewards
    counts = [np.sum(drawn == reward) for reward in memory.rewards]
    assert np.abs(np.array(counts) / 20_000 - 1 / 40).max() < 0.005


def test_a_memory_too_small_for_its_environments_is_refused_in_one_line() -> None:
    with pytest.raises(SystemExit, match=r"--buffer-size: 8 \* num_envs \(16\) or more is needed, not 15"):
        play(FrameReplay(15, SHAPE), Games(2, "zeros"), 1, deque())


def saved_and_restored(memory: FrameReplay, folder: Path, capacity: int) -> FrameReplay:
    rng = np.random.default_rng(0)
    path = checkpoint.write(folder, memory.added, {}, rng, {}, memory)
    restored = FrameReplay(capacity, SHAPE)
    checkpoint.restore(checkpoint.read(path), {}, rng, restored)
    return restored


@pytest.mark.parametrize("mean_length", [1, 9])
@pytest.mark.parametrize("capacity", [50, 60, 90])
def test_checkpoints_hold_the_frames_in_segments(
    capacity: int, mean_length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SEGMENT_ROWS", 7)  # pieces that cut the transitions of a step apart
    memory, games = FrameReplay(60, SHAPE), Games(3, "zeros", mean_length=mean_length)
    kept: deque[Whole] = deque(maxlen=capacity)
    for _ in range(3):
        play(memory, games, 17, kept)
        restored = saved_and_restored(memory, tmp_path, capacity)
        assert len(restored) == min(capacity, len(memory))
        check(restored, kept)
        games.reset()
    play(restored, games, 30, kept)
    check(restored, kept)


def test_going_on_after_a_checkpoint_is_the_same_for_the_memory_that_was_saved_and_the_one_that_was_read(
    tmp_path: Path,
) -> None:
    """Also where frames run out, and where a reset shows what was shown before it."""
    memory, games = FrameReplay(700, SHAPE), Games(2, "zeros", mean_length=1)
    kept: deque[Whole] = deque(maxlen=700)
    play(memory, games, 900, kept)
    restored = saved_and_restored(memory, tmp_path, 700)
    assert restored.added == memory.added and restored.first == memory.first
    again: list[Any] = []
    for one in (memory, restored):
        twin = Games(2, "zeros", seed=5)
        twin.obs = games.obs
        play(one, twin, 40, deque())
        numbers = np.arange(one.first, one.added)
        again.append((one.first, one.after(numbers).tolist(), [part.tolist() for part in one.take(numbers)]))
    assert again[0] == again[1]
