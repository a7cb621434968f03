"""Executors: what Ray and Slurm do to a run, and what they cost. Needs root (a network namespace; Slurm's own user).

    python benchmarks/executors.py [--only ray,slurm,start,queue,frames,groups_ray,groups_slurm,scancel,storage]

ray: short runs on a cluster of two nodes, one of which is killed in the middle, and the daemon once; they must end like
local runs of the same seeds, bit for bit, with every event once. slurm: submit, cancel, and a preemption and a
requeue that resume exactly. start: from submit to the first step. queue: two hundred runs at once. frames: a live view
over the wire. groups_*: a small benchmark and a small sweep, whole, by the command. scancel: a job that somebody
ends by hand. storage: what a copy in a folder costs a run.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from clusters import RayNodes, enter_namespace, slurm
from report import markdown, save

from mosaic.contract.channel import daemon_card, read_card
from mosaic.contract.metrics import comparable
from mosaic.contract.paths import RunPaths
from mosaic.trainer.rpc.client import Client
from mosaic.trainer.run import Run
from mosaic.trainer.states import State

PATIENCE = 270.0


def main() -> None:
    """Do each part, print the tables, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="ray by itself runs in a network namespace")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=16_384)
    parser.add_argument("--queued", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    if args.only in ("ray", "groups_ray"):  # Slurm binds to nothing where loopback is the only address
        enter_namespace()
    for name in args.only.split(","):
        figures = PARTS[name](args)
        save("executors", {name: figures})
        print(markdown([{"what": f"{name}: {key}", "measured": value} for key, value in figures.items()]), flush=True)


class Bench:
    """A home and a daemon that can be killed."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None, *arguments: str) -> None:
        self.home, self.arguments = folder / "home", arguments
        self.home.mkdir()
        kept = dict(os.environ if environment is None else environment)
        self.environment = {**kept, "MOSAIC_HOME": str(self.home), "XDG_STATE_HOME": str(folder / "state")}
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "mosaic.trainer.daemon", "--listen", "127.0.0.1:21055", *self.arguments]
        with (self.home / "daemon.out").open("ab") as log:
            self.process = subprocess.Popen(command, env=self.environment, cwd=self.home, stdout=log, stderr=log)
        until(lambda: read_card(daemon_card(self.home)).get("pid") == self.process.pid, "the daemon")
        self.client = Client(home=self.home)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def submit(self, seed: int, executor: str, steps: int, resources: dict[str, Any] | None = None, **more: Any) -> Run:
        extras = {
            "algo_params": {"checkpoint_every": 4096, "checkpoint_episodes": 0},
            "cuda": False,
            "save_model": True,
            **more,
        }
        config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": steps, "seed": seed, "extras": extras}
        asked = {"executor": executor, **(resources or {})}
        return self.client.submit_run({"resources": asked, "metadata": {"worker": {"config": config}}})

    def state(self, run: Run) -> State:
        return self.client.get_run(run.run_id).state

    def wait(self, run: Run, *states: State, seconds: float = PATIENCE) -> Run:
        def there() -> Run | None:
            found = self.client.get_run(run.run_id)
            assert found.state in states or not found.ended, f"{run.run_id}: {found.state} {found.reason}"
            return found if found.state in states else None

        return until(there, f"{run.run_id} to be {states}", seconds)

    def result(self, run: Run) -> tuple[bytes, dict[str, bytes]]:
        """What must be equal in two runs of one recipe: the rows without the clock's, and the weights."""
        import torch

        paths = RunPaths(run.run_id, self.home)
        (policy,) = [path for path in paths.policies.rglob("*.cleanrl_model") if ".best." not in path.name]
        weights = torch.load(policy, weights_only=True)
        return comparable(paths.metrics), {name: value.numpy().tobytes() for name, value in weights.items()}

    def numbered_once(self, run: Run) -> bool:
        seqs = [event.seq for event in self.client.read_events(run.run_id)]
        return seqs == list(range(len(seqs)))


@contextmanager
def bench(environment: dict[str, str] | None = None, *arguments: str) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="mosaic-executors-", dir="/tmp") as folder:
        one = Bench(Path(folder), environment, *arguments)
        try:
            yield one
        finally:
            one.process.send_signal(signal.SIGTERM)
            one.process.wait(60)


