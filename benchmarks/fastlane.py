"""What watching costs: steps per second with FastLane off, on without a viewer, and on with one at 30 frames/s.

    python benchmarks/fastlane.py --repetitions 5 --seconds 6

Whole runs through the worker, one after the other, the three ways in turn, so that a busy machine is busy for all of
them. A run's speed is what its own metrics say between its first rows and its last: start-up does not count. Beside it
stand the steps per second of the algorithm's own CPU time, which others' load does not touch so much. The viewer
is a process of its own that reads as `mosaic watch` does. HalfCheetah's pictures are drawn by a helper process, whose
share of a core is given beside.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from report import markdown, save

from mosaic.wire.frames import FastLaneReader, RingError, sweep
from mosaic.wire.metrics import read_rows
from mosaic.wire.paths import RunPaths

RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "CartPole": ("ppo", "CartPole-v1", {"num_envs": 8}),
    "MiniGrid-DoorKey-8x8": ("ppo", "MiniGrid-DoorKey-8x8-v0", {"num_envs": 8}),
    "Pong": ("ppo_atari_envpool", "Pong-v5", {"num_envs": 8, "num_threads": 1}),
    "HalfCheetah": ("ppo_continuous_action", "HalfCheetah-v5", {"num_envs": 8, "env_backend": "gymnasium"}),
}
WAYS = ("off", "unwatched", "watched")

VIEWER = """
import json, signal, sys, time
from mosaic.wire.frames import FastLaneReader, RingError
signal.signal(signal.SIGTERM, signal.default_int_handler)
reader, last, ages, size = None, 0, [], 0
first = time.monotonic()
try:
    while True:
        try:
            reader = reader or FastLaneReader.open(sys.argv[1])
            frame = reader.latest_frame(last)
            if frame is not None:
                first = first if last else time.monotonic()
                last, size = frame.index, len(frame.pixels)
                ages.append(time.monotonic() - frame.time)
        except RingError:
            pass
        time.sleep(1 / 60)
except KeyboardInterrupt:
    seconds = time.monotonic() - first
    ages.sort()
    print(json.dumps({"frames": len(ages), "seconds": seconds, "bytes": size,
                      "age_ms": 1000 * ages[len(ages) // 2] if ages else None,
                      "age_p95_ms": 1000 * ages[int(len(ages) * 0.95)] if ages else None}))
"""


def main() -> None:
    """Run every environment, mode and way several times, print the table, keep the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(RUNS), help="environments, separated by commas")
    parser.add_argument("--modes", default="single,grid", help="single, grid or both")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds of training that are measured in each run")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a run under way is ended, too
    rows = []
    for name in args.only.split(","):
        for mode in args.modes.split(","):
            measured: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
            for repetition in range(args.repetitions):
                for way in WAYS[repetition % 3 :] + WAYS[: repetition % 3]:
                    measured[way].append(run(name, mode, way, args.seconds))
            rows.append(row(name, mode, measured))
            print(markdown([rows[-1]]), flush=True)
            save("fastlane", {f"{name} {mode}": measured})
    print(markdown(rows))


def run(name: str, mode: str, way: str, seconds: float) -> dict[str, Any]:
    """One run, ended after so many seconds of training; its speed and what the viewer saw."""
    algo, env_id, params = RUNS[name]
    with tempfile.TemporaryDirectory(prefix="mosaic-fastlane-") as home:
        extras = {
            "fastlane_video_mode": "off" if way == "off" else mode,
            "grace_seconds": 0,
            "algo_params": {**params, "cuda": False},
        }
        config = {"run_id": "bench", "algo": algo, "env_id": env_id, "total_timesteps": 1_000_000_000, "seed": 1}
        (Path(home) / "run.json").write_text(json.dumps({**config, "extras": extras}))
        environment = {**os.environ, "MOSAIC_HOME": home}
        paths = RunPaths("bench", home)
        shell = subprocess.Popen(
            [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(Path(home) / "run.json")],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=home,
        )
        viewer = None
        if way == "watched":
            command = [sys.executable, "-c", VIEWER, str(paths.fastlane)]
            viewer = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            found = measure(shell, paths, seconds, way)
        finally:
            if viewer is not None and sys.exc_info()[0] is not None:
                viewer.kill()
            shell.kill()
            errors = shell.communicate()[1]
            sweep("bench")
        if found is None:
            raise SystemExit(f"{name}, {mode}, {way}: the run ended by itself: {errors.decode()[-1000:]}")
        if viewer is not None:
            viewer.terminate()
            seen = json.loads(viewer.communicate(timeout=30)[0])
            found |= {**seen, "frame_rate": seen["frames"] / max(seen["seconds"], 1e-9)}
    return found


