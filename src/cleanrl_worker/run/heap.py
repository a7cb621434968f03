"""The C library's memory of a process that trains."""

import ctypes
import platform

# glibc's numbers (malloc.h), and bytes: what is freed stays ours, and pieces of up to 32 MB are cut from it
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
KEPT = {TRIM_THRESHOLD: 2**30, MMAP_THRESHOLD: 2**25}


def keep_freed() -> None:
    """Let what an update frees stay with this process: the next update needs as much.

    As it is, glibc gives a tensor of more than 128 kB back to the system, which clears every page of the next one:
    some hundred pages for each step of PPO with images, 3 to 7 % of an update's time. Elsewhere nothing is done.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for parameter, size in KEPT.items():
            libc.mallopt(parameter, size)