@contextmanager
def ray_nodes(nodes: int, cpus: int) -> Iterator[RayNodes]:
    with tempfile.TemporaryDirectory(prefix="mray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        cluster = RayNodes(Path(folder))
        try:
            cluster.start(nodes, cpus)
            yield cluster
        finally:
            cluster.close()


def prove_ray(args: argparse.Namespace) -> dict[str, Any]:
    """Runs spread over two nodes; one node and the daemon are killed meanwhile."""
    with ray_nodes(2, 2) as cluster, bench(None, "--ray-address", cluster.address, "--slots", "2") as one:
        began = time.monotonic()
        runs = [one.submit(seed, "ray", args.steps) for seed in range(args.runs)]
        doomed = cluster.nodes[-1]

        def on_it() -> list[Run]:
            there = {child.pid for child in doomed.children(recursive=True)}
            live = one.client.list_runs(states=["EXECUTING"], page_size=1000).runs
            return [run for run in live if worker_pid(one, run) in there and checkpoints(one, run)]

        hit = until(on_it, "a run with a checkpoint on the second node")
        print(f"{len(hit)} runs with a checkpoint on the node that dies", flush=True)
        cluster.kill(doomed)
        killed = time.monotonic()
        one.kill()
        one.start()
        until(
            lambda: all(one.client.get_run(run.run_id).attempt > 1 or one.state(run) == State.LOST for run in hit),
            "LOST",
        )
        noticed = time.monotonic() - killed
        ended = [one.wait(run, State.COMPLETED, seconds=600) for run in runs]
        took = time.monotonic() - began
        again = [run for run in ended if run.attempt > 1]
        twins = [one.submit(run.seed or 0, "local", args.steps) for run in ended]
        pairs = [(run, one.wait(twin, State.COMPLETED)) for run, twin in zip(ended, twins, strict=True)]
        same = sum(one.result(run) == one.result(twin) for run, twin in pairs)
        return {
            "runs completed": f"{sum(run.state == State.COMPLETED for run in ended)} of {args.runs}",
            "runs that went on elsewhere": len(again),
            "equal to local runs of the same seeds (rows and weights)": f"{same} of {args.runs}",
            "every event once": f"{sum(map(one.numbered_once, ended))} of {args.runs}",
            "seconds until the node's death was noticed": round(noticed, 1),
            "seconds in all": round(took, 1),
        }


def worker_pid(one: Bench, run: Run) -> int:
    started = [event for event in one.client.read_events(run.run_id) if event.event == "run_started"]
    return int(started[-1].payload["pid"]) if started else 0


def checkpoints(one: Bench, run: Run) -> bool:
    return any(RunPaths(run.run_id, one.home).checkpoints.glob("*/state.json"))


def prove_slurm(args: argparse.Namespace) -> dict[str, Any]:
    """Submit, cancel, and a preemption by a partition of a higher tier."""
    with slurm(cpus=1) as environment, bench(environment, "--executor", "slurm", "--slots", "2") as one:
        began = time.monotonic()
        first = one.wait(one.submit(1, "slurm", args.steps), State.COMPLETED)
        submitted = time.monotonic() - began

        second = one.submit(2, "slurm", 10**7)
        one.wait(second, State.EXECUTING)
        pid = worker_pid(one, second)
        family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
        asked = time.monotonic()
        one.client.cancel_run(second.run_id, 5)
        one.wait(second, State.CANCELLED)
        cancelled = time.monotonic() - asked
        until(lambda: not any(psutil.pid_exists(pid) for pid in family), "its processes to end")

        third = one.submit(3, "slurm", args.steps * 20)
        until(lambda: checkpoints(one, third), "a checkpoint")
        asked = time.monotonic()
        hog = ["sbatch", "--parsable", "--partition=high", "--output=/dev/null", "--wrap=sleep 20"]
        subprocess.run(hog, env=environment, check=True, capture_output=True)
        until(lambda: again(one, third), "the preemption")
        preempted = time.monotonic() - asked
        one.wait(third, State.EXECUTING)
        resumed = time.monotonic() - asked
        third = one.wait(third, State.COMPLETED, seconds=400)

        fourth = one.submit(4, "slurm", args.steps * 10)
        until(lambda: checkpoints(one, fourth), "a checkpoint")
        requeue = ["scontrol", "requeue", one.client.get_run(fourth.run_id).job]
        subprocess.run(requeue, env=environment, check=True, capture_output=True)
        until(lambda: again(one, fourth), "the requeue")
        fourth = one.wait(fourth, State.COMPLETED, seconds=400)
        runs = [first, third, fourth]
        twins = [one.submit(run.seed or 0, "local", run.total_timesteps) for run in runs]
        same = [one.result(run) == one.result(one.wait(twin, State.COMPLETED, seconds=400))
                for run, twin in zip(runs, twins, strict=True)]  # fmt: skip
        return {
            "submitted run completed, seconds": round(submitted, 1),
            "cancelled, its processes gone, seconds": round(cancelled, 1),
            "preempted, seconds until its checkpoint was saved and the next attempt queued": round(preempted, 1),
            "preempted, seconds until it trained again": round(resumed, 1),
            "preempted: attempts, of which counted as failures; resumed": history(one, third),
            "put back by scontrol: attempts, of which counted as failures; resumed": history(one, fourth),
            "equal to local runs": same,
            "every event once": all(one.numbered_once(run) for run in runs),
        }


def again(one: Bench, run: Run) -> bool:
    """Whether the run is in its second attempt; it must not have ended instead."""
    found = one.client.get_run(run.run_id)
    assert not found.ended, f"{found.state} {found.reason}"
    return found.attempt > 1


def history(one: Bench, run: Run) -> str:
    told = [event.payload for event in one.client.read_events(run.run_id) if event.event == "resumed"]
    resumed = ", ".join(f"at step {each['step']}, exact {each['exact']}" for each in told)
    return f"{run.attempt}, {run.restarts}; {resumed}"


def prove_groups(one: Bench, executor: str, *more: str) -> dict[str, Any]:
    """A benchmark of four runs and a sweep of two trials with two seeds each, by the command."""
    figures: dict[str, Any] = {}
    common = ["--seeds", "1-2", "--set", "total_timesteps=4096", "--executor", executor, *more, "--json"]
    lines = {
        "benchmark of 2 × 2 runs": ["benchmark", "--algos", "ppo,dqn", "--envs", "CartPole-v1"],
        "sweep of 2 trials × 2 seeds": ["sweep", "ppo", "CartPole-v1", "--trials", "2", "--vary", "learning_rate"],
    }
    for what, words in lines.items():
        began = time.monotonic()
        command = [sys.executable, "-m", "mosaic.cli", *words, *common]
        done = subprocess.run(command, env=one.environment, cwd=one.home, capture_output=True, text=True)
        assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
        figures[f"{what}: seconds"] = round(time.monotonic() - began, 1)
        print(done.stdout[-1500:], flush=True)
    runs = one.client.list_runs(page_size=1000).runs
    figures["runs completed"] = f"{sum(run.state == State.COMPLETED for run in runs)} of {len(runs)}"
    figures["runs on it"] = sum(run.executor == executor for run in runs)
    return figures


def prove_groups_ray(args: argparse.Namespace) -> dict[str, Any]:
    with ray_nodes(2, 1) as cluster, bench(None, "--ray-address", cluster.address, "--slots", "2") as one:
        return prove_groups(one, "ray")


def prove_groups_slurm(args: argparse.Namespace) -> dict[str, Any]:
    with slurm(cpus=2) as environment, bench(environment, "--slots", "2") as one:
        return prove_groups(one, "slurm", "--slurm", "partition=low")


def prove_scancel(args: argparse.Namespace) -> dict[str, Any]:
    """Slurm tells every process of a job that somebody ends; the run must save itself, and not come back."""
    with slurm(cpus=1) as environment, bench(environment, "--slots", "2") as one:
        run = one.submit(1, "slurm", 10**7)
        until(lambda: checkpoints(one, run), "a checkpoint")
        asked = time.monotonic()
        subprocess.run(["scancel", one.client.get_run(run.run_id).job], env=environment, check=True)
        ended = one.wait(run, State.CANCELLED)
        saved = [event.payload for event in one.client.read_events(run.run_id) if event.event == "checkpoint"]
        return {
            "CANCELLED after seconds": round(time.monotonic() - asked, 1),
            "attempts; exit code; last step": f"{ended.attempt}; {ended.exit_code}; {ended.step}",
            "last checkpoint; exact": f"{saved[-1]['step']}; {saved[-1]['exact']}",
            "reason": ended.reason,
        }


def measure_storage(args: argparse.Namespace) -> dict[str, Any]:
    """The same run with and without a copy in a folder, in turns; from its first process to its last event."""
    took: dict[bool, list[float]] = {True: [], False: []}
    with bench(None, "--slots", "1") as one:
        for number in range(2 * args.repetitions + 1):
            stored = number % 2 == 0
            more = {"storage_url": f"file://{one.home.parent}/store"} if stored else {}
            run = one.wait(one.submit(1, "local", args.steps, **more), State.COMPLETED)
            took[stored].append(run.ended_at - run.started_at)
    took[True] = took[True][1:]  # the first one warmed the caches
    shown = {kept: f"{median(all):.2f} s ({min(all):.2f}–{max(all):.2f}, n={len(all)})" for kept, all in took.items()}
    return {f"{args.steps:,} steps without a copy": shown[False], f"{args.steps:,} steps with one": shown[True]}


def measure_start(args: argparse.Namespace) -> dict[str, Any]:
    """From the submission to the first row of metrics, and to the end of a short run; each executor warm."""
    figures: dict[str, Any] = {}
    with slurm(cpus=2) as environment:
        with bench(environment, "--slots", "2") as one:
            for executor in ("local", "slurm", "ray"):
                firsts, ends = [], []
                for seed in range(args.repetitions + 1):
                    began = time.time()
                    run = one.wait(one.submit(seed, executor, args.steps), State.COMPLETED)
                    rows = RunPaths(run.run_id, one.home).metrics.read_text().splitlines()
                    firsts.append(float(__import__("json").loads(rows[0])["time"]) - began)
                    ends.append(run.ended_at - began)
                figures[f"{executor}: seconds from submit to the first row"] = round(median(firsts[1:]), 2)
                figures[f"{executor}: seconds to the end of {args.steps:,} steps"] = round(median(ends[1:]), 2)
    return figures


def measure_queue(args: argparse.Namespace) -> dict[str, Any]:
    """Many runs at once: how fast they are accepted and handed over, and what the daemon takes meanwhile."""
    figures: dict[str, Any] = {}
    with slurm(cpus=2) as environment:
        (Path(environment["SLURM_CONF"]).parent / "hold").touch()
        with bench(environment, "--slots", "2") as one:
            subprocess.run(["scontrol", "update", "PartitionName=low", "State=DOWN"], env=environment, check=True)
            began = time.monotonic()
            runs = [one.submit(seed, "slurm", 1000) for seed in range(args.queued)]
            figures["runs accepted per second (each is dry-run first)"] = round(
                len(runs) / (time.monotonic() - began), 1
            )
            until(
                lambda: len(one.client.list_runs(states=["HANDSHAKE"], page_size=1000).runs) == args.queued, "all jobs"
            )
            figures["seconds until Slurm had all"] = round(time.monotonic() - began, 1)
            before, at = psutil.Process(one.process.pid).cpu_times(), time.monotonic()
            time.sleep(10)
            after = psutil.Process(one.process.pid).cpu_times()
            spent = after.user + after.system - before.user - before.system
            figures["daemon's share of a core while they wait"] = f"{spent / (time.monotonic() - at):.1%}"
            began = time.monotonic()
            for run in runs:
                one.client.cancel_run(run.run_id, 1)
            until(lambda: not one.client.list_runs(states=["HANDSHAKE"], page_size=1000).runs, "all to be cancelled")
            figures["seconds until all were cancelled"] = round(time.monotonic() - began, 1)
    return figures


def measure_frames(args: argparse.Namespace) -> dict[str, Any]:
    """A run on a node that shares nothing with the daemon, watched through it."""
    with slurm(cpus=2) as environment, tempfile.TemporaryDirectory(prefix="mscratch-", dir="/tmp") as scratch:
        with bench(environment, "--slots", "2", "--scratch", scratch) as one:
            run = one.submit(1, "slurm", 10**7)
            one.wait(run, State.EXECUTING)
            frames, first = [], time.monotonic()
            for frame in one.client.stream_frames(run.run_id, 30.0):
                if frame.data:
                    frames.append((time.monotonic(), len(frame.data)))
                if (frames and time.monotonic() - frames[0][0] > 15) or time.monotonic() - first > 60:
                    break
            one.client.cancel_run(run.run_id, 5)
            one.wait(run, State.CANCELLED)
            seconds = frames[-1][0] - frames[0][0]
            return {
                "frames per second": round((len(frames) - 1) / seconds, 1),
                "kB per frame": round(sum(size for _, size in frames) / len(frames) / 1000, 1),
                "seconds until the first": round(frames[0][0] - first, 1),
            }


def until(happens: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    end = time.monotonic() + seconds
    while not (found := happens()):
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.1)
    return found


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "ray": prove_ray,
    "slurm": prove_slurm,
    "start": measure_start,
    "queue": measure_queue,
    "frames": measure_frames,
    "groups_ray": prove_groups_ray,
    "groups_slurm": prove_groups_slurm,
    "scancel": prove_scancel,
    "storage": measure_storage,
}

if __name__ == "__main__":
    main()
