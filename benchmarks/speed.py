"""Steps per second of training, side by side with stable-baselines3 and, where given, a CleanRL checkout.

    python benchmarks/speed.py --sb3-python /tmp/sb3-venv/bin/python
    python benchmarks/speed.py --sb3-python … --cleanrl ~/cleanrl --cleanrl-python ~/cleanrl/.venv/bin/python
    python benchmarks/speed.py … --cleanrl-python /tmp/a/bin/python --cleanrl-python c51,ppo_atari=/tmp/b/bin/python
    python benchmarks/speed.py … --only ppo_atari --repetitions 1 --append     # one more, to those of before

All contenders train with CleanRL's hyper-parameters, one after the other, in alternation, so that a machine that slows
down slows all of them. The clock runs from the first update after the warm-up to the last one: imports, environment
set-up and the random phase of DQN and SAC are left out. How to make SB3's environment: docs/benchmarks.md.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from report import load, markdown, save

from mosaic.contract.metrics import read_rows
from mosaic.contract.tensorboard import ScalarReader

DRIVER = Path(__file__).with_name("sb3_driver.py")
CLEANRL_DRIVER = Path(__file__).with_name("cleanrl_driver.py")


@dataclass(frozen=True)
class Case:
    """One algorithm on one task: how far it trains, and from which step on the clock counts."""

    algo: str
    env_id: str
    total: int
    warm_up: int
    cleanrl_env_id: str
    flags: tuple[str, ...] = ()
    """for ours and CleanRL's: what makes a run short enough to be measured"""
    own_flags: tuple[str, ...] = ()
    ranks: int = 1
    """processes that share a training"""

    @property
    def name(self) -> str:
        return f"{self.algo} {self.env_id}"


SOON = ("--learning-starts=1000", "--buffer-size=20000")
ONE = ("--num-threads=1",)
RANKS = ("--world-size=2", "--local-num-envs=4")  # CleanRL's file shares its 8 environments among the ranks
BREAKOUT = "BreakoutNoFrameskip-v4"
# CleanRL is tied to Gymnasium 0.29, which has no v5; DQN and C51 start to learn at step 10,000, SAC at 5,000,
# TD3 and DDPG at 25,000.
CASES = (
    Case("ppo", "CartPole-v1", 100_000, 5_000, "CartPole-v1"),
    Case("dqn", "CartPole-v1", 60_000, 11_000, "CartPole-v1"),
    Case("c51", "CartPole-v1", 40_000, 11_000, "CartPole-v1"),
    Case("pqn", "CartPole-v1", 100_000, 5_000, "CartPole-v1"),
    Case("ppo_continuous_action", "HalfCheetah-v5", 20_480, 2_048, "HalfCheetah-v4"),
    Case("rpo_continuous_action", "HalfCheetah-v5", 20_480, 2_048, "HalfCheetah-v4"),
    Case("td3_continuous_action", "HalfCheetah-v5", 32_000, 25_500, "HalfCheetah-v4"),
    Case("ddpg_continuous_action", "HalfCheetah-v5", 32_000, 25_500, "HalfCheetah-v4"),
    Case("sac_continuous_action", "HalfCheetah-v5", 9_000, 5_500, "HalfCheetah-v4"),
    # the SAC of CleanRL's release is tied to Gym 0.23, whose MuJoCo tasks cannot be installed any more
    Case("sac_continuous_action", "Pendulum-v1", 9_000, 5_500, "Pendulum-v1"),
    Case("td3_continuous_action", "Pendulum-v1", 29_000, 25_500, "Pendulum-v1"),  # of TD3's the same holds
    # one thread for the network on all sides; EnvPool, which ours take for several games, steps them in its own threads
    Case("ppo_atari", BREAKOUT, 5_120, 1_024, BREAKOUT, (), ONE),
    Case("ppo_atari_multigpu", BREAKOUT, 5_120, 1_024, BREAKOUT, (), (*RANKS, *ONE), ranks=2),
    Case("ppo_atari_lstm", BREAKOUT, 4_096, 1_024, BREAKOUT, (), ONE),
    Case("dqn_atari", BREAKOUT, 3_000, 1_100, BREAKOUT, SOON, ONE),
    Case("c51_atari", BREAKOUT, 3_000, 1_100, BREAKOUT, SOON, ONE),
    Case("sac_atari", BREAKOUT, 1_800, 1_100, BREAKOUT, SOON, ONE),
)
NOT_IN_SB3 = ("c51", "pqn", "rpo_continuous_action", "c51_atari", "sac_atari", "ppo_atari_multigpu")
Contender = Callable[[Case, Path], float]


