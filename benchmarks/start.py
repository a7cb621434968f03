"""Seconds from `python -m cleanrl_worker.cli …` to the first update; the dry run's seconds; the shell's memory.

    python benchmarks/start.py --repetitions 3

The first update is when the network changes for the first time: a script of ours in the algorithm's place notes the
first step of its optimizer. The first loss is the time in the first row of metrics.jsonl that holds one, which comes
after a whole iteration of PPO. Off-policy algorithms are told to learn from step 500 on: what counts is the start, not
their random phase.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from report import markdown, save

from mosaic.contract.metrics import read_rows
from mosaic.contract.paths import RunPaths

OFF_POLICY = {"learning_starts": 500}
RUNS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", 2_048, {}),
    "ppo_continuous_action": ("HalfCheetah-v5", 4_096, {}),
    "dqn": ("CartPole-v1", 2_000, OFF_POLICY),
    "dqn_jax": ("CartPole-v1", 2_000, OFF_POLICY),
    "sac_continuous_action": ("HalfCheetah-v5", 700, OFF_POLICY),
    "ppo_atari_envpool": ("Pong-v5", 2_048, {}),
}
# Run by the worker instead of the algorithm's file: the same main(), and the time of the optimizer's first step.
NOTING = """
import pathlib, sys, time
from cleanrl_worker.learn.optim import FlatAdam
from cleanrl_worker.algorithms import {algo}

apply = FlatAdam.apply
def noting(self, *given):
    apply(self, *given)
    FlatAdam.apply = apply
    pathlib.Path({noted!r}).write_text(str(time.time()))
FlatAdam.apply = noting
sys.argv += {flags!r}
if __name__ == "__main__":
    {algo}.main()
"""


def main() -> None:
    """Start every algorithm several times, print the table, keep the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(RUNS), help="algorithms, separated by commas")
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()
    rows = []
    for algo in args.only.split(","):
        measured = [start(algo) for _ in range(args.repetitions)]
        dry = [dry_run(algo) for _ in range(args.repetitions)]
        row: dict[str, Any] = {"algorithm": f"{algo} {RUNS[algo][0]}"}
        updates = [first_update(algo) for _ in range(args.repetitions)] if not algo.endswith("_jax") else []
        row["first update, s"] = spread(updates, 2) if updates else "–"
        row["first loss, s"] = spread([m["first_loss"] for m in measured], 2)
        row["first row of any kind, s"] = spread([m["first_row"] for m in measured], 2)
        row["dry run, s"] = spread(dry, 2)
        row["shell's peak memory, MB"] = spread([m["shell_mb"] for m in measured], 0)
        row["algorithm's peak memory, MB"] = spread([m["algorithm_mb"] for m in measured], 0)
        rows.append(row)
        save("start", {algo: {"runs": measured, "first_update": updates, "dry_run": dry}})
    print(markdown(rows))


def start(algo: str) -> dict[str, float]:
    """One short run through the worker's command line."""
    with tempfile.TemporaryDirectory(prefix="mosaic-start-") as home:
        began = time.time()
        shell = worker(home, config_of(algo))
        memory = Memory(shell.pid)
        _, errors = shell.communicate()
        if shell.returncode:
            raise SystemExit(f"{algo} ended with code {shell.returncode}: {errors.decode()[-1000:]}")
        rows = read_rows(RunPaths(f"start-{algo}", home).metrics)
        updates = [row["time"] for row in rows if any(tag.startswith("losses/") for tag in row)]
        return {
            "first_loss": updates[0] - began,
            "first_row": rows[0]["time"] - began,
            "shell_mb": memory.shell / 1e6,
            "algorithm_mb": memory.algorithm / 1e6,
        }


def first_update(algo: str) -> float:
    """Seconds from the worker's command line to the first step of the optimizer."""
    with tempfile.TemporaryDirectory(prefix="mosaic-start-") as home:
        script, noted = Path(home) / "noting.py", Path(home) / "noted"
        env_id, steps, params = RUNS[algo]
        flags = {"env_id": env_id, "total_timesteps": steps, "seed": 1, **params}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        script.write_text(NOTING.format(algo=algo, noted=str(noted), flags=words))
        began = time.time()
        shell = worker(home, {**config_of(algo), "algo": str(script)})
        _, errors = shell.communicate()
        if shell.returncode:
            raise SystemExit(f"{algo} ended with code {shell.returncode}: {errors.decode()[-1000:]}")
        return float(noted.read_text()) - began


def worker(home: str, config: dict[str, Any]) -> subprocess.Popen[bytes]:
    """The worker with this config, its runs below `home`."""
    path = Path(home) / "run.json"
    path.write_text(json.dumps(config))
    return subprocess.Popen(
        [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(path)],
        env={**os.environ, "MOSAIC_HOME": home},
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def dry_run(algo: str) -> float:
    """Seconds that `--dry-run --emit-summary` takes."""
    with tempfile.TemporaryDirectory(prefix="mosaic-start-") as home:
        config = Path(home) / "run.json"
        config.write_text(json.dumps(config_of(algo)))
        command = [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(config), "--dry-run", "--emit-summary"]
        began = time.perf_counter()
        subprocess.run(command, env={**os.environ, "MOSAIC_HOME": home}, cwd=home, check=True, capture_output=True)
        return time.perf_counter() - began


def config_of(algo: str) -> dict[str, Any]:
    """A flat worker config of a short run."""
    env_id, steps, params = RUNS[algo]
    config: dict[str, Any] = {"run_id": f"start-{algo}", "algo": algo, "env_id": env_id, "total_timesteps": steps}
    return {**config, "seed": 1, "extras": {"algo_params": params} if params else {}}


class Memory:
    """The largest resident size of the shell, and of the processes below it, looked at ten times a second."""

    def __init__(self, pid: int) -> None:
        self.shell = self.algorithm = 0
        self._pid = pid
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        try:
            shell = psutil.Process(self._pid)
            while True:
                self.shell = max(self.shell, shell.memory_info().rss)
                self.algorithm = max(self.algorithm, sum(map(_resident, shell.children(recursive=True))))
                time.sleep(0.1)
        except psutil.Error:
            return  # it has ended


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0  # a child that ended in between


def spread(values: list[float], digits: int) -> str:
    """Median and range."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


if __name__ == "__main__":
    main()
