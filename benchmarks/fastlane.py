"""What watching costs: one training in which FastLane is off, on without a viewer, and on with one, by turns.

    python benchmarks/fastlane.py --only CartPole --modes single,grid --starts 2 --seconds 60
    python benchmarks/fastlane.py --table

Two runs of one kind differ by 10 to 20 % on a shared machine, so runs are not compared: within one process the ways
take turns, off, one of the others by lot, off, and so on, a few rollouts with their updates each. A block's speed is
divided by the mean of the two off blocks around it; told is the interquartile mean of these shares with its 95 %
bootstrap interval, by the wall clock and by the process's CPU time, which others' load touches less. While a block is
not watched, the time until the next frame stands still: else each watched block would begin with a frame that other
blocks had paid for.

The viewer is a process of its own that takes at most 30 frames a second while a block is watched, as `mosaic watch`
does; a frame's age is measured there. HalfCheetah's pictures are drawn by a helper process, whose share of a core is
given beside. Results add up in results/fastlane.json, start by start.
"""

import argparse
import contextlib
import importlib
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from report import RESULTS, markdown, save

from mosaic.contract import ring
from mosaic.contract.frames import FastLaneReader, sweep
from mosaic.stats import bootstrap_interval, iqm

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "CartPole": ("ppo", "CartPole-v1", {}),
    "MiniGrid-DoorKey-8x8": ("ppo", "MiniGrid-DoorKey-8x8-v0", {}),
    "Pong": ("ppo_atari_envpool", "Pong-v5", {"num_steps": 32}),
    "HalfCheetah": ("ppo_continuous_action", "HalfCheetah-v5", {"env_backend": "gymnasium", "num_steps": 128}),
}
ENVS = 8
OFF, UNWATCHED, WATCHED = "off", "unwatched", "watched"
GOALS = {UNWATCHED: 0.99, WATCHED: 0.96}
VIEWS_PER_SECOND = 30
FIRST_FRAMES = 16  # they load fonts, open windows, and let the helper find its detail: not measured


def main() -> None:
    """Measure the cases asked for, start by start, or print the table of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES), help="environments, separated by commas")
    parser.add_argument("--modes", default="single,grid", help="single, grid or both")
    parser.add_argument("--starts", type=int, default=1, help="processes, one after the other, for each case")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds that each of them is measured")
    parser.add_argument("--block", type=float, default=0.5, help="seconds of a block, in whole rollouts")
    parser.add_argument("--table", action="store_true", help="print what was measured, measure nothing")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured of these cases before")
    parser.add_argument("--inside", nargs=3, metavar=("NAME", "MODE", "FLAG"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        train(*args.inside, args.seconds, args.block)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a training under way is ended, too
    for name in [] if args.table else args.only.split(","):
        for mode in args.modes.split(","):
            for start in range(args.starts):
                key = f"{name} {mode}"
                kept = [] if args.fresh and start == 0 else results().get(key, [])
                save("fastlane", {key: [*kept, measure(name, mode, args.seconds, args.block)]})
                print(markdown([row(key, results()[key])]), flush=True)
    if args.table:
        print(markdown([row(key, starts) for key, starts in results().items()]))


def results() -> dict[str, list[dict[str, Any]]]:
    path = RESULTS / "fastlane.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    cases = [f"{name} {mode}" for name in CASES for mode in ("single", "grid")]
    return {key: kept[key] for key in cases if isinstance(kept.get(key), list)}


def measure(name: str, mode: str, seconds: float, block: float) -> dict[str, Any]:
    """One start: a training and its viewer, each a process; what they tell."""
    with tempfile.TemporaryDirectory(prefix="mosaic-fastlane-") as folder:
        (Path(folder) / "logs").mkdir()
        flag = Path(folder) / "flag"
        flag.write_bytes(bytes(8))
        here = Path(__file__).resolve()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(here.parent), os.environ.get("PYTHONPATH")])),
            "MOSAIC_RUN_ID": f"bench-{os.getpid()}",
            "MOSAIC_SHELL_PID": str(os.getpid()),  # somebody else follows the metrics, as in a real run
            "GYM_GUI_FASTLANE_ENABLED": "1",
            "GYM_GUI_FASTLANE_VIDEO_MODE": mode,
            "SDL_NO_SIGNAL_HANDLERS": "1",
            "SDL_VIDEODRIVER": "dummy",
            "MUJOCO_GL": os.environ.get("MUJOCO_GL", "egl"),
        }
        command = [sys.executable, str(here), "--seconds", str(seconds), "--block", str(block)]
        training = subprocess.Popen(
            [*command, "--inside", name, mode, str(flag)],
            env=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            with viewer(Path(folder) / "fastlane.json", flag, environment) as seen:
                told = training.communicate(timeout=seconds * 3 + 240)[0]
                if training.returncode:
                    raise SystemExit(f"{name}, {mode}: the training ended with {training.returncode}")
            return summary(json.loads(told.splitlines()[-1]), seen())
        finally:
            training.kill()
            training.wait()
            sweep(environment["MOSAIC_RUN_ID"])


# Looks while the flag is 1. What the flag says is asked again after each look: a sign of life that came too late would
# let the training believe for two seconds that it is watched.
VIEWER = """
import mmap, sys, time
from mosaic.contract.frames import FastLaneReader, RingError
from mosaic.contract.ring import Head
with open(sys.argv[2], "r+b") as file:
    flag = mmap.mmap(file.fileno(), 8)
