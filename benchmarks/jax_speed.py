"""Steps per second of every JAX file beside its torch sibling, in one run, taking turns; and ppo_jax as a whole.

    python benchmarks/jax_speed.py
    python benchmarks/jax_speed.py --only ppo_jax,dqn_jax --repetitions 5
    python benchmarks/jax_speed.py --whole

Both train with the same hyper-parameters, on the CPU; the clock runs from the first update after the warm-up to the
last one, so that neither imports nor compiling count. `--whole` counts them: it starts ppo_jax with CleanRL's 500,000
steps on CartPole-v1, first with an empty compilation cache and then with what the first left there, and looks at the
clock from the command to the end of the process, whose last deed is the policy file.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from report import markdown, save
from speed import Case, execute, measure, ours, scaled

from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from mosaic.contract.metrics import read_rows

NAME = "jax_speed"


@dataclass(frozen=True)
class Race:
    """What both of a pair train on: how far, from which step on the clock counts, and with which flags."""

    env_id: str
    total: int
    warm_up: int
    flags: tuple[str, ...] = ()


# A replay memory of a million frames would only take memory here; learning starts when a batch is there.
FRAMES = ("buffer_size=10000", "learning_starts=500")
LESSON = (
    "buffer_size=10000",
    "teacher_steps=200",
    "offline_steps=100",
    "learning_starts=50",
    "teacher_eval_episodes=1",
)
RACES = {
    "ppo": Race("CartPole-v1", 200_000, 20_000),
    "dqn": Race("CartPole-v1", 60_000, 11_000),
    "c51": Race("CartPole-v1", 40_000, 11_000),
    "td3_continuous_action": Race("HalfCheetah-v5", 32_000, 25_500),
    "ddpg_continuous_action": Race("HalfCheetah-v5", 32_000, 25_500),
    "sac_continuous_action": Race("HalfCheetah-v5", 9_000, 5_500),
    "ppo_atari_envpool": Race("Pong-v5", 6_144, 1_024),
    "dqn_atari": Race("Pong-v5", 2_500, 700, FRAMES),
    "c51_atari": Race("Pong-v5", 2_500, 700, FRAMES),
    # its teacher is the reader's own: --set teacher_policy_path=…
    "qdagger_dqn_atari_impalacnn": Race("Pong-v5", 700, 300, LESSON),
}


def main() -> None:
    """Race the pairs, print the table, keep the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="JAX files, by commas")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the steps after the warm-up")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a flag for both of each pair")
    parser.add_argument("--whole", action="store_true", help="time ppo_jax from command to policy file instead")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mosaic-jax-cache-") as cache:
        keep_compiled(Path(cache))
        if args.whole:
            print(markdown(whole(args.repetitions)))
            return
        pairs = {name: sibling for name in DEFAULT_ALGO_REGISTRY if (sibling := sibling_of(name))}
        chosen = args.only.split(",") if args.only else list(pairs)
        if unknown := set(chosen) - set(pairs):
            parser.error(
                f"no JAX file with a torch sibling: {', '.join(sorted(unknown))}; there are {', '.join(pairs)}"
            )
        if not args.only and "teacher_policy_path" not in "".join(args.set):
            chosen = [name for name in chosen if not name.startswith("qdagger")]
        rows = [row for name in chosen for row in race(name, pairs[name], args)]
    print(markdown(rows))


def sibling_of(name: str) -> str | None:
    """The torch file that a JAX file is written after; None for what is no JAX file."""
    sibling = re.sub(r"(_xla)?_jax(_scan)?", "", name)
    return sibling if sibling != name and sibling in DEFAULT_ALGO_REGISTRY else None


def race(name: str, sibling: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for the JAX file and one for its sibling."""
    told = RACES[sibling]
    case = scaled(Case(name, told.env_id, told.total, told.warm_up, told.env_id), args.scale)
    flags = [*told.flags, *args.set]

    def train(case: Case, folder: Path, algo: str) -> float:
        return ours(Case(algo, case.env_id, case.total, case.warm_up, case.env_id), folder, flags)

    both = {algo: partial(train, algo=algo) for algo in (name, sibling)}
    turns = [measure(case, both, repetition + 1) for repetition in range(args.repetitions)]
    measured = {algo: [speed for turn in turns for speed in turn.get(algo, [])] for algo in both}
    if not all(measured.values()):  # why was said when it failed; the others go on
        return []
    ratio = median(measured[name]) / median(measured[sibling])
    save(NAME, {case.name: {"total_timesteps": case.total, "warm_up": case.warm_up, "steps_per_second": measured}})
    return [
        {
            "training": f"`{algo}` {case.env_id}",
            "steps/s (median)": f"{median(speeds):,.0f}",
            "min–max": f"{min(speeds):,.0f}–{max(speeds):,.0f}",
            "repetitions": len(speeds),
            "JAX over torch": f"{ratio:.2f}×" if algo == name else "",
        }
        for algo, speeds in measured.items()
    ]


def whole(repetitions: int) -> list[dict[str, Any]]:
    """Seconds of ppo_jax on CartPole-v1, 500,000 steps, from the command to the end of the process."""
    rows = []
    for repetition in range(repetitions):
        with tempfile.TemporaryDirectory(prefix="mosaic-jax-cache-") as cache:
            keep_compiled(Path(cache))
            for how in ("cold", "warm"):
                rows.append({"cache": how, **one_whole(repetition + 1)})
                print(rows[-1], file=sys.stderr, flush=True)
    save(NAME, {"ppo_jax CartPole-v1, 500,000 steps, whole": rows})
    return rows


def one_whole(seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="mosaic-speed-") as folder:
        command = [sys.executable, "-m", "cleanrl_worker.algorithms.ppo_jax", f"--run-dir={folder}", f"--seed={seed}"]
        started = time.monotonic()
        told = execute([*command, "--save-model", "--no-cuda"], Path(folder), threads=0)
        seconds = time.monotonic() - started
        (policy,) = Path(folder).glob("runs/*/ppo_jax.cleanrl_model")
        rows = read_rows(Path(folder) / "metrics.jsonl")
        returns = [row["charts/episodic_return"] for row in rows if "charts/episodic_return" in row][-100:]
        compiled = re.search(r"compiled the iteration in ([\d.]+) s", told)
    assert policy.name and compiled
    known = {"seed": seed, "seconds": round(seconds, 1), "compiling": float(compiled[1])}
    return {**known, "steps/s": f"{rows[-11]['charts/SPS']:,}", "return": round(sum(returns) / len(returns), 1)}


def keep_compiled(folder: Path) -> None:
    """As the worker does it (`cleanrl_worker/supervise/process.py`), but in this folder."""
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"


if __name__ == "__main__":
    main()
