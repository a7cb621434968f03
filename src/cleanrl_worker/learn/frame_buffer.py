"""Replay memory for stacked frames: each frame is kept once, and a transition names the frames it is made of."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cleanrl_worker.envs.episodes import Step
from cleanrl_worker.learn.buffers import Transitions


class FrameReplay:
    """The newest `capacity` transitions of environments that show their last frames; sampling is uniform.

    A million of Atari's take 7.6 GB, not the 56 of whole stacks. Transitions are numbered from 0 in the order of their
    coming. A memory whose frames run out first (episodes of under 16 steps) holds fewer than `capacity`.
    """

    def __init__(self, capacity: int, obs_shape: tuple[int, ...]) -> None:
        self.capacity = capacity
        # a frame per transition; an episode needs one more for its end, and one or two for what its first stack holds
        self.frames = np.zeros((capacity + max(capacity // 16, 1024), *obs_shape[1:]), np.uint8)
        self.stacks = np.zeros((capacity, obs_shape[0] + 1), np.int64)
        """numbers of the frames of the observation, then of the one that the action led to"""
        self.lowest = np.zeros(capacity, np.int64)
        """lowest number of a frame that this or a later transition needs"""
        self.ahead = np.zeros(capacity, np.int32)
        """how many transitions later the same episode goes on; 0: never"""
        self.actions = np.zeros(capacity, np.int64)
        self.rewards = np.zeros(capacity, np.float32)
        self.terminations = np.zeros(capacity, np.float32)
        self.added = self.seen = self._first = 0
        self.saved_to = 0
        """transitions up to this count lie in `segments`, the files of the checkpoints so far"""
        self.segments: list[dict[str, Any]] = []
        self._shown = np.zeros((0, obs_shape[0]), np.int64)
        """numbers of the frames that each environment shows now"""
        self._last: Step | None = None
        """what the environments did last; None where all were reset since"""

    def __len__(self) -> int:
        return self.added - self.first

    @property
    def first(self) -> int:
        """The oldest transition that is still whole."""
        self._first = max(self._first, self.added - self.capacity)
        while self._first < self.added and self.lowest[self._first % self.capacity] < self.seen - len(self.frames):
            self._first += 1
        return self._first

    def add(self, obs: np.ndarray, actions: np.ndarray, reached: Step) -> None:
        """One transition per environment. Other observations than the last step's mean that all were reset."""
        count = len(actions)
        if self.capacity < 8 * count:  # the stacks under way alone need five frames each
            raise SystemExit(f"--buffer-size: 8 * num_envs ({8 * count}) or more is needed, not {self.capacity}")
        if not np.array_equal(obs[:, 1:], reached.final_obs[:, :-1]):
            raise SystemExit("these observations are no stacks of frames: a step must add one and drop the oldest")
        shown = self._follow(obs)
        new = self._keep(reached.final_obs[:, -1])
        where = places(self.added, count, self.capacity)
        self.stacks[where, :-1], self.stacks[where, -1] = shown, new
        self.lowest[where] = shown.min()
        self.ahead[where] = count  # until it turns out that another episode began
        self.actions[where], self.rewards[where] = actions, reached.rewards
        self.terminations[where] = reached.terminations
        self.added += count
        self._shown, self._last = self.stacks[where, 1:].copy(), reached

    def forget(self) -> None:
        """Hold nothing any more; numbers go on."""
        self._first, self._last = self.added, None

    def sample(self, size: int, rng: np.random.Generator) -> Transitions:
        return self.take(self.first + rng.integers(0, len(self), size))

    def take(self, numbers: np.ndarray) -> Transitions:
        """Transitions by number; both observations are views of the same frames, as bytes."""
        where = numbers % self.capacity
        seen = self.frames.take(self.stacks.take(where, axis=0) % len(self.frames), axis=0, mode="clip")
        return Transitions(
            seen[:, :-1], self.actions[where], self.rewards[where], seen[:, 1:], self.terminations[where]
        )

    def after(self, numbers: np.ndarray) -> np.ndarray:
        """The next transition of the same episode, or -1 where it has ended or nothing more is known."""
        later = numbers + self.ahead[numbers % self.capacity]
        return np.where((later > numbers) & (later < self.added), later, -1)

    def rows(self, first: int, end: int) -> dict[str, np.ndarray]:
        """Copies of these transitions and their frames, for a checkpoint, after which all environments are reset."""
        if self._last is not None:
            under_way = np.arange(self.added - len(self._shown), self.added)
            self.ahead[under_way % self.capacity], self._last = 0, None
        where = np.arange(first, end) % self.capacity
        lowest, highest = self.lowest[where[0]], self.stacks[where, -1].max()
        frames = self.frames[np.arange(lowest, highest + 1) % len(self.frames)]
        rows = {name: array[where] for name, array in self._columns().items()}
        return {**rows, "frames": frames}

    def put(self, first: int, rows: Mapping[str, np.ndarray]) -> None:
        """Write transitions back to where those numbers lay; older ones than the memory holds are left out."""
        end, self.seen = first + len(rows["rewards"]), int(rows["stacks"][:, -1].max()) + 1
        where = np.arange(first, end)[-self.capacity :] % self.capacity
        self._first, self.added = self._first if self.added else first, end
        for name, array in self._columns().items():
            array[where] = rows[name][-self.capacity :]
        frames = rows["frames"][-len(self.frames) :]
        self.frames[np.arange(self.seen - len(frames), self.seen) % len(self.frames)] = frames

    @property
    def nbytes(self) -> int:
        return self.frames.nbytes + sum(array.nbytes for array in self._columns().values())

    def _columns(self) -> dict[str, np.ndarray]:
        names = ("stacks", "lowest", "ahead", "actions", "rewards", "terminations")
        return {name: getattr(self, name) for name in names}

    def _follow(self, obs: np.ndarray) -> np.ndarray:
        """Numbers of the frames that each environment shows; those of new episodes are kept now."""
        count, last = len(obs), self._last
        if last is None:
            begun, self._shown = np.ones(count, bool), np.full((count, obs.shape[1]), -1)
        else:
            begun = last.terminations | last.truncations
            if last.obs is not obs:
                begun = begun | (last.obs != obs).reshape(count, -1).any(axis=1)
        for env in begun.nonzero()[0]:
            if last is not None:
                self.ahead[(self.added - count + env) % self.capacity] = 0
            self._begin(obs[env], self._shown[env])
        return self._shown

    def _begin(self, stack: np.ndarray, shown: np.ndarray) -> None:
        """Number the frames of a first observation: many repeat the one before, or go on after a lost life."""
        # where all episodes begin alike and end at once, one frame would be shown for ever, and all of them need it
        oldest = max(self.seen - len(self.frames) // 2, 0)
        for index, frame in enumerate(stack):
            if shown[index] >= oldest and np.array_equal(frame, self.frames[shown[index] % len(self.frames)]):
                continue
            repeats = index > 0 and np.array_equal(frame, stack[index - 1])
            shown[index] = shown[index - 1] if repeats else self._keep(frame[None])[0]

    def _keep(self, frames: np.ndarray) -> np.ndarray:
        first, self.seen = self.seen, self.seen + len(frames)
        self.frames[places(first, len(frames), len(self.frames))] = frames
        return np.arange(first, self.seen)


def places(first: int, count: int, size: int) -> slice | np.ndarray:
    """Where consecutive numbers lie in a ring; a slice, which is several times faster to write to, unless they wrap."""
    start = first % size
    return slice(start, start + count) if start + count <= size else np.arange(first, first + count) % size
