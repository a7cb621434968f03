"""A registry that cannot be written for half a minute: locked by others, or on a full disk; parts of trainer.py.

The full disk is a real one, a tmpfs of 64 MiB, which needs the right to mount (root).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daemons import home, serving

from mosaic.contract.errors import MosaicError
from mosaic.contract.events import replay
from mosaic.contract.metrics import read_rows
from mosaic.contract.paths import RunPaths
from mosaic.trainer.rpc.client import Client
from mosaic.trainer.run import Run
from mosaic.trainer.states import State

# A user's own script: a row every 20 ms; on another environment than CartPole only for its first two seconds.
SCRIPT = """
import argparse, json, time
parser = argparse.ArgumentParser()
parser.add_argument("--env-id"), parser.add_argument("--total-timesteps", type=int), parser.add_argument("--seed")
args = parser.parse_args()
began = time.monotonic()
for step in range(args.total_timesteps):
    if step < 100 or args.env_id == "CartPole-v1":
        with open("metrics.jsonl", "a") as file:
            row = {"step": step, "time": time.time(), "charts/episodic_return": step, "charts/episodic_length": 1}
            file.write(json.dumps(row) + "\\n")
    time.sleep(max(0.0, began + 0.02 * step - time.monotonic()))
"""
ROWS_PER_SECOND = 50
LOCK = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], 60, isolation_level=None); c.execute('BEGIN EXCLUSIVE'); "
LOCK += "print(flush=True); sys.stdin.read(); c.execute('ROLLBACK')"


def locked(args: argparse.Namespace) -> dict[str, Any]:
    """Another process holds an exclusive transaction; one run ends meanwhile, one goes on."""
    with home() as folder, serving(folder, "--slots", "8") as (client, _):
        script = written(folder)
        runs = {
            "ends meanwhile": client.submit_run(config(script, args.outage / 2)),
            "goes on": client.submit_run(config(script, args.outage + 15)),
        }
        executing(client, runs)
        command = [sys.executable, "-c", LOCK, str(folder / "var/trainer/mosaic.db")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdin is not None and other.stdout is not None
            other.stdout.readline()
            seen = look(client, runs, args.outage, lambda: client.submit_run(config(script, 1)))
            other.stdin.close()
        return report(client, folder, runs, seen, {name: RunPaths(run.run_id, folder) for name, run in runs.items()})


def full(args: argparse.Namespace) -> dict[str, Any]:
    """The disk of the home is full; one run writes and so fails, one is silent, one is a distant worker's."""
    with home() as outside, small_disk(outside / "home") as folder, serving(folder, "--slots", "8") as (client, _):
        script = written(folder)
        far = outside / "far"
        runs = {
            "writes": client.submit_run(config(script, args.outage + 15)),
            "is silent meanwhile": client.submit_run(config(script, args.outage + 15, env_id="Acrobot-v1")),
        }
        worker = distant(client, far, config(script, args.outage + 10))
        while not client.list_runs(text="far").total:
            time.sleep(0.1)
        runs["is far away"] = client.get_run("far")
        executing(client, runs)
        while client.get_run(runs["is silent meanwhile"].run_id).step < 99:
            time.sleep(0.1)
        before = {name: client.get_run(run.run_id).next_seq for name, run in runs.items()}
        ballast = folder / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
        seen = look(client, runs, args.outage, lambda: client.submit_run(config(script, 1)))
        ballast.unlink()
        sources = {name: RunPaths(run.run_id, folder) for name, run in runs.items()}
        sources["is far away"] = RunPaths("far", far)
        told = report(client, folder, runs, seen, sources)
        kept = all(client.get_run(run.run_id).next_seq >= before[name] for name, run in runs.items())
        told["what was stored before is there"] = kept
        told["the distant worker's own end"] = worker.wait(60)
        return told


def look(client: Client, runs: dict[str, Run], seconds: float, submit: Any) -> dict[str, Any]:
    """What a person sees meanwhile: every state, the daemon's trouble, the answer to a submission."""
    states: dict[str, list[str]] = {name: [] for name in runs}
    answer, trouble = "", ""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, run in runs.items():
            state = client.get_run(run.run_id).state.name
            if state not in states[name][-1:]:
                states[name].append(state)
        trouble = str(client.health().get("trouble") or trouble)
        if not answer:
            try:
                answer = f"accepted {submit().run_id}"
            except MosaicError as error:
                answer = f"{type(error).__name__}: {error}"
        time.sleep(0.5)
    return {"states": states, "answer": answer, "trouble": trouble}


def report(
    client: Client, folder: Path, runs: dict[str, Run], seen: dict[str, Any], sources: dict[str, RunPaths]
) -> dict[str, Any]:
    """How each run ended, and whether the registry has all that its worker wrote, once and in order."""
    told: dict[str, Any] = {"meanwhile, the daemon says": seen["trouble"], "meanwhile, a submission": seen["answer"]}
    if seen["answer"].startswith("accepted"):
        told["that submission afterwards"] = client.wait_run(seen["answer"].split()[1], 120).state.name
    for name, run in runs.items():
        ended = client.wait_run(run.run_id, 180)
        events = list(replay(sources[name].events))
        rows = [row["charts/episodic_return"] for row in read_rows(sources[name].metrics)]
        (curve,) = client.get_metrics(run.run_id, ["charts/episodic_return"])
        whole = list(client.read_events(run.run_id)) == events and ended.next_seq == len(events)
        told[f"the run that {name}"] = (
            f"{' → '.join(seen['states'][name])} meanwhile, then {ended.state.name} {ended.reason}".strip()
        )
        told[f"the run that {name}: events, rows; all once and in order"] = (
            f"{len(events)}, {len(rows)}; {whole and curve.values.tolist() == rows}"
        )
    return {what: how.replace(str(folder), "HOME") if isinstance(how, str) else how for what, how in told.items()}


def config(script: Path, seconds: float, **fields: Any) -> dict[str, Any]:
    steps = int(seconds * ROWS_PER_SECOND)
    return {"algo": str(script), "env_id": "CartPole-v1", "total_timesteps": steps, "seed": 1, **fields}


def written(folder: Path) -> Path:
    path = folder / "mine.py"
    path.write_text(SCRIPT)
    return path


def executing(client: Client, runs: dict[str, Run]) -> None:
    while any(client.get_run(run.run_id).state != State.EXECUTING for run in runs.values()):
        time.sleep(0.1)


def distant(client: Client, far: Path, flat: dict[str, Any]) -> subprocess.Popen[bytes]:
    """A worker whose home the daemon cannot see."""
    far.mkdir()
    path = far / "config.json"
    path.write_text(json.dumps({**flat, "run_id": "far", "algo": str(written(far))}))
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(path), "--grpc", "--grpc-target"]
    environment = {**os.environ, "MOSAIC_HOME": str(far), "MOSAIC_TOKEN": client.address.token}
    return subprocess.Popen([*command, client.address.target], env=environment, stdout=subprocess.DEVNULL)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
