"""gc: lists by default, removes with --yes, and leaves what is needed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mosaic.commands.daemon import gc
from mosaic.contract.checkpoints import find_all, write_checkpoint, write_segment
from mosaic.contract.errors import ConfigError


def items(told: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in json.loads(told.out)["items"]:
        found.setdefault(item["kind"], []).append(item["what"])
    return found


CREATOR = """
import sys
from pathlib import Path
from mosaic.contract.frames import FastLaneWriter
writer = FastLaneWriter.create("gc-test", Path(sys.argv[1]))
print(writer.name, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory cannot be listed")
def test_ring_of_a_killed_process_goes_and_that_of_a_live_one_stays(mosaic: Callable[..., Any], tmp_path: Path) -> None:
    command = [sys.executable, "-c", CREATOR, str(tmp_path / "fastlane.json")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ring = f"/dev/shm/{process.stdout.readline().strip()}"
        assert ring not in items(mosaic("gc", "--only", "rings", "--json")).get("rings", [])
        process.kill()
    # The daemon looks after dead rings too; whoever comes first.
    assert mosaic("gc", "--only", "rings", "--yes").code == 0
    assert not Path(ring).exists()


def test_orphaned_configs_go_and_those_of_runs_stay(
    mosaic: Callable[..., Any], start: Callable[..., Any], place: Any
) -> None:
    run = start()
    configs = place.home / "var/trainer/configs"
    for name in ("config-GONE1.json", "worker-GONE1-12.json", ".dry-run-X.json", ".dry-run-NEW.json", "notes.txt"):
        (configs / name).write_text("{}")
    os.utime(configs / ".dry-run-X.json", (1.0, 1.0))
    expected = [f"var/trainer/configs/{n}" for n in (".dry-run-X.json", "config-GONE1.json", "worker-GONE1-12.json")]
    assert sorted(items(mosaic("gc", "--only", "configs", "--json"))["configs"]) == sorted(expected)
    assert (configs / "config-GONE1.json").exists()
    told = mosaic("gc", "--only", "configs", "--yes")
    assert told.code == 0 and "6 B freed" in told.out
    assert {"notes.txt", ".dry-run-NEW.json", f"config-{run.run_id}.json"} <= set(os.listdir(configs))
    assert not list(configs.glob("*GONE1*"))
    for name in ("notes.txt", ".dry-run-NEW.json"):
        (configs / name).unlink()


def test_of_an_ended_runs_checkpoints_the_newest_and_the_pinned_stay(
    mosaic: Callable[..., Any], start: Callable[..., Any]
) -> None:
    run = start()
    folder = Path(run.folder) / "checkpoints"
    for step in (10, 20, 30):
        write_checkpoint(folder, step, {}, {"state.safetensors": b"x" * 1000})
    (folder / "10" / "pinned").touch()
    told = mosaic("gc", "--only", "checkpoints")
    assert "would remove  checkpoints" in told.out and f"{run.run_id}: steps 20" in told.out
    assert "mosaic gc --yes --only checkpoints" in told.out and (folder / "20").exists()
    assert mosaic("gc", "--only", "checkpoints", "--yes").code == 0
    assert [path.name for path in find_all(folder)] == ["30", "10"]
    assert mosaic("gc", "--only", "checkpoints").out.startswith("nothing to remove")


def test_old_runs_go_only_when_they_are_asked_for(
    mosaic: Callable[..., Any], start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, going = start(), start(until="EXECUTING", episodes=100000, pause=0.02)
    assert "runs" not in items(mosaic("gc", "--json"))
    assert "runs" not in items(mosaic("gc", "--older-than", "1h", "--json"))
    hour_later = time.time() + 7200
    monkeypatch.setattr(gc.time, "time", lambda: hour_later)
    found = items(mosaic("gc", "--older-than", "1h", "--json", "--only", "runs"))["runs"]
    assert any(run.run_id in text for text in found) and not any(going.run_id in text for text in found)
    assert mosaic("gc", "--older-than", "1h", "--only", "runs", "--yes").code == 0
    monkeypatch.undo()
    assert not Path(run.folder).exists() and Path(going.folder).exists()


@pytest.mark.parametrize(("text", "seconds"), [("12h", 43200), ("30d", 2592000), ("1w", 604800)])
def test_ages_are_hours_days_and_weeks(text: str, seconds: float) -> None:
    assert gc.parse_age(text) == seconds


@pytest.mark.parametrize("text", ["30", "d", "-1d", "1.5d", "30 days"])
def test_other_ages_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--older-than"):
        gc.parse_age(text)


def test_replay_segments_that_no_checkpoint_needs_go(mosaic: Callable[..., Any], start: Callable[..., Any]) -> None:
    run = start()
    folder = Path(run.folder) / "checkpoints"
    kept = write_segment(folder / "replay", 0, 5, b"used")
    write_checkpoint(folder, 5, {"replay": {"added": 5, "segments": [kept]}}, {})
    left = folder / "replay" / write_segment(folder / "replay", 5, 9, b"left by a kill")["file"]
    assert f"{run.run_id}: replay segments that no checkpoint needs" in items(mosaic("gc", "--json"))["checkpoints"]
    assert mosaic("gc", "--only", "checkpoints", "--yes").code == 0
    assert not left.exists() and (folder / "replay" / kept["file"]).exists()
