"""Memory shared by a run's forked environments: their registration, step counts and grid tiles.

Also loaded by file path inside users' own interpreters: Python 3.8, standard library, numpy.
"""

from __future__ import annotations

import fcntl
import mmap
import tempfile
import time
from typing import Any

import numpy as np

ENVS = 1024  # maximum number of environments with step counts
ROUND_SECONDS = 1.0  # a grid's timeout for an environment that has stopped stepping

# Words of the stage: four of its own, then eight per environment.
ROUND, TARGET, LEADER, OPEN = range(4)
ALIVE, STEPS, TICKS, TILE_ROUND, TILE_HEIGHT, TILE_WIDTH = range(6)
_FIRST, _EACH = 8, 8


class SharedTiles:
    """The environments, step counts and grid tiles shared by forked processes."""

    def __init__(self, tiles: int, max_dim: int) -> None:
        rows = max(1, int(tiles**0.5))
        columns = -(-tiles // rows)
        self._tiles = tiles
        self._side = (max_dim // rows, max_dim // max(1, columns))
        self._room = self._side[0] * self._side[1] * 3
        self._start = 8 * (_FIRST + _EACH * ENVS)
        # Anonymous, so that nothing is left behind; untouched pages use no memory.
        self._memory = mmap.mmap(-1, self._start + tiles * self._room)
        self._lock = tempfile.TemporaryFile()
        self._bytes = memoryview(self._memory)
        self.words = self._bytes[: self._start].cast("Q")
        self.opened_at = 0.0

    def base(self, index: int) -> int:
        """Return the offset of an environment's words."""
        return _FIRST + _EACH * min(index, ENVS - 1)

    def enter(self, wanted: int | None) -> int:
        """Return an index for a new environment: the wanted one if free, else the lowest free one."""
        fcntl.lockf(self._lock, fcntl.LOCK_EX)  # a POSIX lock, which excludes forked processes from each other
        try:
            alive = [bool(self.words[self.base(index) + ALIVE]) for index in range(ENVS)]
            free = alive.index(False) if False in alive else ENVS
            index = free if wanted is None or alive[min(wanted, ENVS - 1)] else wanted
            self.words[self.base(index) + ALIVE] = 1
            self._choose_leader()
            return index
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def leave(self, index: int) -> None:
        """Release an index."""
        self.words[self.base(index) + ALIVE] = 0
        self._choose_leader()

    def steps(self) -> int:
        """Return the total steps of all environments."""
        return int(sum(self.words[_FIRST + STEPS : _FIRST + STEPS + _EACH * ENVS : _EACH]))

    def put(self, index: int, tile: Any, number: int) -> None:
        """Store an environment's tile for round `number`: a frame, a physics state, or None for black."""
        base, at = self.base(index), self._start + index * self._room
        if tile is None:
            data, shape = b"", (0, 0)
        elif isinstance(tile, tuple):
            data, shape = np.asarray(tile[1], np.float64).tobytes(), (0, tile[1].size)
        else:
            every = max(1, *(-(-length // room) for length, room in zip(tile.shape, self._side)))
            tile = np.ascontiguousarray(tile[::every, ::every])
            data, shape = tile.tobytes(), tile.shape[:2]
        if len(data) > self._room:
            raise ValueError(f"a tile of {len(data)} bytes is too large for a grid")
        self._bytes[at : at + len(data)] = data
        self.words[base + TILE_HEIGHT], self.words[base + TILE_WIDTH] = shape
        self.words[base + TILE_ROUND] = number

    def is_complete(self, number: int) -> bool:
        """Return True if every environment has stored its tile, or the round has timed out."""
        waiting = any(self.words[self.base(index) + TILE_ROUND] != number for index in self._shown())
        return not waiting or time.monotonic() - self.opened_at > ROUND_SECONDS

    def frames(self) -> list[np.ndarray | None]:
        """Return the tiles as frames, None for a missing one."""
        found: list[np.ndarray | None] = []
        shown = set(self._shown())
        for index in range(max(shown, default=0) + 1):
            height, width = (self.words[self.base(index) + word] for word in (TILE_HEIGHT, TILE_WIDTH))
            at = self._start + index * self._room
            size = height * width * 3
            whole = index in shown and size > 0
            data = bytes(self._bytes[at : at + size]) if whole else b""
            found.append(np.frombuffer(data, np.uint8).reshape(height, width, 3) if whole else None)
        return found

    def states(self) -> list[np.ndarray]:
        """Return the tiles as physics states; empty if they are frames."""
        found = []
        for index in self._shown():
            height, length = (self.words[self.base(index) + word] for word in (TILE_HEIGHT, TILE_WIDTH))
            at = self._start + index * self._room
            if height == 0 and length:
                found.append(np.frombuffer(bytes(self._bytes[at : at + 8 * length])))
        return found

    def _shown(self) -> list[int]:
        return [index for index in range(self._tiles) if self.words[self.base(index) + ALIVE]]

    def _choose_leader(self) -> None:
        shown = self._shown()
        self.words[LEADER] = shown[0] if shown else 0
