"""Checkpoints under SIGKILL: is one ever unreadable, is progress ever lost, also while the disk fills up?

    python benchmarks/kills.py --kills 1000
    python benchmarks/kills.py --kills 1000 --tmpfs-mb 4       # as root: a disk that fills up, again and again

A child saves one checkpoint after the other, weights and replay memory growing; it is killed at a random moment, the
checkpoints it left are read and verified, and the next child goes on from the newest. On a tmpfs a file of another
random size takes space away before each child: some find room, some none, most run out of it between two saves.
"""

import argparse
import contextlib
import mmap
import os
import random
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import report

from cleanrl_worker.learn.buffers import ReplayBuffer
from cleanrl_worker.learn.normalize import RunningStatistics
from cleanrl_worker.run import checkpoint
from mosaic.contract.checkpoints import CheckpointError, find_all, prune

ROWS_PER_SAVE = 200
COUNTS = struct.Struct("qq")  # saves that worked, saves that met a full disk; in memory that children share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--tmpfs-mb", type=int, default=0, help="save on a tmpfs of this size (root only)")
    args = parser.parse_args()
    with disk(args.tmpfs_mb) as folder:
        counts = torment(folder, args.kills, args.tmpfs_mb)
    row = {"disk": f"tmpfs of {args.tmpfs_mb} MB" if args.tmpfs_mb else "plain", **counts}
    report.save("kills-full-disk" if args.tmpfs_mb else "kills", row)
    print(report.markdown([row]))


def torment(folder: Path, kills: int, tmpfs_mb: int) -> dict[str, int]:
    unreadable = lost = last = 0
    shared = mmap.mmap(-1, COUNTS.size)
    for number in range(kills):
        if tmpfs_mb:
            fill(folder.parent / "ballast", int(random.random() * tmpfs_mb * 2**20))
        child = os.fork()
        if child == 0:
            try:
                save_for_ever(folder, shared)
            finally:
                os._exit(1)
        time.sleep(random.random() * 0.12)  # start, restore, and a few saves: most kills hit one of these
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        unreadable += sum(not readable(path) for path in find_all(folder))
        newest = int(find_all(folder)[0].name) if find_all(folder) else 0
        lost += newest < last
        last = newest
        if number % 100 == 99:
            print(f"{number + 1} kills: newest step {last}, {unreadable} unreadable, {lost} lost", flush=True)
    saved, refused = COUNTS.unpack(shared[:])
    return {
        "kills": kills,
        "checkpoints saved": saved,
        "saves that met a full disk": refused,
        "unreadable": unreadable,
        "lost": lost,
    }


def fill(ballast: Path, size: int) -> None:
    """Take so much of the disk away, or what there is."""
    ballast.unlink(missing_ok=True)
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        file.write(bytes(size))


def save_for_ever(folder: Path, shared: mmap.mmap) -> None:
    """The child: go on from the newest checkpoint, save step after step until killed; a full disk is waited out."""
    rng = np.random.default_rng(0)
    parts = {"weights": RunningStatistics((200, 100))}
    replay = ReplayBuffer(5000, (17,), (6,), np.float32)
    step = 0
    if find_all(folder):
        found = checkpoint.newest(folder, print)
        checkpoint.restore(found, parts, rng, replay)
        step = found.step
    while True:
        step += 1
        rows = (rng.normal(size=(ROWS_PER_SAVE, 17)), rng.normal(size=(ROWS_PER_SAVE, 6)), np.ones(ROWS_PER_SAVE))
        replay.add(rows[0], rows[1], rows[2], rows[0], rows[2])
        saved, refused = COUNTS.unpack(shared[:])
        try:
            checkpoint.write(folder, step, parts, rng, {"exact": True, "score": None}, replay)
            shared[:] = COUNTS.pack(saved + 1, refused)
        except OSError:
            shared[:] = COUNTS.pack(saved, refused + 1)
        with contextlib.suppress(OSError):
            prune(folder, None)


def readable(path: Path) -> bool:
    try:
        checkpoint.read(path)
    except CheckpointError as error:
        print(error)
        return False
    return True


@contextlib.contextmanager
def disk(megabytes: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        if megabytes:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", name], check=True)
        try:
            (Path(name) / "checkpoints").mkdir()
            yield Path(name) / "checkpoints"
        finally:
            if megabytes:
                subprocess.run(["umount", name], check=True)


if __name__ == "__main__":
    main()
