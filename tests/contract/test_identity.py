"""The identity of a process: who it is, and that nobody else is taken for it."""

import os
import subprocess
import sys

from mosaic.contract.identity import boot_id, is_running, own_identity, start_ticks


def test_a_process_matches_only_its_own_identity() -> None:
    own = own_identity()
    pid, ticks, boot = own["pid"], own["start_ticks"], own["boot_id"]
    assert (pid, boot) == (os.getpid(), boot_id()) and is_running(pid, ticks, boot)
    assert not is_running(pid, ticks + 1, boot), "the pid was used before"
    assert not is_running(pid, ticks, "another boot")
    assert not is_running(os.getppid(), ticks, boot)


def test_a_process_that_is_dead_and_not_reaped_does_not_run() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ticks = start_ticks(child.pid)
    assert ticks is not None and is_running(child.pid, ticks, boot_id())
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_ticks(child.pid) is None and not is_running(child.pid, ticks, boot_id())
    assert start_ticks(child.pid, dead=True) == ticks
    child.wait()
    assert start_ticks(child.pid, dead=True) is None and start_ticks(0) is None
