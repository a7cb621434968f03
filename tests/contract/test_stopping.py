"""Stop signals: what counts as one, and who heeds whom."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mosaic.contract import stopping
from mosaic.contract.stopping import TOGETHER_SECONDS, Stops

CHILD = """
import multiprocessing, subprocess, sys, time
from mosaic.contract.stopping import heed_only

def wait(ready):
    heed_only(multiprocessing.parent_process().pid)
    ready.set()
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    ready = context.Event()
    child = context.Process(target=wait, args=(ready,), daemon=True)
    child.start()
    assert ready.wait(120)
    for name in ("TERM", "INT"):
        subprocess.run(["kill", f"-{name}", str(child.pid)], check=True)
    child.join(0.5)
    print(child.exitcode)
    child.terminate()
    child.join(120)
    print(child.exitcode)
"""


def test_signals_within_a_moment_of_the_first_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: now))
    stops = Stops()
    assert stops.seconds() == 0.0 and stops.told()
    now += TOGETHER_SECONDS - 0.1
    assert not stops.told() and not stops.again and stops.seconds() > 0
    now += 0.2
    assert stops.told() and stops.again


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="who sent a signal is told by Linux alone")
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_process_that_a_run_needs_is_ended_by_who_made_it_alone(method: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CHILD)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), method], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.split() == ["None", "143"], done.stderr
