"""Measure how one run's wide rows and long lines delay the other runs of its home; part of trainer.py."""

import argparse
import json
import os
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from daemons import home, megabytes, serving

from mosaic.contract.channel import PROTO_VERSION, credentials
from mosaic.contract.events import EventLog
from mosaic.contract.paths import RunPaths
from mosaic.contract.proto import trainer_pb2 as pb
from mosaic.trainer.executors.local import boot_id, start_ticks
from mosaic.trainer.rpc.client import Client

LONG_LINE = 20_000_000
READERS = 8


def wide(args: argparse.Namespace) -> dict[str, Any]:
    """One run logs rows with many keys; another one logs a small row and waits until the registry shows it."""
    found: dict[str, Any] = {}
    for keys in (1, 4096, 100_000):
        with home() as folder, serving(folder, "--slots", "8") as (client, process):
            neighbour, loud = start(client, folder, "neighbour"), start(client, folder, "wide")
            delays = []
            for step in range(1, 4):
                append(loud, {"step": step, "time": time.time(), **{f"k{n}": 0.5 for n in range(keys)}})
                time.sleep(0.3)  # until the daemon is at it
                append(neighbour, {"step": step, "time": time.time(), "charts/SPS": 1.0})
                began = time.monotonic()
                while client.get_run("neighbour").step < step:
                    time.sleep(0.01)
                delays.append(time.monotonic() - began)
            found[f"another run's row is seen, beside rows of {keys:,} keys, s (median, worst)"] = (
                f"{median(delays):.2f}, {max(delays):.2f}"
            )
            found[f"daemon's memory afterwards, MB ({keys:,} keys)"] = megabytes(process)
    return found


def long_lines(args: argparse.Namespace) -> dict[str, Any]:
    """Eight readers of a log with lines of 20 MB."""
    with home() as folder, serving(folder, "--slots", "8") as (client, process):
        paths = start(client, folder, "long")
        with EventLog(paths.events, "long") as log:
            for number in range(200):
                log.append("warning", {"message": f"small {number}"})
        for seq in range(201, 206):
            line = {"event": "warning", "run_id": "long", "seq": seq, "timestamp": 0.0}
            with paths.events.open("ab") as file:
                file.write(json.dumps({**line, "payload": {"message": "x" * LONG_LINE}}).encode() + b"\n")
        with EventLog(paths.events, "long") as log:
            log.append("warning", {"message": "the last"})
        while client.get_run("long").next_seq < 207:
            time.sleep(0.05)
        peak, seen = [megabytes(process)], [0] * READERS

        def read(number: int) -> None:
            with Client(client.address.target, token=client.address.token) as one:
                seen[number] = sum(1 for _ in one.read_events("long"))

        readers = [threading.Thread(target=read, args=(number,)) for number in range(READERS)]
        for reader in readers:
            reader.start()
        while any(reader.is_alive() for reader in readers):
            peak.append(megabytes(process))
            time.sleep(0.02)
        return {"events that each reader got": str(sorted(set(seen))), "daemon's memory at most, MB": max(peak)}


def start(client: Client, folder: Path, name: str) -> RunPaths:
    """An external run whose files this process writes."""
    client.submit_run({"algo": "ppo", "env_id": "x", "total_timesteps": 1000}, external=True, run_id=name)
    paths = RunPaths(name, folder)
    paths.create()
    request = pb.RegisterWorkerRequest(
        run_id=name,
        proto_version=PROTO_VERSION,
        boot_id=boot_id(),
        pid=os.getpid(),
        start_ticks=start_ticks(os.getpid()) or 0,
        run_folder=str(paths.folder),
    )
    client._stub.RegisterWorker(request, metadata=credentials(client.address))
    with EventLog(paths.events, name) as log:
        log.append("run_started", {})
    return paths


def append(paths: RunPaths, row: dict[str, Any]) -> None:
    with paths.metrics.open("ab") as file:
        file.write(json.dumps(row).encode() + b"\n")
