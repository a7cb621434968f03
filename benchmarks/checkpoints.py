"""What checkpoints cost in speed at the default schedule: whole trainings with and without them, and the time inside.

    python benchmarks/checkpoints.py
    python benchmarks/checkpoints.py --algo ppo --repetitions 5

Two figures. Trainings with the default `--checkpoint-every` and with 0, in alternation: time per step, because the
episodes differ (a checkpoint starts every environment anew), by the clock and in processor time, which others on the
machine disturb less. And, far less noisy, the time that a checkpoint takes by the clock (writing, and starting the
environments anew), as a share of the interval between two.

SAC and Atari take an hour from one default checkpoint to the next on two cores, so there is only the second figure:
SAC's checkpoint with as many new transitions as a default interval brings, collected without learning, and Atari's.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from report import markdown, save

from cleanrl_worker.run.training import Run
from mosaic.contract.metrics import read_rows


@dataclass(frozen=True)
class Case:
    """A training that passes a default checkpoint or two; the clock counts from step `warm_up` on."""

    algo: str
    env_id: str
    total: int
    warm_up: int
    speed_only: dict[str, Any] = field(default_factory=dict)
    """where a default interval takes too long: how to measure the speed, and (`saving`) the checkpoints"""
    saving: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("ppo", "CartPole-v1", 220_000, 5_000),
    Case("dqn", "CartPole-v1", 125_000, 11_000),
    Case("dqn_jax", "CartPole-v1", 125_000, 11_000),
    Case("ppo_continuous_action", "HalfCheetah-v5", 105_000, 4_000),
    Case(
        "sac_continuous_action",
        "HalfCheetah-v5",
        total=2_500,
        warm_up=600,
        speed_only={"learning_starts": 500, "checkpoint_every": 0},
        saving={"learning_starts": 10**9, "total_timesteps": 310_000},
    ),
    Case(
        "ppo_atari_envpool",
        "Pong-v5",
        total=3_072,
        warm_up=1_000,
        speed_only={"checkpoint_every": 0},
        saving={"checkpoint_every": 1_024, "checkpoint_episodes": 0, "total_timesteps": 2_100, "update_epochs": 1},
    ),
)


def main() -> None:
    """Run every case, print the table, keep the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", action="append", help="only this one (may be given again)")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.drive:
        print(json.dumps(drive(**json.loads(flags.drive))))
        return
    rows = []
    for case in CASES:
        if not flags.algo or case.algo in flags.algo:
            rows.append(measure(case, flags.repetitions))
            save("checkpoints", {f"{case.algo} {case.env_id}": rows[-1]})
    print(markdown([{name: _cell(value) for name, value in row.items()} for row in rows]))


def measure(case: Case, repetitions: int) -> dict[str, Any]:
    interval = importlib.import_module(f"cleanrl_worker.algorithms.{case.algo}").Args.checkpoint_every
    with_them, without, seconds = [], [], []
    for _ in range(repetitions):
        if case.speed_only:
            without.append(run(case, case.speed_only))
            seconds += run(case, case.saving)["seconds"]
        else:
            with_them.append(run(case, {}))
            seconds += with_them[-1]["seconds"]
            without.append(run(case, {"checkpoint_every": 0}))
    speed = median(found["steps_per_second"] for found in without)
    return {
        "training": f"{case.algo} {case.env_id}",
        "steps/s without": [found["steps_per_second"] for found in without],
        "steps/s with": [found["steps_per_second"] for found in with_them],
        "processor µs a step without": [found["processor_us"] for found in without],
        "processor µs a step with": [found["processor_us"] for found in with_them],
        "seconds per checkpoint": seconds,
        "share of an interval, %": 100 * median(seconds) / (interval / speed),
    }


def run(case: Case, options: dict[str, Any]) -> dict[str, Any]:
    """One training in a process of its own."""
    given = {
        "algo": case.algo,
        "env_id": case.env_id,
        "warm_up": case.warm_up,
        "total_timesteps": case.total,
        **options,
    }
    command = [sys.executable, __file__, f"--drive={json.dumps(given)}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{given} {found}", file=sys.stderr, flush=True)
    return found


def drive(algo: str, warm_up: int, **options: Any) -> dict[str, Any]:
    """Train here with a stopwatch around each checkpoint."""
    module = importlib.import_module(f"cleanrl_worker.algorithms.{algo}")
    seconds: list[float] = []
    checkpoint = Run.checkpoint

    def timed(self: Run, *given: Any) -> Any:
        began = time.monotonic()
        try:
            return checkpoint(self, *given)
        finally:
            seconds.append(time.monotonic() - began)

    Run.checkpoint = timed  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        module.main(module.Args(run_dir=Path(folder), cuda=False, **options))
        processor = time.process_time() - began
        rows = [row for row in read_rows(Path(folder) / "metrics.jsonl") if row["step"] >= warm_up]
    steps, took = (rows[-1][name] - rows[0][name] for name in ("step", "time"))
    return {"steps_per_second": steps / took, "processor_us": 1e6 * processor / rows[-1]["step"], "seconds": seconds}


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        digits = 3 if value and max(value) < 10 else 0
        return f"{median(value):,.{digits}f} ({min(value):,.{digits}f}–{max(value):,.{digits}f})" if value else "–"
    return "–" if value is None else f"{value:.2f}" if isinstance(value, float) else value


if __name__ == "__main__":
    main()
