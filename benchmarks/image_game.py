"""How many steps an image algorithm takes to solve our image game, over several seeds.

    python benchmarks/image_game.py --algo ppo_atari --seeds 1-3
    python benchmarks/image_game.py --algo dqn_atari --set learning_starts=2000 --set buffer_size=50000
    python benchmarks/image_game.py --table                     # what has been measured so far

A run is solved when its last 100 training episodes have a mean return of 0.9 or more; it is ended there. Playing at
random gives −0.8. Runs stay in var/benchmarks/image_game, and their curves are drawn into docs/img: of the seeds
that were asked for, those of earlier calls with the same flags included (--seeds 1-3 after --seeds 1 trains 2 and 3).
"""

import argparse
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from curves import GRID, IMAGES, LAST, Curve, episodes_of, smoothed, write_svg
from report import load, markdown, save

from mosaic.contract.metrics import Tail, is_episode
from mosaic.contract.paths import resolve_home

GAME, SOLVED = "mosaic/Catch-v0", 0.9
NAME = "image_game"


def main() -> None:
    """Train seed after seed until the game is solved, keep the figures as JSON, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo")
    parser.add_argument("--seeds", default="1-3", help="such as 1-3 or 1,4")
    parser.add_argument("--at-most", type=int, default=1_000_000, help="steps after which a seed is given up")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a flag of the algorithm")
    parser.add_argument("--again", action="store_true", help="train seeds again that were trained before")
    parser.add_argument("--table", action="store_true", help="only print what has been measured so far")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and the training with it
    if not args.table:
        if args.algo is None:
            parser.error("--algo or --table is needed")
        label = " ".join([args.algo, *args.set])
        known = {} if args.again else {each["seed"]: each for each in load(NAME).get(label, [])}
        seeds = seeds_of(args.seeds)
        folders = {seed: folder_of(label, seed) for seed in seeds}
        for seed, folder in folders.items():  # kept after each: the next one may take half an hour
            if seed not in known or not folder.exists():
                known[seed] = solve(args.algo, seed, args.at_most, args.set, folder)
                save(NAME, {label: list(known.values())})
        draw(args.algo, list(folders.values()))
    print(markdown(table()))


def folder_of(label: str, seed: int) -> Path:
    return resolve_home() / "var" / "benchmarks" / NAME / f"{label.replace(' ', '-').replace('/', '_')}-{seed}"


def solve(algo: str, seed: int, at_most: int, settings: list[str], folder: Path) -> dict[str, Any]:
    """One training, ended as soon as it has solved the game."""
    shutil.rmtree(folder, ignore_errors=True)
    flags = [f"--{name.replace('_', '-')}={value}" for name, _, value in (each.partition("=") for each in settings)]
    command = [sys.executable, "-P", "-m", f"cleanrl_worker.algorithms.{algo}", f"--env-id={GAME}", f"--seed={seed}"]
    command += [f"--total-timesteps={at_most}", f"--run-dir={folder}", "--checkpoint-every=0", *flags]
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        solved, best, step = follow(process, folder)
    finally:
        process.kill()
        process.wait()
    seconds = time.monotonic() - started
    print(f"{algo} seed {seed}: {'solved' if solved else 'not solved'} at step {step:,}, {seconds:.0f} s", flush=True)
    return {"seed": seed, "solved": solved, "steps": step, "best mean": best, "seconds": round(seconds, 1)}


def follow(process: "subprocess.Popen[bytes]", folder: Path) -> tuple[bool, float, int]:
    """Whether it was solved, the best mean of 100 episodes, and the step at which it was solved or ended."""
    tail, returns, best, step = Tail(folder / "metrics.jsonl"), [], -np.inf, 0
    while True:
        ended = process.poll() is not None
        for row in tail.read():
            step = row["step"]
            if is_episode(row):
                returns.append(row["charts/episodic_return"])
                mean = float(np.mean(returns[-LAST:])) if len(returns) >= LAST else -np.inf
                best = max(best, mean)
                if mean >= SOLVED:
                    return True, best, step
        if ended:
            return False, best, step
        time.sleep(0.2)


def draw(algo: str, folders: list[Path]) -> None:
    """The curve of every seed, up to where it was solved."""
    runs = [episodes_of(folder) for folder in folders]
    grid = np.linspace(0, max(run[-1, 0] for run in runs), GRID + 1)[1:]
    seeds = [np.where(grid <= run[-1, 0], smoothed(run, grid), np.nan) for run in runs]
    curve = Curve(f"{algo} {GAME}", grid, seeds, SOLVED, called="solved")
    print(f"drawn: {write_svg(IMAGES / f'learning-{algo}-Catch-v0.svg', curve)}")


def table() -> list[dict[str, Any]]:
    """A row for each algorithm and its flags."""
    rows = []
    for label, measured in load(NAME).items():
        if not isinstance(measured, list):
            continue
        solved = [each["steps"] for each in measured if each["solved"]]
        rows.append(
            {
                "algorithm": f"`{label}`",
                "solved": f"{len(solved)} of {len(measured)} seeds",
                "steps to solve": ", ".join(f"{steps:,}" for steps in solved),
                "seconds": ", ".join(f"{each['seconds']:.0f}" for each in measured),
            }
        )
    return rows


def seeds_of(text: str) -> list[int]:
    """The seeds that 1-3 or 1,4 stand for."""
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


if __name__ == "__main__":
    main()
