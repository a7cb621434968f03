"""What CUDA graphs change on a GPU, and what they do not: same results, more steps per second.

    python benchmarks/gpu.py --pack DIR                     on a machine with a network: fetch what a bare one lacks
    python benchmarks/gpu.py --wheels DIR [--parts …]       on the GPU's machine: check and time, a few minutes a part

A bare machine has Python 3.12, torch, jax and numpy; wheels are unpacked beside it, nothing is installed. The parts:

check   each algorithm over 100 updates and more, replayed as graphs and not: the largest difference between the two
        final states; the same run twice; the same run cut in the middle and resumed. A function that cannot be
        recorded must go on without graphs, with one warning.
speed   steps per second after the warm-up, with and without graphs: medians, and the least and the most. For Atari also
        CleanRL's own files of release 1.2.0, unchanged (cleanrl_driver.py tells what they stand on).
learn   learning curves of three seeds, with graphs and without, several runs side by side.
jax     the algorithms in JAX on the GPU and on the CPU; how much of the GPU's memory JAX takes.

What has been measured is written down after each run: a call that is cut off leaves it.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import gpu_check
from gpu_place import SRC, Case, Failed, Found, Place, Rows, pack
from report import RESULTS, load, markdown, save

GRAPHS, EAGER, PEER = "CUDA graphs", "no graphs", "CleanRL"
FLAGS = {GRAPHS: ("--cudagraphs",), EAGER: ("--no-cudagraphs",), "compiled": ("--compile",), "CPU": ("--no-cuda",)}
SHARES = {EAGER: 0.25, PEER: 0.25, "CPU": 0.25}  # of the steps after the warm-up: they take as long for fewer
SOON = ("--learning-starts=500",)
GAMES = ("--env-backend=gymnasium", "--vectorization=native")  # ale-py's own vector environment
ONE_GAME = ("--env-backend=gymnasium", "--vectorization=sync")  # that vector would wake a thread for a single game
# DQN learns from step 80,000 on and acts by its network after a million; both are moved to the front, for CleanRL too.
EARLY = ("--learning-starts=2000", "--exploration-fraction=0.1")
SMALL = ("--learning-starts=500", "--buffer-size=5000")
PONG = "PongNoFrameskip-v4"
CASES = (
    Case("sac_continuous_action", "HalfCheetah-v5", 10_200, 5_200, SOON, 1_000, "74", "≥ 1,000"),
    Case("td3_continuous_action", "HalfCheetah-v5", 34_300, 25_300, SOON, 1_000, "166", "≥ 2,000"),
    Case("ppo_continuous_action", "HalfCheetah-v5", 40_960, 4_096, (), 4_096, "340", "≥ 4,000"),
    Case("dqn", "CartPole-v1", 72_000, 12_000, SOON, 3_000, "2.0k", "≥ 8k"),
    Case(
        *("ppo_atari", PONG, 61_440, 4_096, ("--num-steps=16",), 1_024),
        goal="≥ 6.8×",
        our_flags=GAMES,
        peer=True,
    ),
    Case(
        *("dqn_atari", PONG, 14_000, 3_000, SMALL, 1_000),
        goal="≥ 4×",
        flags=EARLY,
        our_flags=ONE_GAME,
        peer=True,
    ),
    Case("ppo", "CartPole-v1", 100_000, 10_000, ("--num-steps=64",), 4_096, "1.5k"),
    Case("ddpg_continuous_action", "HalfCheetah-v5", 34_300, 25_300, SOON, 1_000),
    Case("c51", "CartPole-v1", 52_000, 12_000, SOON, 3_000),
    Case("c51_atari", PONG, 14_000, 3_000, SMALL, 1_000, flags=EARLY, our_flags=ONE_GAME),
)
# Those that are checked and not timed. Our image game has many short episodes, and needs nothing but Gymnasium.
CATCH, ROLLOUTS = "mosaic/Catch-v0", ("--num-envs=8", "--num-steps=16")
LESSON = ("--teacher-steps=400", "--offline-steps=400", "--teacher-eval-episodes=1", "--learning-starts=450")
CHECKED = (
    Case("rpo_continuous_action", "HalfCheetah-v5", 0, 0, (), 4_096),
    Case("pqn", "CartPole-v1", 0, 0, ("--num-steps=64",), 4_096),
    Case("ppo_pettingzoo_ma_atari", "pong_v3", 0, 0, ROLLOUTS, 1_024),
    *(
        Case(algo, CATCH, 0, 0, flags, steps, our_flags=("--env-backend=gymnasium",))
        for algo, flags, steps in (
            ("rainbow_atari", SMALL, 1_000),
            ("sac_atari", SMALL, 1_000),
            ("qdagger_dqn_atari_impalacnn", (*LESSON, "--buffer-size=5000"), 900),
            ("ppo_procgen", ROLLOUTS, 1_024),
            ("ppg_procgen", (*ROLLOUTS, "--n-iteration=2", "--e-auxiliary=2"), 2_048),
            (
                "ppo_rnd_envpool",
                (*ROLLOUTS, "--num-iterations-obs-norm-init=1", "--repeat-action-probability=0"),
                1_024,
            ),
            ("ppo_atari_lstm", ROLLOUTS, 1_024),
            ("pqn_atari_envpool", ROLLOUTS, 1_024),
            ("pqn_atari_envpool_lstm", ROLLOUTS, 1_024),
        )
    ),
)


def main() -> None:
    """Do the parts asked for, print their tables, keep the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, help="only fetch the wheels into this folder")
    parser.add_argument("--wheels", type=Path, help="the folder that --pack made")
    parser.add_argument("--parts", default="check,speed,jax,learn", help="of these four, by commas")
    parser.add_argument("--only", help="algorithms, by commas")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=1e9, help="start no more timed runs after so many")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the steps after the warm-up")
    parser.add_argument("--modes", default=f"{GRAPHS},{EAGER},{PEER}", help="also: compiled, CPU")
    parser.add_argument("--flags", default="", help="for all our timed runs, in one word: '--x=1 --y=2'")
    parser.add_argument("--out", type=Path, help="folder for gpu.json and pictures (default: results/, docs/img/)")
    args = parser.parse_args()
    if args.pack:
        pack(args.pack)
        return
    parts = {"check": check, "speed": speed, "learn": learn, "jax": in_jax}
    if unknown := set(args.parts.split(",")) - set(parts):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    with tempfile.TemporaryDirectory(prefix="mosaic-gpu-") as folder:
        place = Place(Path(folder), args.wheels)
        about = json.loads(place.python("-c", ABOUT))
        if not about["gpu"]:
            raise SystemExit("torch finds no GPU here; the CPU's figures are made by benchmarks/speed.py")
        print(about, flush=True)
        for part in args.parts.split(","):
            begun = time.monotonic()
            known = (*CASES, *CHECKED) if part == "check" else CASES
            cases = [case for case in known if not args.only or case.algo in args.only.split(",")]
            try:
                parts[part](cases, place, Record(args.out or RESULTS, about), args)
            except Failed as failure:
                print(f"{part}: {failure}", flush=True)
            print(f"{part} took {time.monotonic() - begun:.0f} s\n", flush=True)