class Failure(Exception):
    """A peer that has no such algorithm, or cannot run it here: it is told, and the others go on."""


def main() -> None:
    """Run every case with every contender, print the table, keep the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="algorithms, or algorithm and task ('dqn CartPole-v1'), by commas")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the steps after the warm-up")
    parser.add_argument("--sb3-python", type=interpreter, help="an interpreter that has stable-baselines3")
    parser.add_argument("--cleanrl", type=Path, help="a CleanRL checkout")
    parser.add_argument(
        "--cleanrl-python", action="append", default=[], metavar="[ALGO,…=]PY", help="who runs it, or some of its files"
    )
    parser.add_argument(
        "--as-is", action=argparse.BooleanOptionalAction, default=True, help="also without OMP_NUM_THREADS"
    )
    parser.add_argument("--append", action="store_true", help="add these repetitions to those measured before")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a flag for ours alone")
    args = parser.parse_args()
    if bool(args.cleanrl) != bool(args.cleanrl_python):
        parser.error("--cleanrl DIR and --cleanrl-python PY go together")
    chosen = args.only.split(",") if args.only else [case.name for case in CASES]
    contenders = contenders_of(args)
    without_sb3 = {name: train for name, train in contenders.items() if "stable-baselines3" not in name}
    rows: list[dict[str, Any]] = []
    for case in (scaled(case, args.scale) for case in CASES if {case.algo, case.name} & set(chosen)):
        peers = without_sb3 if case.algo in NOT_IN_SB3 else contenders
        sizes = {"total_timesteps": case.total, "warm_up": case.warm_up, "flags": [*case.flags, *case.own_flags]}
        measured = before(case.name, sizes) if args.append else {}
        for repetition in range(args.repetitions):  # kept after each: a night's work is not lost with its last hour
            measured = joined(measured, measure(case, peers, repetition + 1))
            save("speed", {case.name: {**sizes, "steps_per_second": measured}})
        rows += table(case, measured)
    print(markdown(rows))


def before(name: str, sizes: dict[str, Any]) -> dict[str, list[float]]:
    """What was measured of the same case earlier; of other sizes it does not compare."""
    row = load("speed").get(name)
    if row is None:
        return {}
    if (known := {key: row.get(key, []) for key in sizes}) != sizes:
        raise SystemExit(f"--append: {name} was measured with {known}, not {sizes}; without it, it is measured anew")
    found: dict[str, list[float]] = row["steps_per_second"]
    return found


def joined(one: dict[str, list[float]], other: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: one.get(name, []) + other.get(name, []) for name in {**one, **other}}


def interpreter(given: str) -> str:
    """An absolute path, since contenders run in folders of their own; links stay, or a venv would be left."""
    found = shutil.which(given)
    if found is None:
        raise argparse.ArgumentTypeError(f"no interpreter at {given!r}")
    return str(Path(found).absolute())


def contenders_of(args: argparse.Namespace) -> dict[str, Contender]:
    """Ours first; each peer with one thread and, unless that is not wanted, as it comes."""
    found: dict[str, Contender] = {"ours": partial(ours, given=args.set)}
    threads = {"one thread": 1, "as is": 0} if args.as_is else {"one thread": 1}
    for label, count in threads.items():
        if args.sb3_python:
            found[f"stable-baselines3, {label}"] = partial(sb3, python=args.sb3_python, threads=count)
        if args.cleanrl:
            peer = partial(cleanrl, checkout=args.cleanrl, pythons=by_algo(args.cleanrl_python), threads=count)
            found[f"CleanRL, {label}"] = peer
    return found


def by_algo(given: list[str]) -> dict[str, str]:
    """`c51,dqn=PY` and a plain PY, for all others, as algorithm -> interpreter; the others' key is empty."""
    pairs = (item.rpartition("=")[::2] for item in given)
    return {algo: interpreter(path) for algos, path in pairs for algo in algos.split(",")}


def measure(case: Case, contenders: dict[str, Contender], repetition: int) -> dict[str, list[float]]:
    """Steps per second of one repetition, in which the contenders take turns."""
    measured: dict[str, list[float]] = {}
    for name, train in contenders.items():
        with tempfile.TemporaryDirectory(prefix="mosaic-speed-") as folder:
            try:
                measured[name] = [train(case, Path(folder))]
            except Failure as error:
                if name == "ours":
                    raise SystemExit(str(error)) from error
                print(f"{case.name}, {name}: {error}", file=sys.stderr, flush=True)
                continue
        print(f"{case.name}, {name}, {repetition}: {measured[name][0]:,.0f}", file=sys.stderr, flush=True)
    return measured


