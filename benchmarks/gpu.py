"""What CUDA graphs change on a GPU, and what they do not: same results, more steps per second.

    python benchmarks/gpu.py --pack DIR                     on a machine with a network: fetch what a bare one lacks
    python benchmarks/gpu.py --wheels DIR [--parts …]       on the GPU's machine: check and time, a few minutes

A bare machine has Python 3.12, torch and numpy; the wheels are unpacked beside it, nothing is installed. The parts:

check   each algorithm over 100 updates and more, replayed as graphs and not: the largest difference between the two
        final states; the same run twice; the same run cut in the middle and resumed. A function that cannot be
        recorded must go on without graphs, with one warning.
speed   steps per second after the warm-up, with and without graphs: medians, and the least and the most.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from report import markdown, save

SRC = Path(__file__).resolve().parents[1] / "src"
# What our files import besides torch and numpy, and what HalfCheetah and Pong need.
WHEELS = (
    *("gymnasium", "cloudpickle", "farama-notifications", "typing-extensions", "mujoco", "absl-py", "etils", "glfw"),
    *("pyopengl", "ale-py", "pydantic", "pydantic-core", "annotated-types", "typing-inspection", "orjson"),
    *("python-ulid", "psutil", "tyro", "docstring-parser", "typeguard", "tensorboard", "protobuf", "safetensors"),
    *("imageio", "pillow", "zipp", "websockets", "fsspec", "importlib-resources", "packaging"),
)
GRAPHS, EAGER = "CUDA graphs", "no graphs"


@dataclass(frozen=True)
class Case:
    """One algorithm with CleanRL's defaults: how far it trains, and from which step on the clock counts."""

    algo: str
    env_id: str
    total: int
    warm_up: int
    checked_with: tuple[str, ...]
    """flags that bring more than 100 updates into a short run"""
    checked_steps: int
    cleanrl: str = "–"
    goal: str = "–"
    """steps per second, on an H200"""

    @property
    def name(self) -> str:
        return f"{self.algo} {self.env_id}"


SOON = ("--learning-starts=500",)
CASES = (
    Case("sac_continuous_action", "HalfCheetah-v5", 11_000, 6_000, SOON, 1_000, "74", "≥ 1,000"),
    Case("td3_continuous_action", "HalfCheetah-v5", 35_000, 26_000, SOON, 1_000, "166", "≥ 2,000"),
    Case("ddpg_continuous_action", "HalfCheetah-v5", 35_000, 26_000, SOON, 1_000),
    Case("ppo_continuous_action", "HalfCheetah-v5", 40_960, 4_096, (), 4_096, "340", "≥ 4,000"),
    Case("dqn", "CartPole-v1", 80_000, 20_000, SOON, 3_000, "2.0k", "≥ 8k"),
    Case("c51", "CartPole-v1", 60_000, 20_000, SOON, 3_000),
    Case("ppo", "CartPole-v1", 100_000, 10_000, ("--num-steps=64",), 4_096, "1.5k"),
)