ABOUT = """
import json, platform, torch
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
print(json.dumps({"gpu": gpu, "torch": torch.__version__, "python": platform.python_version()}))
"""


class Record:
    """Figures, written to gpu.json whenever there are new ones."""

    def __init__(self, folder: Path, about: Found) -> None:
        self.folder, self._about = folder, about

    def keep(self, part: str, name: str, value: Any) -> None:
        """The others of that part stay."""
        save(
            "gpu", {"machine": self._about, part: {**load("gpu", self.folder).get(part, {}), name: value}}, self.folder
        )


def check(cases: list[Case], place: Place, record: Record, args: argparse.Namespace) -> None:
    """The table of differences."""
    rows: Rows = []

    def tell(row: dict[str, Any]) -> None:
        rows.append(row)
        record.keep("largest difference between final states", row["algorithm"], row)

    gpu_check.check(cases, place, tell)
    print(f"\n{markdown(rows)}\n", flush=True)


def in_jax(cases: list[Case], place: Place, record: Record, args: argparse.Namespace) -> None:
    """The table of JAX's two devices."""
    rows: Rows = []

    def tell(row: dict[str, Any]) -> None:
        rows.append(row)
        record.keep("jax", row["algorithm"], row)

    gpu_check.jax(place, tell)
    print(f"\n{markdown(rows)}\n", flush=True)


# -- speed ----------------------------------------------------------------------------------------------------------

Measured = dict[str, dict[str, list[float]]]
"""by case and mode: steps per second of each repetition"""


def speed(cases: list[Case], place: Place, record: Record, args: argparse.Namespace) -> None:
    """One run at a time, cases and modes taking turns, so that each has a figure before any has two."""
    end = time.monotonic() + 60 * args.minutes
    measured: Measured = {}
    for repetition, case in itertools.product(range(args.repetitions), cases):
        for mode in args.modes.split(","):
            if mode == PEER and not (case.peer and place.has_peer):
                continue
            if time.monotonic() > end:
                continue
            try:
                found = steps_per_second(case, mode, place, args)
            except Failed as failure:
                print(f"{case.name}, {mode}: {failure}", flush=True)
                continue
            measured.setdefault(case.name, {}).setdefault(mode, []).append(round(found, 1))
            record.keep("steps per second", case.name, measured[case.name])
            print(f"{case.name}, {mode}, {repetition + 1}: {found:,.0f}", flush=True)
    print(f"\n{markdown([row(case, measured[case.name]) for case in cases if case.name in measured])}\n", flush=True)


