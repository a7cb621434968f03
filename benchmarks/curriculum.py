"""What a curriculum is worth: the same steps through its stages and on the goal alone, then both evaluated on the goal.

    python benchmarks/curriculum.py --schedule doorkey --seeds 1-5 --total-timesteps 1000000
    python benchmarks/curriculum.py --schedule obstructed --seeds 1-3 --ways curriculum
    python benchmarks/curriculum.py --table                     # what has been measured so far

Runs stay in var/benchmarks/curriculum; a seed that ran to its end with the same config is not run again.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from curves import GRID, IMAGES, Curve, episodes_of, smoothed, write_svg
from learning import seeds
from report import RESULTS, machine, markdown, save

from cleanrl_worker.envs.curriculum import BABYAI_DOORKEY_CURRICULUM, BABYAI_GOTO_CURRICULUM
from mosaic.contract.metrics import read_rows
from mosaic.contract.paths import RunPaths, resolve_home
from mosaic.stats import bootstrap_interval, iqm


def _rooms(number: int, size: int, **stage: Any) -> dict[str, Any]:
    return {"env_id": f"MiniGrid-MultiRoom-N{number}-S{size}-v0", **stage}


def _mastered(name: str, least: int, most: int, episode_return: float) -> dict[str, Any]:
    """A stage that is left when it is known well and long enough, or after so many steps."""
    condition = f"steps>={least} & episode_return>={episode_return}"
    return {"env_id": f"MiniGrid-{name}-v0", "steps": most, "condition": condition}


SCHEDULES = {
    "doorkey": BABYAI_DOORKEY_CURRICULUM,
    "goto": BABYAI_GOTO_CURRICULUM,
    # rl-zoo3's PPO scores 0 on the last of both after 10M steps
    "obstructed": [
        _mastered("Unlock", 60_000, 300_000, 0.9),
        _mastered("UnlockPickup", 60_000, 600_000, 0.85),
        _mastered("ObstructedMaze-1Dl", 60_000, 600_000, 0.85),
        _mastered("ObstructedMaze-1Dlh", 60_000, 600_000, 0.85),
        _mastered("ObstructedMaze-2Dl", 60_000, 600_000, 0.8),
        {"env_id": "MiniGrid-ObstructedMaze-2Dlh-v0"},
    ],
    "multiroom": [_rooms(2, 4, steps=400_000, condition="steps>=150000 & episode_return>=0.75"), _rooms(4, 5)],
}
# What learned DoorKey-5x5 (docs/benchmarks.md), with more environments for the larger rooms, and little reward for
# acting at random: in a large room, where rewards are rare, a larger one teaches nothing else.
PARAMS = {"num_envs": 16, "num_minibatches": 8, "learning_rate": 1e-3, "norm_adv": False, "ent_coef": 0.001}
PARAMS_OF = {"doorkey": {"learning_rate": 5e-4, "ent_coef": 0.0003}}
EVALUATED = 100


def main() -> None:
    """Run the seeds that are missing in both ways, then say what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", choices=sorted(SCHEDULES), default="doorkey")
    parser.add_argument("--seeds", default="1-5", help="1-5, or 1,3,8")
    parser.add_argument("--total-timesteps", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="seeds at a time")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a flag of ppo, in both ways")
    parser.add_argument("--ways", default="curriculum,direct")
    parser.add_argument("--runs", type=Path, default=resolve_home() / "var" / "benchmarks" / "curriculum")
    parser.add_argument("--recorded", metavar="MACHINE", help="run nothing: the seeds' folders come from that machine")
    parser.add_argument("--table", action="store_true", help="only print what has been measured so far")
    args = parser.parse_args()
    if not args.table:
        draw(args, {way: measure(args, way) for way in args.ways.split(",")})
    path = RESULTS / "curriculum.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    print(markdown([shown(name, row) for name, row in sorted(rows.items()) if name != "measured"]))


def measure(args: argparse.Namespace, way: str) -> list[Path]:
    """Train every seed one way, evaluate it on the goal, keep the scores; the folders of the runs."""
    with ThreadPoolExecutor(min(args.jobs, os.cpu_count() or 1)) as pool:
        folders = list(pool.map(lambda seed: train(args, way, seed), seeds(args.seeds)))
    scores = [json.loads((folder / "finished.json").read_text())["score"] for folder in folders]
    result = {
        "goal": goal_of(args),
        "total_timesteps": args.total_timesteps,
        "params": params_of(args),
        "scores": dict(zip(seeds(args.seeds), scores, strict=True)),
        "iqm": iqm(scores),
        "interval": list(bootstrap_interval([scores])),
        "goal_from": [entered(folder, len(SCHEDULES[args.schedule]) - 1) for folder in folders],
        "when": {**machine(), "machine": args.recorded} if args.recorded else machine(),
    }
    save("curriculum", {f"{args.schedule} {way}": result})
    return folders


