"""Steps per second of EnvPool and Gymnasium at several numbers of environments, finished ones reset.

python benchmarks/envpool_speed.py --counts 1,4,8,16,64 --seconds 1 --repetitions 3
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
from backends import ATARI, MUJOCO, is_grid, pool, pool_step, random_actions
from gymnasium.vector import AutoresetMode
from report import markdown, save
from speed import Case, Contender, measure, ours

from cleanrl_worker.envs.minigrid import GridView
from cleanrl_worker.envs.vectors import EnvMaker, SyncEnvs, atari
from cleanrl_worker.run.args import RunArgs

Step = Callable[[np.ndarray], Any]
ENVS = ("CartPole-v1", "Acrobot-v1", "HalfCheetah-v5", "Hopper-v5", "Pong-v5")


def main() -> None:
    """Measure every task at every count, print a table, keep the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-ids", help="tasks, separated by commas")
    parser.add_argument("--counts", default="1,4,8,16,64", help="numbers of environments")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement")
    parser.add_argument("--repetitions", type=int, default=3, help="alternating measurements; the median counts")
    parser.add_argument("--training", action="store_true", help="measure PPO with either backend instead")
    parser.add_argument("--iterations", type=int, default=8, help="iterations of PPO in one measurement of training")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*precision lowered.*")
    counts = [int(n) for n in args.counts.split(",")]
    chosen = args.env_ids.split(",") if args.env_ids else ENVS
    rows: list[dict[str, Any]] = []
    for env_id in chosen:
        if args.training and env_id in ATARI:
            continue  # our Atari algorithm has EnvPool only
        if args.training:
            found = training(env_id, counts, args.iterations, args.repetitions)
        else:
            found = speeds(env_id, counts, args.seconds, args.repetitions)
        rows += found
        save("envpool_speed", {f"{'training' if args.training else 'stepping'} {env_id}": found})
    print(markdown(rows))


def training(env_id: str, counts: list[int], iterations: int, repetitions: int) -> list[dict[str, Any]]:
    """Steps per second of our PPO with either backend, everything but the number of environments at its default."""
    algo, num_steps = ("ppo_continuous_action", 2048) if env_id in MUJOCO else ("ppo", 128)
    rows = []
    for count in counts:
        batch = num_steps * count
        case = Case(algo, env_id, batch * (iterations + 1), batch, env_id)
        contenders: dict[str, Contender] = {
            backend: partial(ours, flags=[f"num_envs={count}", f"env_backend={backend}"])
            for backend in ("gymnasium", "envpool")
        }
        measured = measure(case, contenders, repetitions)
        row: dict[str, Any] = {"training": algo, "env": env_id, "environments": count}
        row |= {name: f"{median(v):,.0f} ({min(v):,.0f}–{max(v):,.0f})" for name, v in measured.items()}
        row["EnvPool / Gymnasium"] = median(measured["envpool"]) / median(measured["gymnasium"])
        rows.append(row)
    return rows


def speeds(env_id: str, counts: list[int], seconds: float, repetitions: int) -> list[dict[str, Any]]:
    """Steps per second of every way to run n environments, finished ones reset, in alternation."""
    rows = []
    for count in counts:
        ways = {name: make(count) for name, make in ways_of(env_id).items()}
        measured: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repetitions):
            for name, (step, space) in ways.items():
                measured[name].append(steps_per_second(step, space, count, seconds))
        row: dict[str, Any] = {"env": env_id, "environments": count}
        row |= {name: f"{np.median(v):,.0f} ({min(v):,.0f}–{max(v):,.0f})" for name, v in measured.items()}
        best = max(float(np.median(v)) for name, v in measured.items() if name != "EnvPool")
        row["EnvPool / best other"] = float(np.median(measured["EnvPool"])) / best
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
    return rows


def ways_of(env_id: str) -> dict[str, Callable[[int], tuple[Step, gym.Space[Any]]]]:
    """Name → a maker of (step function, action space)."""

    def envpool(count: int) -> tuple[Step, gym.Space[Any]]:
        envs = pool(env_id, count, seed=1)
        envs.reset()
        return lambda actions: pool_step(envs, actions), envs.action_space

    def gymnasium(mode: str) -> Callable[[int], tuple[Step, gym.Space[Any]]]:
        def make(count: int) -> tuple[Step, gym.Space[Any]]:
            same_step = {"vector_kwargs": {"autoreset_mode": AutoresetMode.SAME_STEP}}
            options: dict[str, Any] = same_step if mode == "sync" else {}
            envs: Any = gym.make_vec(env_id, num_envs=count, vectorization_mode=mode, **options)
            envs.reset(seed=1)
            return envs.step, envs.single_action_space

        return make

    def games(**options: Any) -> Callable[[int], tuple[Step, gym.Space[Any]]]:
        def make(count: int) -> tuple[Step, gym.Space[Any]]:
            envs = atari(RunArgs(env_id=env_id, num_envs=count, **options))
            envs.reset(1)
            return envs.step, envs.single_action_space

        return make

    def grid(count: int) -> tuple[Step, gym.Space[Any]]:
        envs = SyncEnvs([EnvMaker(env_id, view=GridView())] * count)
        envs.reset(1)
        return envs.step, envs.single_action_space

    if is_grid(env_id):  # Gymnasium's own vectors copy the missions about; this is how `ppo` runs them
        return {"sync": grid, "EnvPool": envpool}
    if env_id in ATARI:  # as our algorithms get them: full preparation, lives as episodes
        return {
            "game by game": games(env_backend="gymnasium"),
            "ale-py vector": games(env_backend="gymnasium", vectorization="native"),
            "EnvPool": games(env_backend="envpool"),
        }
    # Gymnasium has a native vector environment of CartPole alone, and that only with NEXT_STEP.
    native = {"native (NEXT_STEP)": gymnasium("vector_entry_point")} if env_id == "CartPole-v1" else {}
    return {"sync": gymnasium("sync"), **native, "EnvPool": envpool}


def steps_per_second(step: Step, space: gym.Space[Any], count: int, seconds: float) -> float:
    """Environment steps of a random policy per second of wall time, actions drawn beforehand."""
    actions = random_actions(space, np.random.default_rng(0), 256, count)
    for row in actions[:20]:
        step(row)
    taken, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for row in actions[:32]:
            step(row)
        taken += 32 * count
        actions = np.roll(actions, 32, axis=0)
    return taken / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
