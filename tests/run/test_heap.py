"""Memory that a training frees stays with its process."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from cleanrl_worker.run import heap
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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back")
def test_what_was_freed_is_used_again_without_asking_the_system():
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    assert int(told.stdout) < 10_000  # 153,600 where every array is new to the system
