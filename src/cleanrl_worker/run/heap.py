"""Tuning of the C library's allocator for training."""

import ctypes
import platform

# glibc's constants (malloc.h), and bytes: freed memory stays in the heap and serves allocations of up to 32 MB
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
KEPT = {TRIM_THRESHOLD: 2**30, MMAP_THRESHOLD: 2**25}


def keep_freed() -> None:
    """Keep memory that an update frees in this process: the next update needs as much.

    By default, glibc returns tensors of more than 128 kB to the system, which zeroes every page of the next one: some
    hundred pages for each step of PPO with images, 3 to 7 % of an update's time. A no-op without glibc.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for parameter, size in KEPT.items():
            libc.mallopt(parameter, size)