def measure(shell: subprocess.Popen[bytes], paths: RunPaths, seconds: float, way: str) -> dict[str, Any] | None:
    """Speed over so many seconds; None when the run ends before.

    It begins with the second update and, where somebody looks, with the third frame: the first one loads fonts and
    opens windows, once.
    """
    began: dict[str, Any] | None = None
    helper, before, own = None, 0.0, 0.0
    while shell.poll() is None:
        time.sleep(0.1)
        updates = [row for row in read_rows(paths.metrics) if "charts/SPS" in row] if paths.metrics.exists() else []
        if began is None and len(updates) >= 2 and (way != "watched" or frames_of(paths) >= 3):
            began = updates[-1]
            algorithm = psutil.Process(shell.pid).children()[0]
            own = cpu_of(algorithm)
        if began is not None and helper is None:
            helper = renderer_of(shell.pid)
            before = cpu_of(helper)
        if began is not None and updates[-1]["time"] - began["time"] >= seconds:
            spent = updates[-1]["time"] - began["time"]
            used = (cpu_of(helper) - before) / spent
            size = sum(path.stat().st_size for path in ring_of(paths))
            steps = updates[-1]["step"] - began["step"]
            per_cpu_second = steps / (cpu_of(algorithm) - own)
            return {"sps": steps / spent, "per_cpu": per_cpu_second, "renderer_cores": used, "ring_bytes": size}
    return None


def frames_of(paths: RunPaths) -> int:
    try:
        with FastLaneReader.open(paths.fastlane) as reader:
            return reader.status().written
    except RingError:
        return 0


def ring_of(paths: RunPaths) -> list[Path]:
    try:
        return [Path("/dev/shm") / json.loads(paths.fastlane.read_bytes())["name"]]
    except (OSError, ValueError):
        return []


def renderer_of(pid: int) -> psutil.Process | None:
    for child in psutil.Process(pid).children(recursive=True):
        try:
            if any(word.endswith("renderer.py") for word in child.cmdline()):
                return child
        except psutil.Error:
            continue
    return None


def cpu_of(process: psutil.Process | None) -> float:
    if process is None:
        return 0.0
    times = process.cpu_times()
    return float(times.user + times.system)


def row(name: str, mode: str, measured: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians with their spread; shares are of the runs made in the same round."""
    off, unwatched, watched = ([run["sps"] for run in measured[way]] for way in WAYS)
    views = measured["watched"]
    ages = [view["age_ms"] for view in views if view["age_ms"] is not None]
    return {
        "environment": name,
        "mode": mode,
        "off, steps/s": spread(off, 0),
        "unwatched": share(unwatched, off),
        "watched": share(watched, off),
        "unwatched, by CPU time": share(*([run["per_cpu"] for run in measured[way]] for way in ("unwatched", "off"))),
        "watched, by CPU time": share(*([run["per_cpu"] for run in measured[way]] for way in ("watched", "off"))),
        "frames/s": spread([view["frame_rate"] for view in views], 1),
        "frame age, ms": spread(ages, 1) if ages else "none",
        "renderer, cores": f"{median(view['renderer_cores'] for view in views):.2f}",
        "ring, frames": f"{max(view['ring_bytes'] / max(view['bytes'], 1) for view in views):.2f}",
    }


def share(part: list[float], whole: list[float]) -> str:
    shares = [100 * a / b for a, b in zip(part, whole, strict=True)]
    return f"{100 * median(part) / median(whole):.1f} % ({min(shares):.0f}–{max(shares):.0f})"


def spread(values: list[float], digits: int) -> str:
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


if __name__ == "__main__":
    main()