reader, last = None, 0
frame = None
while flag[1] == 0:
    if reader is None or not flag[0]:
        time.sleep(1 / float(sys.argv[3]))
    else:
        reader.wait(last, 0.0 if frame is None else 1 / float(sys.argv[3]))
    if not flag[0]:
        continue
    try:
        reader = reader or FastLaneReader.open(sys.argv[1])
    except RingError:
        continue
    frame = reader.latest_frame(last)
    if not flag[0]:
        reader._ring.floats[Head.VIEWER_BEAT] = 0.0
    if frame is not None:
        last = frame.index
        if flag[2]:
            print(1000 * (time.monotonic() - frame.time))
"""


@contextlib.contextmanager
def viewer(record: Path, flag: Path, environment: dict[str, str]) -> Iterator[Any]:
    """A viewer as long as the training runs; gives what returns the ages it saw."""
    command = [sys.executable, "-c", VIEWER, str(record), str(flag), str(VIEWS_PER_SECOND)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    ages: list[float] = []
    try:
        yield lambda: ages
        with flag.open("r+b") as file:
            file.seek(1)
            file.write(b"\1")
        ages += [round(float(line), 2) for line in process.communicate(timeout=60)[0].splitlines()]
    finally:
        process.kill()
        process.wait()


def train(name: str, mode: str, flag: str, seconds: float, block: float) -> None:
    """In the training's own process: start it as the launcher does, with the turns put between it and its envs."""
    from cleanrl_worker.foreign import launcher

    launcher.open_fastlane(foreign=False)
    algo, env_id, params = CASES[name]
    module = importlib.import_module(f"cleanrl_worker.algorithms.{algo}")
    onlooker = importlib.import_module("cleanrl_worker.fastlane.vector_wrapper")
    onlooker.install()
    episodes = importlib.import_module("cleanrl_worker.envs.episodes")
    looking_on = episodes.onlooker.training
    given = module.Args(
        **{
            "env_id": env_id,
            "total_timesteps": 10**9,
            "num_envs": ENVS,
            "cuda": False,
            "run_dir": Path.cwd(),
            **params,
        },
        checkpoint_every=0,
    )
    turns: list[Turns] = []

    def taking_turns(envs: Any, args: Any) -> Any:
        turns.append(Turns(envs, looking_on(envs, args), args.num_steps, Path(flag), seconds, block))
        return turns[0]

    episodes.onlooker.training = taking_turns
    with contextlib.suppress(Over), contextlib.redirect_stdout(sys.stderr):
        module.main(given)
    print(json.dumps(turns[0].told()))