def main() -> None:
    """Do the parts asked for, print their tables, keep the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, help="only fetch the wheels into this folder")
    parser.add_argument("--wheels", type=Path, help="the folder that --pack made")
    parser.add_argument("--parts", default="check,speed")
    parser.add_argument("--only", help="algorithms, by commas")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the steps after the warm-up")
    parser.add_argument("--modes", default=f"{GRAPHS},{EAGER}", help="also: compiled, CPU")
    args = parser.parse_args()
    if args.pack:
        pack(args.pack)
        return
    with tempfile.TemporaryDirectory(prefix="mosaic-gpu-") as folder:
        place = Place(Path(folder), args.wheels)
        about = json.loads(place.python("-c", ABOUT))
        if not about["gpu"]:
            raise SystemExit("torch finds no GPU here; the CPU's figures are made by benchmarks/speed.py")
        print(about, flush=True)
        cases = [case for case in CASES if not args.only or case.algo in args.only.split(",")]
        for part in args.parts.split(","):
            rows, found = {"check": check, "speed": speed}[part](cases, place, args)
            save("gpu", {"machine": about, **found})
            print(f"\n{markdown(rows)}\n", flush=True)


ABOUT = """
import json, platform, torch
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
print(json.dumps({"gpu": gpu, "torch": torch.__version__, "python": platform.python_version()}))
"""


def pack(folder: Path) -> None:
    """Fetch the wheels for a bare machine with Python 3.12."""
    platforms = (f"--platform=manylinux_2_{glibc}_x86_64" for glibc in (17, 27, 28))
    fetch = [sys.executable, "-m", "pip", "download", "--only-binary=:all:", "--no-deps", "--python-version=3.12"]
    subprocess.run([*fetch, *platforms, f"--dest={folder}", *WHEELS], check=True)


class Place:
    """A folder to work in, and an interpreter that finds our sources and the wheels."""

    def __init__(self, folder: Path, wheels: Path | None) -> None:
        self.folder = folder
        self._runs = 0
        for wheel in sorted(wheels.glob("*.whl")) if wheels else []:
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(folder / "site")
        known = os.environ.get("PYTHONPATH", "")
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(SRC), known, str(folder / "site")))),
            "MUJOCO_GL": "disabled",
        }

    def python(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=self.folder, env=self._environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)[:300]} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return done.stdout + "\n".join(line for line in done.stderr.splitlines() if "CUDA graphs" in line)

    def train(self, case: Case, total: int, *flags: str) -> Path:
        """The folder of a finished run."""
        self._runs += 1
        folder = self.folder / f"run-{self._runs}"
        alone = (f"--env-id={case.env_id}", f"--run-dir={folder}", f"--total-timesteps={total}")
        said = self.python("-m", f"cleanrl_worker.algorithms.{case.algo}", *alone, *flags)
        if "CUDA graphs" in said:
            print(f"{case.name}: {said.strip().splitlines()[-1]}", flush=True)
        return folder


# -- check ----------------------------------------------------------------------------------------------------------


Rows, Found = list[dict[str, Any]], dict[str, Any]


def check(cases: list[Case], place: Place, args: argparse.Namespace) -> tuple[Rows, Found]:
    """Several runs side by side: nothing is timed here."""
    print(place.python("-c", FALLBACK).strip(), flush=True)
    with ThreadPoolExecutor(max_workers=8) as pool:
        rows = list(pool.map(lambda case: compare(case, place), cases))
    return rows, {"largest differences": rows}


def compare(case: Case, place: Place) -> dict[str, Any]:
    """Final states of runs that should be the same."""
    every = case.checked_steps // 2
    whole = (*case.checked_with, f"--checkpoint-every={every}")
    graphs, again, eager = (
        place.train(case, case.checked_steps, *whole, flag)
        for flag in ("--cudagraphs", "--cudagraphs", "--no-cudagraphs")
    )
    half = sorted((graphs / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))[0]
    resumed = place.train(case, case.checked_steps, f"--resume={half}")
    return {
        "algorithm": case.name,
        "steps": case.checked_steps,
        "graphs – no graphs": difference(graphs, eager),
        "graphs – again": difference(graphs, again),
        "graphs – resumed half way": difference(graphs, resumed),
    }


def difference(one: Path, other: Path) -> str:
    """The largest one in the last states; generators are compared too."""
    import numpy as np

    states = []
    for folder in (one, other):
        last = max((folder / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
        states.append(dict(arrays_of(last / "state.safetensors")))
    worst = max(
        float(np.abs(value.astype(np.float64) - states[1][name].astype(np.float64)).max(initial=0.0))
        for name, value in states[0].items()
    )
    return "none" if worst == 0 else f"{worst:.1e}"


def arrays_of(path: Path) -> Iterator[tuple[str, Any]]:
    """Read here without the library: this process has the machine's own packages only."""
    import numpy as np

    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    kinds = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "U8": np.uint8, "I32": np.int32, "BOOL": np.bool_}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            first, end = entry["data_offsets"]
            yield name, np.frombuffer(data[8 + size + first : 8 + size + end], kinds[entry["dtype"]])


FALLBACK = """
import torch
from types import SimpleNamespace
from cleanrl_worker.kit import graphs
told = []
def a_run():
    args = SimpleNamespace(cudagraphs=True, compile=False)
    tell = lambda kind, payload: told.append((kind, payload["message"]))
    return SimpleNamespace(args=args, device=torch.device("cuda"), tell=tell)
total = torch.zeros((), device="cuda")

@graphs.captured(a_run())
def looks(x):
    total.add_(x.sum())
    if x.sum().item() == 0:  # a value is looked at: this cannot be recorded
        total.zero_()
    return torch.rand(4, device="cuda")

calls = 0
@graphs.captured(a_run())
def breaks(x):
    global calls
    calls += 1
    total.add_(x.sum())
    if calls == graphs.WARM_UP + 1:
        x.sum().item()
    return torch.rand(4, device="cuda")

for update in (looks, breaks):
    total.zero_()
    for _ in range(8):
        update(torch.ones(4, device="cuda"))
    assert total.item() == 32, total
assert [kind for kind, _ in told] == ["warning", "warning"], told
assert 0 < torch.rand(1000, device="cuda").mean().item() < 1
print("what cannot be recorded goes on with one warning:", *(message for _, message in told), sep="\\n  ")
"""


# -- speed ----------------------------------------------------------------------------------------------------------

FLAGS = {GRAPHS: ("--cudagraphs",), EAGER: ("--no-cudagraphs",), "compiled": ("--compile",), "CPU": ("--no-cuda",)}


def speed(cases: list[Case], place: Place, args: argparse.Namespace) -> tuple[Rows, Found]:
    """One run at a time, the modes taking turns."""
    rows: Rows = []
    found: Found = {f"steps per second, {mode}": {} for mode in args.modes.split(",")}
    for case in cases:
        total = case.warm_up + int((case.total - case.warm_up) * args.scale)
        measured: dict[str, list[float]] = {mode: [] for mode in args.modes.split(",")}
        for _ in range(args.repetitions):
            for mode, speeds in measured.items():
                speeds.append(steps_per_second(place.train(case, total, *FLAGS[mode]), case.warm_up))
        shown = {mode: f"{median(s):,.0f} ({min(s):,.0f}–{max(s):,.0f})" for mode, s in measured.items()}
        print(case.name, shown, flush=True)
        rows.append({"steps/s": case.name, "CleanRL": case.cleanrl, "goal": case.goal, **shown})
        for mode, speeds in measured.items():
            found[f"steps per second, {mode}"][case.name] = [round(value, 1) for value in speeds]
    return rows, found


def steps_per_second(folder: Path, warm_up: int) -> float:
    """Between the first update after the warm-up and the last one."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    updates = [(row["step"], row["time"]) for row in rows if any(tag.startswith("losses/") for tag in row)]
    (first, start), *_, (last, end) = [update for update in updates if update[0] >= warm_up]
    return (last - first) / (end - start)


if __name__ == "__main__":
    main()
