"""Processes that a run starts beside itself, so that a remote service can hang or fail without affecting training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mosaic.contract.paths import write_atomic

TRACKER_PATIENCE = 20.0  # seconds that W&B may take to finish after training; then it is killed
PUSH_SECONDS = 300.0


def start_tracker(folder: Path, offset: int, name: str, config: Mapping[str, Any]) -> Callable[[], None]:
    """Start W&B, which follows a run's metrics from an offset; return a function that waits for its end."""
    config_file = folder / "wandb_config.json"
    write_atomic(config_file, json.dumps(config))
    command = [
        sys.executable,
        "-P",
        "-m",
        "cleanrl_worker.telemetry.wandb",
        f"--run-dir={folder}",
        f"--offset={offset}",
    ]
    command += [f"--project={config['wandb_project_name']}", f"--name={config['wandb_run_name'] or name}"]
    command += [f"--config-file={config_file}"] + [f"--entity={config['wandb_entity']}"] * bool(config["wandb_entity"])
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)

    def close() -> None:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(TRACKER_PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print(f"W&B did not finish within {TRACKER_PATIENCE:.0f} s and was ended; its files are in {folder}/wandb")
        else:
            if process.returncode:
                print(f"W&B's process failed (exit code {process.returncode})")

    return close


def push_policy(folder: Path, path: Path, entity: str, returns: list[float], video: Path | None) -> None:
    """Push a policy to the hub; hub.json in the run folder has the result, and a failure affects nothing else."""
    outcome = _pushed(path, entity, returns, video)
    write_atomic(folder / "hub.json", json.dumps(outcome))
    print("; ".join(f"hub {key}: {value}" for key, value in outcome.items()), flush=True)


def _pushed(path: Path, entity: str, returns: list[float], video: Path | None) -> dict[str, str]:
    """Return `repository` or `error`."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "cleanrl_worker.telemetry.huggingface",
        f"--policy={path}",
        f"--returns={json.dumps(returns)}",
    ]
    command += [f"--entity={entity}"] * bool(entity) + [f"--video={video}"] * (video is not None)
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PUSH_SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": f"the hub did not take the policy within {PUSH_SECONDS:.0f} s"}
    said = (done.stderr if done.returncode else done.stdout).strip().rpartition("\n")[2]
    return {"error" if done.returncode else "repository": said or "no reason was given"}
