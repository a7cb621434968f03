"""How well an algorithm learns: several seeds, the last 100 training episodes of each, against the published figure.

    python benchmarks/learning.py --algo ppo --env-id CartPole-v1 --seeds 1-5 --total-timesteps 500000
    python benchmarks/learning.py --algo ppo --env-id CartPole-v1 --label shared --set network=shared
    python benchmarks/learning.py --algo ppo --env-id MiniGrid-DoorKey-5x5-v0 --total-timesteps 100000 \
        --set num_envs=8 --set num_minibatches=8 --set learning_rate=1e-3 --set norm_adv=false --set ent_coef=0.002
    python benchmarks/learning.py --table                       # what has been measured so far

Runs stay in var/benchmarks/learning; a seed that ran to its end with the same flags is not run again.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from curves import GRID, IMAGES, LAST, Curve, episodes_of, smoothed, write_svg
from report import RESULTS, machine, markdown, save
from rows.published import find

from mosaic.contract.paths import resolve_home
from mosaic.stats import bootstrap_interval, iqm, verdict


def main() -> None:
    """Run the seeds that are missing, then say what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo")
    parser.add_argument("--env-id")
    parser.add_argument("--seeds", default="1-5", help="1-5, or 1,3,8")
    parser.add_argument("--total-timesteps", type=int, default=500_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="seeds at a time")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a flag of the algorithm")
    parser.add_argument("--label", default="", help="tells a variant from the default in tables and file names")
    parser.add_argument("--runs", type=Path, default=resolve_home() / "var" / "benchmarks" / "learning")
    parser.add_argument("--recorded", metavar="MACHINE", help="run nothing: the seeds' folders come from that machine")
    parser.add_argument("--again", action="store_true", help="run finished seeds again")
    parser.add_argument("--table", action="store_true", help="only print what has been measured so far")
    args = parser.parse_args()
    if not args.table:
        if not (args.algo and args.env_id):
            parser.error("--algo and --env-id say what is to learn what (or give --table)")
        measure(args)
    path = RESULTS / "learning.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    print(markdown([shown(name, row) for name, row in sorted(rows.items()) if name != "measured"]))


def measure(args: argparse.Namespace) -> None:
    """Run every seed, keep the scores and draw the curves."""
    key = " ".join(filter(None, (args.algo, args.env_id, args.label)))
    name = key.replace(" ", "-").replace("/", "-")
    folders = {seed: args.runs / name / f"seed-{seed}" for seed in seeds(args.seeds)}
    if not args.recorded:
        with ThreadPoolExecutor(min(args.jobs, os.cpu_count() or 1)) as pool:
            list(pool.map(lambda item: run(args, *item), folders.items()))
    episodes = {seed: episodes_of(folder) for seed, folder in folders.items()}
    short = [seed for seed, found in episodes.items() if len(found) < LAST]
    if short:
        print(f"note: fewer than {LAST} episodes ended with seeds {short}; all of theirs count", file=sys.stderr)
    scores = {seed: float(found[-LAST:, 1].mean()) for seed, found in episodes.items()}
    low, high = bootstrap_interval([list(scores.values())])
    figure = find(args.algo, args.env_id)
    told_by = figure and f"{figure.source}, {figure.steps:,} steps, {figure.env_id}"
    published = figure and {"mean": figure.mean, "std": figure.std, "source": told_by}
    grid = np.linspace(args.total_timesteps / GRID, args.total_timesteps, GRID)
    curve = Curve(key, grid, [smoothed(found, grid) for found in episodes.values()], published and published["mean"])
    image = write_svg(IMAGES / f"learning-{name}.svg", curve)
    result = {
        "algo": args.algo,
        "env_id": args.env_id,
        "label": args.label,
        "total_timesteps": args.total_timesteps,
        "flags": args.set,
        "scores": scores,
        "iqm": iqm(list(scores.values())),
        "mean": float(np.mean(list(scores.values()))),
        "std": float(np.std(list(scores.values()))),
        "interval": [low, high],
        "published": published,
        "image": str(image.relative_to(IMAGES.parents[1])),
        "when": {"date": machine()["date"], "machine": args.recorded} if args.recorded else machine(),
        "last_steps": {seed: int(found[-1, 0]) for seed, found in episodes.items()},
    }
    save("learning", {key: result})


def run(args: argparse.Namespace, seed: int, folder: Path) -> None:
    """Train one seed in its folder, unless it has been."""
    flags = [f"--{item.split('=')[0].replace('_', '-')}={item.partition('=')[2]}" for item in args.set]
    command = [f"--env-id={args.env_id}", f"--total-timesteps={args.total_timesteps}", f"--seed={seed}", *flags]
    done = folder / "finished.json"
    if not args.again and done.exists() and json.loads(done.read_text())["flags"] == command:
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "logs").mkdir(parents=True)  # where a hosted run leaves its notes
    start = time.time()
    # Hosted: the curve comes from metrics.jsonl, TensorBoard files would only be in the way.
    environment = {**os.environ, "MOSAIC_SHELL_PID": str(os.getpid())}
    with open(folder / "output.log", "wb") as log:
        child = subprocess.run(
            [sys.executable, "-m", f"cleanrl_worker.algorithms.{args.algo}", f"--run-dir={folder}", *command],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    if child.returncode:
        raise SystemExit(f"seed {seed} ended with code {child.returncode}; its output: {folder / 'output.log'}")
    seconds = time.time() - start
    done.write_text(json.dumps({"flags": command, "seconds": seconds}))
    print(f"{args.algo} {args.env_id} seed {seed}: {seconds:.0f} s", file=sys.stderr, flush=True)


def seeds(text: str) -> list[int]:
    """`1-5` or `1,3,8` as numbers."""
    first, dash, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else [int(seed) for seed in text.split(",")]


def shown(key: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return one line of the table."""
    published, (low, high) = row["published"], row["interval"]
    scores = list(row["scores"].values())
    digits = 3 if max(abs(low), abs(high)) <= 1 else 1  # grid worlds pay at most 1
    claim = verdict(scores, published["mean"], published["std"]) if published else "–"
    return {
        "algorithm and environment": key,
        "steps": f"{row['total_timesteps']:,}",
        "seeds": len(row["scores"]),
        "IQM": f"{row['iqm']:.{digits}f}",
        "95 % interval": f"{low:.{digits}f} to {high:.{digits}f}",
        "mean ± std": f"{row['mean']:.{digits}f} ± {row['std']:.{digits}f}",
        "published": told(published, digits) if published else "–",
        "reached": claim,
        "source": published["source"] if published else "–",
    }


def told(published: dict[str, Any], digits: int) -> str:
    """The published mean, with its spread where somebody has measured one."""
    spread = "" if published["std"] is None else f" ± {published['std']:.{digits}f}"
    return f"{published['mean']:.{digits}f}{spread}"


if __name__ == "__main__":
    main()