def draw(args: argparse.Namespace, ways: dict[str, list[Path]]) -> None:
    """The returns on the way, of both ways in one picture; those of a curriculum are of the stage it is in."""
    grid = np.linspace(args.total_timesteps / GRID, args.total_timesteps, GRID)
    curves = [[smoothed(episodes_of(folder), grid) for folder in folders] for folders in ways.values()]
    first, others, names = curves[0], curves[1] if len(curves) > 1 else [], [*ways, ""]
    curve = Curve(goal_of(args), grid, first, others=others, names=(names[0], names[1]))
    write_svg(IMAGES / f"curriculum-{args.schedule}.svg", curve)


def goal_of(args: argparse.Namespace) -> str:
    """The environment that all is for."""
    return str(SCHEDULES[args.schedule][-1]["env_id"])


def params_of(args: argparse.Namespace) -> dict[str, Any]:
    """The flags of ppo, in both ways."""
    return PARAMS | PARAMS_OF.get(args.schedule, {}) | dict(item.split("=", 1) for item in args.set)


def train(args: argparse.Namespace, way: str, seed: int) -> Path:
    """The run's folder; it is trained and evaluated unless it has been."""
    home = args.runs
    schedule = SCHEDULES[args.schedule]
    params = params_of(args) | {"save_model": True}
    extras: dict[str, Any] = {"algo_params": params, "fastlane_video_mode": "off"}
    extras |= {"curriculum_schedule": schedule} if way == "curriculum" else {}
    run_id = f"{args.schedule}-{way}-{args.total_timesteps}-{seed}"
    config = {"run_id": run_id, "algo": "ppo", "env_id": schedule[-1]["env_id"], "seed": seed}
    config |= {"total_timesteps": args.total_timesteps, "extras": extras}
    folder = RunPaths(run_id, home).folder
    done = folder / "finished.json"
    if args.recorded or (done.exists() and json.loads(done.read_text())["config"] == config):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    work(home, config)
    (policy,) = folder.glob("runs/*/ppo.cleanrl_model")
    judged = f"{run_id}-eval"
    shutil.rmtree(RunPaths(judged, home).folder, ignore_errors=True)
    asked = {"mode": "policy_eval", "policy_path": str(policy), "eval_episodes": EVALUATED}
    asked |= {"eval_batch_size": EVALUATED, "fastlane_video_mode": "off"}
    work(home, {"run_id": judged, "total_timesteps": 0, "extras": asked})
    summary = json.loads((RunPaths(judged, home).folder / "eval_summary.json").read_text())
    done.write_text(json.dumps({"config": config, "score": summary["avg_return"]}))
    print(f"{run_id}: {summary['avg_return']:.3f}", file=sys.stderr, flush=True)
    return folder


def work(home: Path, config: dict[str, Any]) -> None:
    """One worker, to its end."""
    path = home / f"{config['run_id']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config))
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(path)]
    child = subprocess.run(command, env={**os.environ, "MOSAIC_HOME": str(home)}, stdout=subprocess.DEVNULL)
    if child.returncode:
        raise SystemExit(f"{config['run_id']} ended with code {child.returncode}; its logs are below {home}")


def entered(folder: Path, stage: int) -> int | None:
    """The step at which a run reached a stage; 0 without stages, None when it never did."""
    rows = [row for row in read_rows(folder / "metrics.jsonl") if "curriculum/stage" in row]
    return next((int(row["step"]) for row in rows if row["curriculum/stage"] == stage), None) if rows else 0


def shown(key: str, row: dict[str, Any]) -> dict[str, Any]:
    """One line of the table."""
    low, high = row["interval"]
    return {
        "way": key,
        "goal": row["goal"],
        "steps": f"{row['total_timesteps']:,}",
        "seeds": len(row["scores"]),
        "IQM on the goal": f"{row['iqm']:.3f}",
        "95 % interval": f"{low:.3f} to {high:.3f}",
        "goal from step": ", ".join("never" if step is None else f"{step:,}" for step in row["goal_from"]),
    }


if __name__ == "__main__":
    main()
