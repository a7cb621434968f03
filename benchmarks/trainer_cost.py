"""What telemetry and the daemon cost a run, by switching them off and on within one run; parts of trainer.py."""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from daemons import compare, cpu_seconds, home, interval, serving

from cleanrl_worker.config.config import parse_worker_config
from cleanrl_worker.runtime import CleanRLWorkerRuntime
from cleanrl_worker.supervise.process import Signals
from cleanrl_worker.supervise.supervisor import Attempt
from cleanrl_worker.telemetry.emitter import LifecycleEmitter, MetricsRelay
from mosaic.contract.events import EventLog, replay
from mosaic.contract.metrics import read_rows
from mosaic.contract.paths import RunPaths
from mosaic.trainer.states import State

# A policy that learns nothing: its episodes stay some 22 steps long, the most events that CartPole gives.
CONFIG = {
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "total_timesteps": 100_000_000,
    "seed": 1,
    "extras": {"algo_params": {"learning_rate": 1e-12}, "fastlane_video_mode": "off"},
}
# What a block begins with belongs to the switch.
EDGE_SECONDS = 0.2


def telemetry(args: argparse.Namespace) -> dict[str, Any]:
    """Default telemetry switched off and on; CPU time of shell and algorithm for the same number of steps."""
    with home() as folder:
        blocks = folder / "blocks.json"
        command = [sys.executable, __file__, str(blocks), str(args.block), str(args.switching)]
        subprocess.run(command, env={**os.environ, "MOSAIC_HOME": str(folder)}, stdout=subprocess.DEVNULL, check=True)
        marks = np.array(json.loads(blocks.read_text()))
        events = sum(event.event in ("episode", "metrics") for event in replay(RunPaths("switched", folder).events))
    spans = np.diff(marks, axis=0)
    shell, algorithm = (spans[:, column] / spans[:, 2] for column in (0, 1))
    both = shell + algorithm
    off, on = slice(0, None, 2), slice(1, None, 2)
    length = min(len(shell[on]), len(shell[off]))
    more = (shell[on][:length] - shell[off][:length]) / both[off][:length]
    return {
        "steps/s, events/s while on": f"{spans[:, 2].sum() / spans[:, 3].sum():.0f}, {events / spans[on, 3].sum():.0f}",
        "CPU per step of shell and algorithm, on beside off": compare(both[on], both[off]),
        "CPU per step of the shell alone, more when on, as a share of both": interval(more),
        "the shell's share of a core, off and on": " and ".join(
            f"{spans[which, 0].sum() / spans[which, 3].sum():.2%}" for which in (off, on)
        ),
    }


def stopping(args: argparse.Namespace) -> dict[str, Any]:
    """The daemon stopped (SIGSTOP) and let go on in turn while it has one run; seconds of that run per step."""
    with home() as folder, serving(folder) as (client, daemon):
        run = client.submit_run(CONFIG)
        while client.get_run(run.run_id).step < 20_000:
            time.sleep(0.2)
        marks = [time.time()]
        used = []
        try:
            while len(marks) * args.block < args.switching:
                daemon.send_signal(signal.SIGCONT if len(marks) % 2 == 0 else signal.SIGSTOP)
                before = cpu_seconds(daemon.pid)
                time.sleep(args.block)
                used.append(cpu_seconds(daemon.pid) - before)
                marks.append(time.time())
        finally:
            daemon.send_signal(signal.SIGCONT)
        client.cancel_run(run.run_id, 5)
        assert client.wait_run(run.run_id, 60).state == State.CANCELLED
        rows = read_rows(RunPaths(run.run_id, folder).metrics)
    times, steps = (np.array([row[key] for row in rows], float) for key in ("time", "step"))
    reached = np.interp([[mark + EDGE_SECONDS, end] for mark, end in itertools.pairwise(marks)], times, steps)
    seconds = (np.diff(marks) - EDGE_SECONDS) / (reached[:, 1] - reached[:, 0])
    return {
        "steps/s while it is stopped (median)": round(float(1 / np.median(seconds[0::2]))),
        "seconds per step, daemon going on beside stopped": compare(seconds[1::2], seconds[0::2]),
        "daemon's share of a core in blocks where it goes on": f"{sum(used[1::2]) / args.block / len(used[1::2]):.2%}",
    }


def delay(args: argparse.Namespace) -> dict[str, Any]:
    """How old the newest number is that a client can read while a run logs some forty rows a second."""
    with home() as folder, serving(folder) as (client, _):
        run = client.submit_run(CONFIG)
        while client.get_run(run.run_id).step < 20_000:
            time.sleep(0.2)
        ages = []
        end = time.monotonic() + args.switching / 6
        while time.monotonic() < end:
            (series,) = client.get_metrics(run.run_id, ["charts/SPS"], max_points=2)
            ages.append(time.time() - float(series.times[-1]))
            time.sleep(0.02)
        client.cancel_run(run.run_id, 5)
        client.wait_run(run.run_id, 60)
    return {
        "age of the newest number, s (median, 99 of 100, worst)": ", ".join(
            f"{value:.2f}" for value in (*np.percentile(ages, [50, 99]), max(ages))
        )
    }


class Switching(MetricsRelay):
    """A relay whose events are off in every other block; marks what was used until then."""

    def __init__(self, attempt: Attempt, paths: RunPaths, block: float, seconds: float) -> None:
        super().__init__(paths, attempt._hold, events=False, tensorboard=None)
        self._attempt, self._block = attempt, block
        self._due, self._end = time.monotonic() + 5.0, time.monotonic() + 5.0 + seconds  # imports come first
        self.marks: list[tuple[float, float, int, float]] = []

    def poll(self) -> None:
        super().poll()
        now = time.monotonic()
        if now < self._due or self.progress.step == 0:
            return
        self._attempt._emitter.flush()
        algorithm = cpu_seconds(self._attempt._alive.pid)
        self._events = bool(self.marks) and not self._events
        self.marks.append((time.process_time(), algorithm, self.progress.step, now))
        self._due = now + self._block
        if now >= self._end:
            self._attempt._signals.received.append(signal.SIGTERM)
            self._due = self._end = float("inf")


def work(blocks: Path, block: float, seconds: float) -> None:
    """A worker's shell, as its command starts it, but for its relay."""
    config = parse_worker_config({**CONFIG, "run_id": "switched"})
    runtime = CleanRLWorkerRuntime(config)
    runtime.paths.create()
    emitter = LifecycleEmitter(EventLog(runtime.paths.events, config.run_id))
    with Signals() as signals:
        attempt = Attempt(config, runtime.plan, runtime.paths, emitter, signals)
        attempt._relay = relay = Switching(attempt, runtime.paths, block, seconds)
        try:
            attempt.to_end((), None, 30.0, 0.5)
        except subprocess.CalledProcessError:
            blocks.write_text(json.dumps(relay.marks))  # it was ended by us
    emitter.close()


if __name__ == "__main__":
    work(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
