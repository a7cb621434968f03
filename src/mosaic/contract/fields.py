"""The typed border: the type, the range and the size of every field that enters from outside, declared once.

A reader parses a document with `parse_object` or `read_object` and checks it with a table: `SUBMISSION.check(payload)`.
The tables stand below and, for the files of a run, in `mosaic.contract.files`. A violation is a FieldError that names
the field, the value and the range.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from mosaic.contract.kinds import (
    ANYTHING,
    COUNT,
    DEPTH,
    ENVIRONMENT,
    FLAG,
    LEAST_INT,
    MOST_INT,
    OBJECT,
    READING,
    RUN_ID,
    SECONDS,
    SHARE,
    FieldError,
    Kind,
    Table,
    bounded,
    choice,
    list_of,
    map_of,
    name,
    number,
    text,
    whole,
)
from mosaic.wire.errors import shown

SEED_LIMIT = 1 << 32  # numpy's legacy seeding, which CleanRL-style scripts call, accepts no more

# Byte caps. A submission is kept in the registry and in files; gRPC carries 64 MiB.
SUBMISSION_BYTES = CONFIG_BYTES = 1 << 20
EVENT_BYTES = ROW_BYTES = 1_000_000
ROW_KEYS = 4096
WARNING_BYTES = 4_000  # of one warning
WARNINGS_BYTES = 64_000  # of all warnings of a run
CARD_BYTES = 64_000
STATE_BYTES = 16 << 20  # the generators of many environments are long lists
SIDECAR_BYTES = 5_000_000
MANIFEST_BYTES = 16 << 20
POLICY_BYTES = TENSORS_BYTES = 4 << 30  # of a policy file; of the arrays or a replay segment of a checkpoint
NOTE_BYTES = 4 << 20  # of the small files that a run's processes leave for each other and for pages
HEADER_BYTES = 1 << 20  # of the part of a policy file that names its tensors
CHUNK_BYTES = 64 << 20  # of an object in a store

# What a worker config's `extras` hold for the worker itself; all other extras are the algorithm's.
EXTRAS: dict[str, Kind] = {
    "mode": choice("train", "resume_training", "policy_eval", "interactive"),
    "algo_params": OBJECT,
    "tensorboard_dir": text(),
    "track_wandb": FLAG,
    **{f"wandb_{part}": text() for part in ("project_name", "project", "entity", "run_name", "email")},
    **{f"wandb_{part}": text() for part in ("http_proxy", "https_proxy")},
    "wandb_use_vpn_proxy": FLAG,
    "curriculum_schedule": ANYTHING,
    "curriculum": ANYTHING,
    "fastlane_video_mode": choice("single", "grid", "off"),
    "video_mode": choice("single", "grid", "off"),
    **{part: whole(0, 100_000) for part in ("fastlane_slot", "fastlane_grid_limit", "grid_limit")},
    "fastlane_only": FLAG,
    "policy_path": text(),
    "checkpoint_path": text(),
    "additional_timesteps": COUNT,
    "eval_episodes": whole(0, 1_000_000_000),
    "eval_batch_size": whole(0, 1_000_000_000),
    "eval_repeat": FLAG,
    "eval_capture_video": FLAG,
    "eval_max_episode_steps": COUNT,
    "eval_greedy": FLAG,
    "seed_override": whole(0, SEED_LIMIT - 1),
    "telemetry": choice("off", "episodes", "steps"),
    "notes": text(100_000),
    "agent_id": text(300),
    "optuna_db": text(),
    "checkpoints_dir": text(),
    "schema_id": text(300),
    "schema_version": whole(0, (1 << 31) - 1),
    "supports_pause": FLAG,
    "supports_checkpoint": FLAG,
    "max_restarts": whole(0, 1_000_000),
    "grace_seconds": SECONDS,
    "storage_url": text(),
    "python": text(),
}
EVALUATION_EXTRAS: dict[str, Kind] = {"gamma": SHARE}
"""worker's own in an evaluation only; in training they are parameters of the algorithm"""