class Over(BaseException):
    """Enough is measured."""


class Turns:
    """A vector of environments that is stepped plainly, or through the live view, block by block."""

    def __init__(self, plain: Any, watched: Any, rollout: int, flag: Path, seconds: float, block: float) -> None:
        assert plain is not watched, "this case has no live view"
        self._plain, self._watched, self._rollout = plain, watched, rollout
        self.backend, self.num_envs = plain.backend, plain.num_envs
        self.single_observation_space = plain.single_observation_space
        self.single_action_space = plain.single_action_space
        self._lane = watched._view.lane
        self._lots = random.Random(1)
        with flag.open("r+b") as file:
            self._flag = mmap.mmap(file.fileno(), 8)
        self._seconds, self._block = seconds, block
        self._way, self._turn, self._rollouts = WATCHED, 0, 1
        self._left = rollout
        self._ends_at = float("inf")
        self._frozen: tuple[float, float] | None = None
        self._blocks: list[dict[str, Any]] = []
        self._helper: psutil.Process | None = None
        self._born, self._warm_rollouts = time.monotonic(), 0
        self._begin(WATCHED)

    def reset(self, seed: int) -> Any:
        return self._plain.reset(seed)

    def step(self, actions: Any) -> Any:
        if not self._left:
            self._next()
        self._left -= 1
        return self._step(actions)

    def close(self) -> None:
        self._watched.close()

    def told(self) -> dict[str, Any]:
        """The blocks, and what the ring takes."""
        self._flag[0] = 0
        writer = self._lane.writer
        with FastLaneReader.attach(writer.name) as reader:
            status = reader.status()
        largest = writer._current().words[ring.Head.CAPACITY]
        return {"blocks": self._blocks, "ring_frames": writer.size / largest, "frame": [status.width, status.height]}

    def _next(self) -> None:
        """The end of a block: note it, or, before the measurement, see whether all is warm."""
        now, cpu = time.monotonic(), time.process_time()
        spent = now - self._started
        self._left = self._rollout * self._rollouts
        if self._ends_at == float("inf"):
            self._warm_rollouts += 1
            if (self._written() < FIRST_FRAMES and now - self._born < 60) or now - self._born < 3:
                return
            per_rollout = (now - self._born) / max(1, self._warm_rollouts)
            self._rollouts = max(1, round(self._block / per_rollout))
            self._ends_at = now + self._seconds
            self._flag[2] = 1
        else:
            found = {"way": self._way, "seconds": spent, "cpu": cpu - self._cpu, "steps": self._steps_of_block}
            if self._way == WATCHED:
                found |= {"frames": self._written() - self._frames, "helper": self._helper_cpu() - self._helped}
            self._blocks.append(
                {key: value if isinstance(value, str) else round(value, 6) for key, value in found.items()}
            )
            self._turn += 1
        if now > self._ends_at:
            raise Over
        self._begin(OFF if self._turn % 2 == 0 else self._lots.choice((UNWATCHED, WATCHED)))

    def _begin(self, way: str) -> None:
        lane, beat = self._lane, self._lane.writer._current().floats
        if way != WATCHED and self._way == WATCHED:
            self._flag[0] = 0
            self._frozen = (lane.next - time.monotonic(), lane._clear_at - lane.clock())
        beat[ring.Head.VIEWER_BEAT] = time.monotonic() if way == WATCHED else 0.0
        if way == UNWATCHED:
            lane.next = 0.0
        if way == WATCHED:
            self._flag[0] = 1
            if self._frozen is not None:
                lane.next, lane._clear_at = time.monotonic() + self._frozen[0], lane.clock() + self._frozen[1]
        self._step = self._plain.step if way == OFF else self._watched.step
        # what happens every so many rollouts must not always fall into blocks of one way
        self._way, self._left = way, self._rollout * (self._rollouts + self._lots.randrange(2))
        self._steps_of_block = self._left * self.num_envs
        self._frames, self._helped = self._written(), self._helper_cpu() if way == WATCHED else 0.0
        self._started, self._cpu = time.monotonic(), time.process_time()

    def _written(self) -> int:
        return int(self._lane.writer._current().words[ring.Head.WRITTEN])

    def _helper_cpu(self) -> float:
        renderer = self._watched._view.camera._renderer
        if renderer is None:
            return 0.0
        times = psutil.Process(renderer._process.pid).cpu_times()
        return float(times.user + times.system)