def steps_per_second(case: Case, mode: str, place: Place, args: argparse.Namespace) -> float:
    """Between the first update after the warm-up and the last one."""
    total = case.warm_up + int((case.total - case.warm_up) * args.scale * SHARES.get(mode, 1.0))
    if mode == PEER:
        return float(json.loads(place.peer(case, total).strip().splitlines()[-1])["steps_per_second"])
    folder = place.train(case, total, *case.flags, *FLAGS[mode], *args.flags.split())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    updates = [(row["step"], row["time"]) for row in rows if any(tag.startswith("losses/") for tag in row)]
    counted = [update for update in updates if update[0] >= case.warm_up]
    if len(counted) < 2:
        raise Failed("fewer than two updates after the warm-up; give a larger --scale")
    (first, start), (last, end) = counted[0], counted[-1]
    return (last - first) / (end - start)


def row(case: Case, measured: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, the least and the most; CleanRL's from this session where there is one.

    A machine that others use changes its speed from minute to minute: the ratio is the median of those of the turns.
    """
    shown = {mode: f"{median(s):,.0f} ({min(s):,.0f}–{max(s):,.0f})" for mode, s in measured.items()}
    times = "–"
    if GRAPHS in measured and PEER in measured:
        ratios = [ours / theirs for ours, theirs in zip(measured[GRAPHS], measured[PEER], strict=False)]
        times = f"{median(ratios):.1f}× ({min(ratios):.1f}–{max(ratios):.1f})"
    return {
        "steps/s": case.name,
        PEER: shown.get(PEER, case.cleanrl),
        "goal": case.goal,
        **{mode: shown.get(mode, "–") for mode in FLAGS if mode in measured or mode in (GRAPHS, EAGER)},
        "graphs / CleanRL": times,
        "repetitions": min(map(len, measured.values())),
    }


# -- learn ----------------------------------------------------------------------------------------------------------

LEARNED = (
    Case("sac_continuous_action", "Pendulum-v1", 6_000, 0, (), 0, our_flags=("--learning-starts=1000",)),
    Case("td3_continuous_action", "Pendulum-v1", 8_000, 0, (), 0, our_flags=("--learning-starts=1000",)),
    Case("dqn", "CartPole-v1", 50_000, 0, (), 0, our_flags=("--learning-starts=1000",)),
    Case("ppo", "CartPole-v1", 60_000, 0, (), 0),
)
SEEDS = (1, 2, 3)
AT_ONCE = 12
LAST = 20  # episodes that a point of these short curves averages


def learn(cases: list[Case], place: Place, record: Record, args: argparse.Namespace) -> None:
    """The mean of the last episodes of each seed, both ways, and a picture of the curves."""
    sys.path.insert(0, str(SRC))
    chosen = [case for case in LEARNED if not args.only or case.algo in args.only.split(",")]
    jobs = list(itertools.product(chosen, (GRAPHS, EAGER), SEEDS))
    found: dict[tuple[str, str], list[list[tuple[int, float]]]] = {}
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        trained = pool.map(lambda job: place.train(job[0], job[0].total, f"--seed={job[2]}", *FLAGS[job[1]]), jobs)
        for (case, mode, _), folder in zip(jobs, trained, strict=True):
            found.setdefault((case.name, mode), []).append(episodes_of(folder))
    rows: Rows = []
    for case in chosen:
        final = {mode: [mean_of_last(run) for run in found[case.name, mode]] for mode in (GRAPHS, EAGER)}
        shown = {mode: ", ".join(f"{value:.1f}" for value in values) for mode, values in final.items()}
        rows.append({f"last {LAST} returns of seeds 1–3": case.name, "steps": case.total, **shown})
        record.keep("returns after a short training", case.name, final)
        pictures = Path(__file__).parents[1] / "docs" / "img" if record.folder == RESULTS else record.folder
        draw(pictures / f"gpu-{case.algo}.svg", case, found[case.name, GRAPHS], found[case.name, EAGER])
    print(f"\n{markdown(rows)}\n", flush=True)


def episodes_of(folder: Path) -> list[tuple[int, float]]:
    """Steps and returns."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["charts/episodic_return"]) for row in rows if "charts/episodic_return" in row]


def mean_of_last(episodes: list[tuple[int, float]]) -> float:
    returns = [ret for _, ret in episodes[-LAST:]]
    return sum(returns) / max(len(returns), 1)


def draw(path: Path, case: Case, graphs: list[list[tuple[int, float]]], eager: list[list[tuple[int, float]]]) -> None:
    """Both sets of seeds over common steps."""
    import numpy as np
    from curves import Curve, write_svg

    steps = np.linspace(case.total / 50, case.total, 50)

    def seen(episodes: list[tuple[int, float]], step: float) -> float:
        known = [episode for episode in episodes if episode[0] <= step]
        return mean_of_last(known) if known else float("nan")

    groups = [[np.array([seen(run, step) for step in steps]) for run in runs] for runs in (graphs, eager)]
    write_svg(path, Curve(case.name, steps, groups[0], others=groups[1], names=(GRAPHS, EAGER), last=LAST))


if __name__ == "__main__":
    main()