CONFIG = Table(
    {
        "run_id": RUN_ID,
        "algo": name(4096),
        "env_id": name(),
        "total_timesteps": Kind(
            f"a whole number from {LEAST_INT} to {MOST_INT}",
            lambda value: type(value) in (int, float) and -(2.0**63) <= value < 2.0**63 and value == int(value),
        ),
        "seed": whole(0, SEED_LIMIT - 1),
        "worker_id": text(300),
        "agent_id": text(300),
        "extras": OBJECT,  # CleanRLWorkerConfig checks them with EXTRAS: "" counts as absent there
    }
)
SUBMISSION = Table(
    {
        "run_name": text(300),
        "entry_point": text(),
        "arguments": list_of(text()),
        "environment": ENVIRONMENT,
        "resources": Table(
            {
                "executor": choice("local", "ray", "slurm"),
                "cpus": number(most=1e6, above=0),
                "memory_mb": whole(1, 1 << 40),
                "gpus": Table({"requested": whole(0, 100_000), "mandatory": FLAG}),
                "ray": Table({"custom": map_of(number(0, 1e9), 1_000), "runtime_env": OBJECT}),
                "slurm": map_of(ANYTHING, 1_000),
            }
        ),
        "artifacts": Table({"output_prefix": text(), "persist_logs": FLAG, "keep_checkpoints": FLAG}),
        "schedule": Table({"max_duration_seconds": number(most=1e9, above=0), "max_steps": whole(1)}),
        "retry": Table({"max_restarts": whole(0, 1_000_000)}),
        "metadata": Table(
            {
                "ui": Table(
                    {
                        **{part: text(300) for part in ("agent_id", "worker_id", "run_mode", "group")},
                        "eval_batch_size": whole(1, 1_000_000_000),
                        "eval_repeat": FLAG,
                    }
                ),
                "worker": Table(
                    {
                        **{part: text(300) for part in ("worker_id", "module", "agent_id", "grpc_target")},
                        "script": text(),
                        "arguments": list_of(text()),
                        "use_grpc": FLAG,
                        "config": CONFIG,
                    }
                ),
            }
        ),
    }
)

CARD = Table(
    {
        **{part: text() for part in ("home", "target", "token_file", "ca", "boot")},
        "pid": whole(1, (1 << 31) - 1),
        "port": whole(0, 65535),
        "start_ticks": COUNT,
        "boot_id": text(300),
    },
    required=("target", "token_file", "pid"),
)

_STEP = whole()
EVENT_PAYLOADS: dict[str, Table] = {
    "episode": Table({"step": _STEP, "return": READING, "length": READING}),
    "step": Table({"steps": list_of(ANYTHING, 100_000)}),
    "heartbeat": Table({"step": _STEP, "sps": READING, "last_return": READING}),
    "checkpoint": Table({"step": _STEP, "path": text(), "exact": FLAG, "seconds": READING}),
    "resumed": Table({"step": _STEP, "exact": FLAG, "changed": OBJECT, "message": text(100_000)}),
    "phase": Table({"name": text(300), "status": text(300), "total_timesteps": whole()}),
    "warning": Table({"message": text(100_000)}),
    "run_started": Table({"total_timesteps": whole(), "seed": whole(), "pid": whole()}),
    "run_completed": Table({"manifest": OBJECT}),
    "run_failed": Table({"exit_code": whole(), "signal": text(300), "manifest": OBJECT}),
}
"""fields of an event's payload that others act on, by the event's kind"""


def parse_object(data: bytes | str, what: str, most_bytes: int = CONFIG_BYTES, *, wide: bool = False) -> dict[str, Any]:
    """Return the JSON object of a text within its cap; FieldError says what is wrong with it."""
    size = len(data) if isinstance(data, bytes) else len(data.encode("utf-8", "surrogatepass"))
    if size > most_bytes:
        raise FieldError(f"{what}: {size:,} bytes; at most {most_bytes:,} are accepted")
    try:
        found = json.loads(data, parse_constant=None if wide else _refuse_constant)
    except json.JSONDecodeError as error:
        raise FieldError(f"{what}: no valid JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise FieldError(f"{what}: nested deeper than {DEPTH} levels; flatten it") from None
    except ValueError as error:  # not UTF-8, a number of 4,301 digits
        raise FieldError(f"{what}: no valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise FieldError(f"{what}: a JSON object is needed, not {shown(found)}")
    bounded(found, "", wide=wide)
    return found


def read_object(path: Path | str, what: str, most_bytes: int = CONFIG_BYTES, *, wide: bool = False) -> dict[str, Any]:
    """Return the JSON object of a file; FieldError, also for what is no plain file."""
    return parse_object(read_bytes(path, what, most_bytes), what, most_bytes, wide=wide)


def read_bytes(path: Path | str, what: str, most_bytes: int) -> bytes:
    """Return a plain file's bytes; a pipe, a device and a file over its cap are refused before they cost anything."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise FieldError(f"{what}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FieldError(f"{what}: a plain file is needed, not a pipe, a device or a folder")
        if status.st_size > most_bytes:
            raise FieldError(f"{what}: {status.st_size:,} bytes; at most {most_bytes:,} are accepted")
        data = b""
        while len(data) <= most_bytes and (block := os.read(descriptor, most_bytes + 1 - len(data))):
            data += block
    except OSError as error:
        raise FieldError(f"{what}: cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(data) > most_bytes:  # it grew, or a file of /proc, which has no size
        raise FieldError(f"{what}: more than {most_bytes:,} bytes; fewer are accepted")
    return data


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not a JSON number")