def table(case: Case, measured: dict[str, list[float]]) -> list[dict[str, Any]]:
    """A row per contender; the ratio is ours over theirs."""
    best = median(measured["ours"])
    return [
        {
            "training": case.name,
            "contender": name,
            "steps/s (median)": f"{median(speeds):,.0f}",
            "min–max": f"{min(speeds):,.0f}–{max(speeds):,.0f}",
            "repetitions": len(speeds),
            "ours is faster by": "" if name == "ours" else f"{best / median(speeds):.2f}×",
        }
        for name, speeds in measured.items()
    ]


def scaled(case: Case, factor: float) -> Case:
    """The same case, longer or shorter after its warm-up."""
    total = case.warm_up + int((case.total - case.warm_up) * factor)
    return replace(case, total=total)


# -- the contenders -------------------------------------------------------------------------------------------------


def ours(case: Case, folder: Path, given: list[str]) -> float:
    """Our algorithm file alone, its TensorBoard thread included, as CleanRL's scripts write TensorBoard too."""
    command = [sys.executable, "-m", f"cleanrl_worker.algorithms.{case.algo}", f"--run-dir={folder}"]
    command += [f"--env-id={case.env_id}", f"--total-timesteps={case.total}", "--no-cuda", *case.flags, *case.own_flags]
    command += [f"--{item.partition('=')[0].replace('_', '-')}={item.partition('=')[2]}" for item in given]
    execute(command, folder, threads=0)
    rows = read_rows(folder / "metrics.jsonl")
    updates = [(row["step"], row["time"]) for row in rows if any(tag.startswith("losses/") for tag in row)]
    return between(updates, case)


def sb3(case: Case, folder: Path, python: str, threads: int) -> float:
    """The driver beside this file, in SB3's interpreter."""
    command = [python, str(DRIVER.resolve()), f"--algo={case.algo}", f"--env-id={case.env_id}"]
    command += [f"--total-timesteps={case.total}", f"--warm-up={case.warm_up}", f"--threads={threads}"]
    output = execute(command, folder, threads)
    return float(json.loads(output.strip().splitlines()[-1])["steps_per_second"])


def cleanrl(case: Case, folder: Path, checkout: Path, pythons: dict[str, str], threads: int) -> float:
    """CleanRL's script of the same name, unchanged; the times are those of its charts/SPS scalars."""
    script = (checkout / "cleanrl" / f"{case.algo}.py").resolve()
    if not script.parent.exists():
        raise SystemExit(f"no {script.parent}; --cleanrl takes the checkout's top folder")
    python = pythons.get(case.algo, pythons.get(""))
    if not script.exists() or python is None:
        raise Failure(f"no {script}, or no interpreter for it")
    how = [str(script)]
    if case.ranks > 1:  # the driver stands in for the Gym and ale-py of then, which need an older Python
        how = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
        how += [str(CLEANRL_DRIVER.resolve()), str(script)]
    command = [python, *how, f"--env-id={case.cleanrl_env_id}", f"--total-timesteps={case.total}", *case.flags]
    # its release on PyPI parses with argparse, its repository with tyro
    command.append("--cuda=False" if "import argparse" in script.read_text() else "--no-cuda")
    execute(command, folder, threads)
    files = sorted(folder.glob("runs/*/events.out.tfevents.*"))
    scalars = [scalar for file in files for scalar in ScalarReader(file).read()]
    return between([(step, wall_time) for wall_time, step, tag, _ in scalars if tag == "charts/SPS"], case)


def between(updates: list[tuple[int, float]], case: Case) -> float:
    """Steps per second between the first update after the warm-up and the last one."""
    counted = [update for update in updates if update[0] >= case.warm_up]
    if len(counted) < 2:
        raise SystemExit(f"{case.name}: fewer than two updates after the warm-up; give a larger --scale")
    (first, start), (last, end) = counted[0], counted[-1]
    return (last - first) / (end - start)


def execute(command: list[str], folder: Path, threads: int) -> str:
    """Run to the end in a folder of its own; a failure shows the end of its stderr."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment.pop(name, None)
        if threads:
            environment[name] = str(threads)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
