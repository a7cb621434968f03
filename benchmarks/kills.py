"""Checkpoints under SIGKILL: is one ever unreadable, is progress ever lost, also while the disk fills up?

    python benchmarks/kills.py --kills 1000
    python benchmarks/kills.py --kills 1000 --tmpfs-mb 4       # as root: a disk that is full most of the time

A child saves one checkpoint after the other, weights and replay memory growing; it is killed at a random moment, the
checkpoints it left are read and verified, and the next child goes on from the newest.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import report

from cleanrl_worker.kit import checkpoint
from cleanrl_worker.kit.buffers import ReplayBuffer
from cleanrl_worker.kit.normalize import RunningStatistics
from mosaic.wire.checkpoints import CheckpointError, find_all, prune

ROWS_PER_SAVE = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--tmpfs-mb", type=int, default=0, help="save on a tmpfs of this size (root only)")
    args = parser.parse_args()
    with disk(args.tmpfs_mb) as folder:
        counts = torment(folder, args.kills)
    row = {"disk": f"tmpfs of {args.tmpfs_mb} MB" if args.tmpfs_mb else "plain", **counts}
    report.save("kills-full-disk" if args.tmpfs_mb else "kills", row)
    print(report.markdown([row]))


def torment(folder: Path, kills: int) -> dict[str, int]:
    unreadable = lost = last = full = 0
    for number in range(kills):
        child = os.fork()
        if child == 0:
            try:
                save_for_ever(folder)
            finally:
                os._exit(1)
        time.sleep(random.random() * 0.12)  # start, restore, and a few saves: most kills hit one of these
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        unreadable += sum(not readable(path) for path in find_all(folder))
        newest = int(find_all(folder)[0].name) if find_all(folder) else 0
        lost += newest < last
        last = newest
        full += os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize < 200_000
        if number % 100 == 99:
            print(f"{number + 1} kills: newest step {last}, {unreadable} unreadable, {lost} lost", flush=True)
    return {
        "kills": kills,
        "checkpoints saved": last,
        "unreadable": unreadable,
        "lost": lost,
        "kills on a full disk": full,
    }


def save_for_ever(folder: Path) -> None:
    """The child: go on from the newest checkpoint, save step after step until killed; a full disk is waited out."""
    rng = np.random.default_rng(0)
    parts = {"weights": RunningStatistics((200, 100))}
    replay = ReplayBuffer(5000, (17,), (6,), np.float32)
    step = 0
    if find_all(folder):
        found = checkpoint.newest(folder, print)
        checkpoint.restore(found, parts, rng, replay, folder)
        step = found.step
    while True:
        step += 1
        rows = (rng.normal(size=(ROWS_PER_SAVE, 17)), rng.normal(size=(ROWS_PER_SAVE, 6)), np.ones(ROWS_PER_SAVE))
        replay.add(rows[0], rows[1], rows[2], rows[0], rows[2])
        with contextlib.suppress(OSError):
            checkpoint.write(folder, step, parts, rng, {"exact": True, "score": None}, replay)
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
