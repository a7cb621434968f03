"""The launch of an attempt: its config file, command and environment; resumed if it has a checkpoint."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from mosaic.contract import variables
from mosaic.contract.paths import RunPaths, write_atomic
from mosaic.trainer.executors.contract import Claimed, Launch
from mosaic.trainer.executors.node_orders import mark_of
from mosaic.trainer.scheduling.resumption import checkpoints_of, next_attempt, start_over
from mosaic.trainer.scheduling.scripts import script_command
from mosaic.trainer.scheduling.submission import worker_environment


def prepare(
    row: sqlite3.Row,
    recipe: tuple[Mapping[str, Any], Mapping[str, Any], Sequence[str]],
    paths: RunPaths,
    secrets: Mapping[str, str] | None,
    target: str,
) -> Launch:
    """Write the attempt's config file and return how to start its worker; `secrets` None: on another machine."""
    payload, config, command = recipe
    told = payload["metadata"]["worker"]
    paths.create()
    own = paths.worker_config(row["slot"])
    if secrets is None:
        write_atomic(paths.attempt, mark_of(row["nonce"]) + "\n")
    handed = secrets or {}
    environment = {
        **({} if secrets is None else worker_environment(paths.home)),
        **{name: value for name, value in payload["environment"].items() if name not in handed},
        **handed,
        variables.MOSAIC_RUN_ID: row["run_id"],
        variables.MOSAIC_ATTEMPT: row["nonce"],
        **({} if secrets is None else _visible_gpus(row)),
    }
    if secrets is None and row["gpus_requested"]:
        environment.pop(variables.CUDA_VISIBLE_DEVICES, None)  # its cluster assigns the GPUs
    if row["attempt"] == 1 or secrets is None:
        flat = dict(config)  # another machine may hold other checkpoints: its relay decides how the run continues
    elif told.get("script"):
        flat = start_over(config, paths)  # only the script could know which of its phases were done
    else:
        flat = next_attempt(config, paths, checkpoints_of(environment, paths))
    if told.get("script"):
        argv, more = script_command(told["script"], flat, own, paths, command, environment, row["attempt"])
        environment |= more
    else:
        write_atomic(own, json.dumps(flat, indent=2) + "\n")
        # On another machine the relay connects to the daemon, not the worker.
        grpc = ["--grpc", "--grpc-target", target] if told.get("use_grpc") and secrets is not None else []
        argv = [*command, "--config", str(own), *grpc, *payload["arguments"], *told["arguments"]]
    return Launch(
        run_id=row["run_id"],
        nonce=row["nonce"],
        command=tuple(argv),
        environment=environment,
        folder=paths.home,
        stdout=paths.worker_stdout_log,
        stderr=paths.worker_stderr_log,
        claim=Claimed(row["cpus"], row["memory_mb"], row["gpus_requested"]),
        config=flat,
        grace=row["grace"],
        resources=payload.get("resources") or {},
        attempt=row["attempt"],
    )


def discard(payload: Mapping[str, Any], paths: RunPaths) -> None:
    """Remove the artifacts that a completed run was configured not to keep."""
    kept = payload.get("artifacts") or {}
    if not kept.get("keep_checkpoints", True):
        shutil.rmtree(paths.checkpoints, ignore_errors=True)
    if not kept.get("persist_logs", True):
        for file in (paths.stdout_log, paths.stderr_log, paths.worker_stdout_log, paths.worker_stderr_log):
            file.unlink(missing_ok=True)


def _visible_gpus(row: sqlite3.Row) -> dict[str, str]:
    """Return CUDA's variables: a run that requested GPUs sees only those granted; others see all of the machine."""
    if not row["gpus_requested"]:
        return {}
    # In the order of the bus, as they are counted; CUDA's default order begins with the fastest.
    granted = ",".join(str(index) for index in json.loads(row["gpus"]))
    return {variables.CUDA_VISIBLE_DEVICES: granted, variables.CUDA_DEVICE_ORDER: "PCI_BUS_ID"}
