"""The trainer daemon: long curves, long lists, many streams, what it costs a run, a registry that takes nothing.

    python benchmarks/trainer.py [--only curves,list,streams,cost,telemetry,stopping,delay,locked,full,wide,lines]
        [--seconds 60]

Every part starts a daemon of its own on an empty home. Times are taken at the client, through gRPC.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import trainer_cost
import trainer_faults
import trainer_wide
from daemons import home, megabytes, serving
from filled import fill_curves, fill_runs
from report import markdown, save

from mosaic.contract.channel import PROTO_VERSION, credentials
from mosaic.contract.events import EventLog
from mosaic.contract.metrics import read_rows
from mosaic.contract.paths import RunPaths
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.trainer.executors.local import boot_id, start_ticks
from mosaic.trainer.rpc.client import Client
from mosaic.trainer.states import State


def main() -> None:
    """Measure each part, print the tables, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=60.0, help="of streaming")
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--rate", type=int, default=200, help="events per second and stream")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=150_000, help="of the run whose cost is measured")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--block", type=float, default=1.0, help="seconds between two switches within one run")
    parser.add_argument("--switching", type=float, default=180.0, help="seconds of such a run")
    parser.add_argument("--outage", type=float, default=30.0, help="seconds for which the registry cannot be written")
    parser.add_argument("--produce", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.produce:
        produce(Path(args.produce), args.streams, args.rate, args.seconds)
        return
    rows = []
    for name in args.only.split(","):
        figures = PARTS[name](args)
        save("trainer", {name: figures})
        rows += [{"what": f"{name}: {key}", "measured": value} for key, value in figures.items()]
        print(markdown(rows[-len(figures) :]), flush=True)


def curves(args: argparse.Namespace) -> dict[str, Any]:
    """20 curves of a million points, read downsampled to 2,000 points each."""
    with home() as folder:
        began = time.perf_counter()
        fill_curves(folder, args.points)
        stored = time.perf_counter() - began
        with serving(folder) as (client, process):
            times = [timed(lambda: client.get_metrics("curves", max_points=2000)) for _ in range(5)]
            one = [timed(lambda: client.get_metrics("curves", ["curve/3"], max_points=2000)) for _ in range(5)]
            series = client.get_metrics("curves", max_points=2000)
            assert len(series) == 20 and all(s.total == args.points for s in series)
            return {
                "points per curve": args.points,
                "all 20 downsampled to 2,000, s (first, then median)": f"{times[0]:.2f}, {median(times):.2f}",
                "one of them, s": f"{median(one):.3f}",
                "storing 20 million points, s": f"{stored:.0f}",
                "daemon's memory afterwards, MB": megabytes(process),
            }


def listing(args: argparse.Namespace) -> dict[str, Any]:
    """Finished runs by the thousand."""
    with home() as folder:
        fill_runs(folder, args.runs)
        began = time.perf_counter()
        with serving(folder) as (client, process):
            started = time.perf_counter() - began
            spent = process.cpu_times()
            first = timed(client.list_runs)
            pages = [timed(client.list_runs) for _ in range(100)]
            filtered = [timed(lambda: client.list_runs(text="run-00500", states=[State.COMPLETED])) for _ in range(20)]
            deep = client.list_runs(page_size=1000)
            for _ in range(5):
                deep = client.list_runs(page_size=1000, page=deep.next_page)
            far = [timed(lambda: client.list_runs(page=deep.next_page)) for _ in range(20)]
            return {
                "finished runs": args.runs,
                "daemon's start until it answers, s (CPU s)": f"{started:.2f} ({spent.user + spent.system:.2f})",
                "a page of 50, ms (first, median, slowest)": _ms(first, median(pages), max(pages)),
                "a page of a text search, ms": _ms(median(filtered)),
                "a page in the middle, ms": _ms(median(far)),
                "daemon's memory, MB": megabytes(process),
            }


def streams(args: argparse.Namespace) -> dict[str, Any]:
    """Runs that emit, each with a reader that follows it; what is lost, and whether memory grows."""
    with home() as folder, serving(folder, "--slots", str(args.streams)) as (client, process):
        names = [f"stream-{number}" for number in range(args.streams)]
        producer = subprocess.Popen(
            [
                *(sys.executable, __file__, "--produce", str(folder), "--streams", str(args.streams)),
                *("--rate", str(args.rate), "--seconds", str(args.seconds)),
            ],
            stdin=subprocess.PIPE,
        )
        for name in names:
            client.submit_run({"algo": "ppo", "env_id": "x", "total_timesteps": 1}, external=True, run_id=name)
            request = pb.RegisterWorkerRequest(
                run_id=name,
                proto_version=PROTO_VERSION,
                boot_id=boot_id(),
                pid=producer.pid,
                start_ticks=start_ticks(producer.pid) or 0,
                run_folder=str(RunPaths(name, folder).folder),
            )
            client._stub.RegisterWorker(request, metadata=credentials(client.address))
        seen: dict[str, list[int]] = {name: [] for name in names}
        delays: list[float] = []
        readers = [
            threading.Thread(
                target=follow, args=(client.address.target, client.address.token, name, seen[name], delays)
            )
            for name in names
        ]
        for reader in readers:
            reader.start()
        time.sleep(2)
        assert producer.stdin is not None
        producer.stdin.close()
        before = process.cpu_times()
        began = time.monotonic()
        memory = []
        while producer.poll() is None:
            memory.append(megabytes(process))
            time.sleep(1)
        lasted = time.monotonic() - began
        cpu = process.cpu_times()
        for reader in readers:
            reader.join(120)
        expected = list(range(int(args.rate * args.seconds) + 2))
        lost = sum(found != expected for found in seen.values())
        stored = [client.get_run(name) for name in names]
        assert all(run.state == State.COMPLETED and run.next_seq == len(expected) for run in stored)
        third = max(1, len(memory) // 3)
        return {
            "streams, events/s each, seconds": f"{args.streams}, {args.rate}, {args.seconds:.0f}",
            "events written and read": sum(map(len, seen.values())),
            "events/s through the daemon": round(sum(map(len, seen.values())) / lasted),
            "readers that missed or reordered anything": lost,
            "delay from event to reader, s (median, worst)": f"{median(delays):.2f}, {max(delays):.2f}",
            "daemon's CPU, share of one core": f"{(cpu.user + cpu.system - before.user - before.system) / lasted:.0%}",
            "daemon's memory, MB (first, last third)": f"{median(memory[:third]):.0f}, {median(memory[-third:]):.0f}",
        }


def cost(args: argparse.Namespace) -> dict[str, Any]:
    """The same run by hand and under the daemon, by turns."""
    alone, under, shares = [], [], []
    with home() as folder, serving(folder) as (client, process):
        for number in range(args.repetitions):
            config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": args.steps, "seed": 1}
            path = folder / "by-hand.json"
            path.write_text(json.dumps({**config, "run_id": f"by-hand-{number}"}))
            subprocess.run(
                [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(path)],
                env={**os.environ, "MOSAIC_HOME": str(folder)},
                stdout=subprocess.DEVNULL,
                check=True,
            )
            alone.append(training_seconds(RunPaths(f"by-hand-{number}", folder)))
            before = process.cpu_times()
            run = client.train("ppo", "CartPole-v1", seed=1, total_timesteps=args.steps).wait()
            after = process.cpu_times()
            assert run.info.state == State.COMPLETED
            lasted = run.info.ended_at - run.info.started_at
            under.append(training_seconds(RunPaths(run.run_id, folder)))
            shares.append((after.user + after.system - before.user - before.system) / lasted)
        return {
            "training seconds by hand (each, median)": f"{_seconds(alone)}; {median(alone):.2f}",
            "training seconds under the daemon (each, median)": f"{_seconds(under)}; {median(under):.2f}",
            "daemon's CPU during a run, share of one core": f"{median(shares):.2%}",
            "daemon's memory, MB": megabytes(process),
        }


def follow(target: str, token: str, name: str, seen: list[int], delays: list[float]) -> None:
    with Client(target, token=token) as client:
        for event in client.follow_events(name):
            seen.append(event.seq)
            if event.seq % 100 == 0:
                delays.append(time.time() - event.timestamp)


def produce(folder: Path, count: int, rate: int, seconds: float) -> None:
    """What so many workers write, from one process: the daemon is measured, not they."""
    sys.stdin.read()
    logs = []
    for number in range(count):
        paths = RunPaths(f"stream-{number}", folder)
        paths.create()
        logs.append(EventLog(paths.events, paths.run_id))
        logs[-1].append("run_started", {})
    began = time.monotonic()
    written = 0
    while written < rate * seconds:
        due = min(int(rate * seconds), int((time.monotonic() - began) * rate))
        for step in range(written, due):
            for log in logs:
                log.append("episode", {"step": step, "return": 1.0, "length": 10})
        written = max(written, due)
        time.sleep(0.01)
    for log in logs:
        log.append("run_completed", {})


def training_seconds(paths: RunPaths) -> float:
    """From the first row to the last: without imports, which have nothing to do with the daemon."""
    rows = read_rows(paths.metrics)
    return float(rows[-1]["time"] - rows[0]["time"])


def timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _ms(*seconds: float) -> str:
    return ", ".join(f"{1000 * one:.1f}" for one in seconds)


def _seconds(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "curves": curves,
    "list": listing,
    "streams": streams,
    "cost": cost,
    "telemetry": trainer_cost.telemetry,
    "stopping": trainer_cost.stopping,
    "delay": trainer_cost.delay,
    "locked": trainer_faults.locked,
    "full": trainer_faults.full,
    "wide": trainer_wide.wide,
    "lines": trainer_wide.long_lines,
}

if __name__ == "__main__":
    main()
