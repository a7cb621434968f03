"""The cost of the finite guard: whole trainings, alternately with it and without its checks.

    python benchmarks/guard.py
    python benchmarks/guard.py --algo ppo --repetitions 9 --cuda

Steps per second by the clock, and processor time per step, which other work on the machine disturbs less.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from report import markdown, save

from cleanrl_worker.envs.episodes import Episode, Episodes
from cleanrl_worker.envs.finite import Guard
from mosaic.contract.metrics import read_rows

# algorithm, environment, the step from which the clock counts, options
CASES: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    ("ppo", "CartPole-v1", 20_000, {"total_timesteps": 200_000}),
    ("dqn", "CartPole-v1", 20_000, {"total_timesteps": 120_000}),
    ("ppo_continuous_action", "HalfCheetah-v5", 10_000, {"total_timesteps": 100_000}),
    ("sac_continuous_action", "HalfCheetah-v5", 2_000, {"total_timesteps": 6_000, "learning_starts": 1_000}),
    ("ppo_jax", "CartPole-v1", 1_000_000, {"total_timesteps": 8_000_000, "num_envs": 256}),
)


def main() -> None:
    """Run every case, print the table, keep the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", action="append", help="only this one (may be given again)")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--cuda", action="store_true", help="train on the GPU")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.drive:
        print(json.dumps(drive(**json.loads(flags.drive))))
        return
    rows = []
    for case in CASES:
        if not flags.algo or case[0] in flags.algo:
            rows.append(measure(case, flags.repetitions, flags.cuda))
            save("guard", {f"{case[0]} {case[1]}{' GPU' if flags.cuda else ''}": rows[-1]})
    print(markdown([{name: _cell(value) for name, value in row.items()} for row in rows]))


def measure(case: tuple[str, str, int, dict[str, Any]], repetitions: int, cuda: bool) -> dict[str, Any]:
    """Train with and without the guard, one after the other, and return the figures of both."""
    algo, env_id, warm_up, options = case
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for number in range(repetitions):
        for guarded in (True, False) if number % 2 else (False, True):
            given = {"algo": algo, "env_id": env_id, "warm_up": warm_up, "cuda": cuda, "guarded": guarded, **options}
            command = [sys.executable, __file__, f"--drive={json.dumps(given)}"]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[guarded].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"{given} {found[guarded][-1]}", file=sys.stderr, flush=True)
    row: dict[str, Any] = {"training": f"{algo} {env_id}"}
    for name in ("steps/s", "processor µs a step"):
        row |= {f"{name} {way}": [one[name] for one in found[way == "with"]] for way in ("with", "without")}
    row["speed with the guard, %"] = 100 * median(row["steps/s with"]) / median(row["steps/s without"])
    return row


def drive(algo: str, warm_up: int, guarded: bool, **options: Any) -> dict[str, float]:
    """Train here, with or without the guard."""
    module = importlib.import_module(f"cleanrl_worker.algorithms.{algo}")
    if not guarded:
        Episodes.add = _add_unguarded  # type: ignore[method-assign]
        Episodes.look = lambda self, obs: None  # type: ignore[method-assign]
        Guard.check_losses = lambda self, values, step: None  # type: ignore[method-assign]
        Guard.check_weights = lambda self, arrays, step: True  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        module.main(module.Args(run_dir=Path(folder), **options))
        processor = time.process_time() - began
        rows = [row for row in read_rows(Path(folder) / "metrics.jsonl") if row["step"] >= warm_up]
    steps, took = (rows[-1][name] - rows[0][name] for name in ("step", "time"))
    return {"steps/s": steps / took, "processor µs a step": 1e6 * processor / rows[-1]["step"]}


def _add_unguarded(
    self: Episodes, rewards: np.ndarray, ends: np.ndarray | None, obs: np.ndarray | None = None
) -> list[Episode]:
    self.step += len(rewards)
    self.log.add(rewards, ends)
    self.returns += rewards
    self.lengths += 1
    if ends is None or not ends.any():
        return []
    finished = [Episode(int(i), float(self.returns[i]), int(self.lengths[i])) for i in np.flatnonzero(ends)]
    self.returns[ends] = 0.0
    self.lengths[ends] = 0
    return finished


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return f"{median(value):,.0f} ({min(value):,.0f}–{max(value):,.0f})"
    return f"{value:.1f}" if isinstance(value, float) else value


if __name__ == "__main__":
    main()