def summary(measured: dict[str, Any], ages: list[float]) -> dict[str, Any]:
    """What is kept of a start: shares of the speed without a live view, pair by pair, and what the viewer got."""
    blocks = measured["blocks"]
    off = [block["steps"] / block["seconds"] for block in blocks if block["way"] == OFF]
    watched = [block for block in blocks if block["way"] == WATCHED]
    if not watched or not ages:
        raise SystemExit("nothing was watched: give more --seconds")
    return {
        "off_steps_per_second": round(median(off), 1),
        "by_clock": {way: shares(blocks, way, "seconds") for way in (UNWATCHED, WATCHED)},
        "by_cpu": {way: shares(blocks, way, "cpu") for way in (UNWATCHED, WATCHED)},
        **{f"watched_{what}": sum(block[what] for block in watched) for what in ("seconds", "frames", "helper")},
        "age_ms_by_5_percent": [round(float(age), 1) for age in np.quantile(ages, np.arange(21) / 20)],
        "frame": measured["frame"],
        "ring_frames": round(measured["ring_frames"], 3),
    }


def shares(blocks: list[dict[str, Any]], way: str, by: str) -> list[float]:
    """Speed of each block of a way as a share of the mean of the two off blocks around it."""
    return [
        round((before[by] / before["steps"] + after[by] / after["steps"]) / 2 / (here[by] / here["steps"]), 4)
        for before, here, after in zip(blocks, blocks[1:], blocks[2:], strict=False)
        if here["way"] == way and before["way"] == after["way"] == OFF
    ]


def row(key: str, starts: list[dict[str, Any]]) -> dict[str, Any]:
    """One case over all its starts."""
    name, _, mode = key.rpartition(" ")
    pairs = {
        (by, way): [share for start in starts for share in start[by][way]]
        for by in ("by_clock", "by_cpu")
        for way in (UNWATCHED, WATCHED)
    }
    seconds = sum(start["watched_seconds"] for start in starts)
    ages = [age for start in starts for age in start["age_ms_by_5_percent"]]
    width, height = starts[-1]["frame"]
    return {
        "environment": name,
        "mode": mode if mode == "single" else f"grid of {ENVS}",
        "off, steps/s": f"{median(start['off_steps_per_second'] for start in starts):,.0f}",
        **{way: told(pairs["by_clock", way], GOALS[way]) for way in (UNWATCHED, WATCHED)},
        **{f"{way}, by CPU time": told(pairs["by_cpu", way], GOALS[way]) for way in (UNWATCHED, WATCHED)},
        "frames/s": f"{sum(start['watched_frames'] for start in starts) / seconds:.1f}",
        "of": f"{width}×{height}",
        "age at the reader, ms": f"{median(ages):.0f} (95 %: {np.quantile(ages, 0.95):.0f})",
        "helper, cores": f"{sum(start['watched_helper'] for start in starts) / seconds:.2f}",
        "ring, frames": f"{max(start['ring_frames'] for start in starts):.2f}",
        "pairs": f"{len(pairs['by_clock', UNWATCHED])}, {len(pairs['by_clock', WATCHED])}",
    }


def told(found: list[float], goal: float) -> str:
    """The middle, its interval, and a ✓ where the middle reaches the goal."""
    if len(found) < 2:
        return "too few"
    low, high = bootstrap_interval([found], samples=2000)
    return f"{100 * iqm(found):.1f} % ({100 * low:.1f}–{100 * high:.1f}){' ✓' if iqm(found) >= goal else ''}"


if __name__ == "__main__":
    main()
