"""What an attempt is started with: its config file, its command, its environment; resumed where a checkpoint is."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic.trainer.executors.contract import Claimed, Launch
from mosaic.trainer.scripts import script_command
from mosaic.trainer.submission import worker_environment
from mosaic.wire import variables
from mosaic.wire.checkpoints import find_all, saved_state
from mosaic.wire.events import cut_torn_tail
from mosaic.wire.metrics import encode_resumed
from mosaic.wire.paths import RunPaths, write_atomic


def prepare(
    row: sqlite3.Row,
    recipe: tuple[Mapping[str, Any], Mapping[str, Any], Sequence[str]],
    paths: RunPaths,
    secrets: Mapping[str, str] | None,
    target: str,
) -> Launch:
    """Write the attempt's config file and say how to start its worker; `secrets` None: on another machine."""
    payload, config, command = recipe
    told = payload["metadata"]["worker"]
    paths.create()
    if row["attempt"] == 1:
        flat = dict(config)
    elif told.get("script"):
        flat = _start_over(config, paths)  # which of its phases were done, only the script could tell
    else:
        flat = _next_attempt(config, paths, _checkpoints(payload, paths))
    own = paths.worker_config(row["slot"])
    handed = secrets or {}
    environment = {
        **({} if secrets is None else worker_environment(paths.home)),
        **{name: value for name, value in payload["environment"].items() if name not in handed},
        **handed,
        variables.MOSAIC_RUN_ID: row["run_id"],
        variables.MOSAIC_ATTEMPT: row["nonce"],
        **({} if secrets is None else _visible_gpus(row)),
    }
    if told.get("script"):
        argv, more = script_command(told["script"], flat, own, paths, command, environment, row["attempt"])
        environment |= more
    else:
        write_atomic(own, json.dumps(flat, indent=2) + "\n")
        # On another machine the relay speaks with the daemon, not the worker.
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
    """Remove what a run that completed was told not to keep."""
    kept = payload.get("artifacts") or {}
    if not kept.get("keep_checkpoints", True):
        shutil.rmtree(paths.checkpoints, ignore_errors=True)
    if not kept.get("persist_logs", True):
        for file in (paths.stdout_log, paths.stderr_log, paths.worker_stdout_log, paths.worker_stderr_log):
            file.unlink(missing_ok=True)


def _next_attempt(config: Mapping[str, Any], paths: RunPaths, checkpoints: Path) -> dict[str, Any]:
    """The config with which a run goes on from its newest checkpoint, or starts over where it has none."""
    flat = {**config, "extras": dict(config.get("extras") or {})}
    extras = flat["extras"]
    if extras.get("mode") != "policy_eval" and find_all(checkpoints):
        extras |= {"mode": "resume_training", "checkpoint_path": str(checkpoints)}
        extras.pop("policy_path", None)
        if extras.pop("additional_timesteps", None):
            # The first attempt worked out its end, and saved it; more on top of that would be too many.
            flat["total_timesteps"] = saved_state(checkpoints).get("args", {}).get("total_timesteps")
        return flat
    return _start_over(flat, paths)


def _start_over(config: Mapping[str, Any], paths: RunPaths) -> dict[str, Any]:
    """The same config once more: the rows of the attempt before no longer count."""
    if paths.metrics.exists():
        cut_torn_tail(paths.metrics)
        with paths.metrics.open("ab") as file:
            file.write(encode_resumed(-1))
    return dict(config)


def _checkpoints(payload: Mapping[str, Any], paths: RunPaths) -> Path:
    """Where a run's checkpoints lie; a place that its environment names is honoured."""
    given = payload["environment"].get(variables.MOSAIC_CHECKPOINT_DIR)
    return Path(given) if given else paths.checkpoints


def _visible_gpus(row: sqlite3.Row) -> dict[str, str]:
    """A run that asked for GPUs sees those it got, or none; one that asked for none sees the machine as it is."""
    if not row["gpus_requested"]:
        return {}
    # In the order of the bus, as they were counted; CUDA's own order begins with the fastest.
    granted = ",".join(str(index) for index in json.loads(row["gpus"]))
    return {variables.CUDA_VISIBLE_DEVICES: granted, variables.CUDA_DEVICE_ORDER: "PCI_BUS_ID"}
