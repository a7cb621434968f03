"""Replay memory for stacked frames: each frame is stored once, and transitions hold frame numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cleanrl_worker.envs.episodes import Step
from cleanrl_worker.learn.buffers import Transitions


class FrameReplay:
    """The newest `capacity` transitions of environments with stacked frames; sampling is uniform.

    A million of Atari's take 7.6 GB instead of 56 for whole stacks. Transitions are numbered from 0 in order of
    arrival. If the frames run out first (episodes of under 16 steps), the memory holds fewer than `capacity`.
    """

    def __init__(self, capacity: int, obs_shape: tuple[int, ...]) -> None:
        self.capacity = capacity
        # a frame per transition; an episode needs one more for its end, and one or two for its first stack
        self.frames = np.zeros((capacity + max(capacity // 16, 1024), *obs_shape[1:]), np.uint8)
        self.stacks = np.zeros((capacity, obs_shape[0] + 1), np.int64)
        """numbers of the observation's frames, then of the next frame"""
        self.lowest = np.zeros(capacity, np.int64)
        """lowest frame number that this or a later transition needs"""
        self.ahead = np.zeros(capacity, np.int32)
        """offset to the next transition of the same episode; 0: none"""
        self.actions = np.zeros(capacity, np.int64)
        self.rewards = np.zeros(capacity, np.float32)
        self.terminations = np.zeros(capacity, np.float32)
        self.added = self.seen = self._first = 0
        self.saved_to = 0
        """transitions up to this count are in `segments`, the files of the checkpoints so far"""
        self.segments: list[dict[str, Any]] = []
        self._shown = np.zeros((0, obs_shape[0]), np.int64)
        """frame numbers of each environment's current stack"""
        self._last: Step | None = None
        """the last step of the environments; None if all were reset since"""

    def __len__(self) -> int:
        return self.added - self.first

    @property
    def first(self) -> int:
        """Return the number of the oldest complete transition."""
        self._first = max(self._first, self.added - self.capacity)
        while self._first < self.added and self.lowest[self._first % self.capacity] < self.seen - len(self.frames):
            self._first += 1
        return self._first

    def add(self, obs: np.ndarray, actions: np.ndarray, reached: Step) -> None:
        """Add one transition per environment. Observations other than the last step's mean that all were reset."""
        count = len(actions)
        if self.capacity < 8 * count:  # the current stacks alone need five frames each
            raise SystemExit(f"--buffer-size: 8 * num_envs ({8 * count}) or more is needed, not {self.capacity}")
        if not np.array_equal(obs[:, 1:], reached.final_obs[:, :-1]):
            raise SystemExit("these observations are no stacks of frames: a step must add one and drop the oldest")
        shown = self._follow(obs)
        new = self._keep(reached.final_obs[:, -1])
        where = places(self.added, count, self.capacity)
        self.stacks[where, :-1], self.stacks[where, -1] = shown, new
        self.lowest[where] = shown.min()
        self.ahead[where] = count  # until a new episode is detected
        self.actions[where], self.rewards[where] = actions, reached.rewards
        self.terminations[where] = reached.terminations
        self.added += count
        self._shown, self._last = self.stacks[where, 1:].copy(), reached

    def forget(self) -> None:
        """Discard all transitions; the numbering continues."""
        self._first, self._last = self.added, None

    def sample(self, size: int, rng: np.random.Generator) -> Transitions:
        return self.take(self.first + rng.integers(0, len(self), size))

    def take(self, numbers: np.ndarray) -> Transitions:
        """Return transitions by number; both observations are uint8 views of the same frames."""
        where = numbers % self.capacity
        seen = self.frames.take(self.stacks.take(where, axis=0) % len(self.frames), axis=0, mode="clip")
        return Transitions(
            seen[:, :-1], self.actions[where], self.rewards[where], seen[:, 1:], self.terminations[where]
        )

    def after(self, numbers: np.ndarray) -> np.ndarray:
        """Return the next transitions of the same episodes, -1 after an end or if not yet added."""
        later = numbers + self.ahead[numbers % self.capacity]
        return np.where((later > numbers) & (later < self.added), later, -1)

    def rows(self, first: int, end: int) -> dict[str, np.ndarray]:
        """Return copies of transitions and frames for a checkpoint, after which all environments are reset."""
        if self._last is not None:
            under_way = np.arange(self.added - len(self._shown), self.added)
            self.ahead[under_way % self.capacity], self._last = 0, None
        where = np.arange(first, end) % self.capacity
        lowest, highest = self.lowest[where[0]], self.stacks[where, -1].max()
        frames = self.frames[np.arange(lowest, highest + 1) % len(self.frames)]
        rows = {name: array[where] for name, array in self._columns().items()}
        return {**rows, "frames": frames}

    def put(self, first: int, rows: Mapping[str, np.ndarray]) -> None:
        """Restore transitions by number; skip those older than the memory holds."""
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
        """Return the frame numbers of each environment's stack; store the frames of new episodes."""
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
        """Number the frames of a first observation: many repeat the previous one, or continue after a lost life."""
        # if all episodes start alike and end at once, one frame would be reused forever, and all of them need it
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
    """Return the ring indices of consecutive numbers; a slice, several times faster to write, unless they wrap."""
    start = first % size
    return slice(start, start + count) if start + count <= size else np.arange(first, first + count) % size
