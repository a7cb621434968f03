"""Memory that a training frees stays with its process."""

import ctypes
import subprocess
import sys

import pytest

GLIBC = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"),
    reason="only glibc gives memory back",
)
PROGRAM = """
import resource
import numpy as np
from mosaic.wire import heap
heap.keep_freed()
def work():
    for _ in range(100):
        pieces = [np.ones(2**18) for _ in range(3)]  # 2 MB each, 1,536 pages in all
        del pieces
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@GLIBC
def test_what_was_freed_is_used_again_without_asking_the_system():
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    assert int(told.stdout) < 10_000  # 153,600 where every array is new to the system
