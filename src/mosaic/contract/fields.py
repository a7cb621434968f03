"""The typed border: the type, the range and the size of every field that enters from outside, declared once.

A reader parses a document with `parse_object` or `read_object` and checks it with a table: `SUBMISSION.check(payload)`.
The tables stand below and, for the files of a run, in `mosaic.contract.files`. A violation is a FieldError that names
the field, the value and the range.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic.contract.errors import shown
from mosaic.contract.kinds import (
    ANYTHING,
    COUNT,
    DEPTH,
    DIGEST,
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
    json_list,
    list_of,
    map_of,
    name,
    number,
    section,
    text,
    whole,
)

SEED_LIMIT = 1 << 32  # the limit of numpy's legacy seeding, which CleanRL-style scripts call

# Byte caps. A submission is kept in the registry and in files; gRPC carries 64 MiB.
SUBMISSION_BYTES = CONFIG_BYTES = 1 << 20
EVENT_BYTES = ROW_BYTES = 1_000_000
ROW_KEYS = 4096
TAG_CHARS = 300
SERIES = 4 * ROW_KEYS  # different metrics of a run
WARNING_BYTES = 4_000  # of one warning
WARNINGS_BYTES = 64_000  # of all warnings of a run
RUN_TEXT_BYTES = 4_096  # of a reason, a name and each other text that a list of runs shows
CARD_BYTES = 64_000
STATE_BYTES = 16 << 20  # the generators of many environments are long lists
SIDECAR_BYTES = 5_000_000
MANIFEST_BYTES = 16 << 20
POLICY_BYTES = TENSORS_BYTES = 4 << 30  # of a policy file; of the arrays or a replay segment of a checkpoint
NOTE_BYTES = 4 << 20  # of the small files that a run's processes leave for each other and for pages
HEADER_BYTES = 1 << 20  # of the part of a policy file that names its tensors
CHUNK_BYTES = 64 << 20  # of an object in a store
PROVENANCE_BYTES = 16 << 20
DIFF_BYTES = 1_000_000  # of one repository's changes, and of one script's copy; more is cut
ATTEMPTS = 200  # of a run's provenance

RESTARTS = whole(0, 1_000_000)
# The part of a worker config's `extras` for the worker itself; all other extras are the algorithm's.
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
    "max_restarts": RESTARTS,
    "grace_seconds": SECONDS,
    "storage_url": text(),
    "python": text(),
}
EVALUATION_EXTRAS: dict[str, Kind] = {"gamma": SHARE}
"""the worker's own in an evaluation only; in training they are parameters of the algorithm"""


def check_extras(extras: Any, place: str = "extras") -> None:
    """Refuse extras of the worker's own that are of the wrong kind; null and "" count as absent."""
    OBJECT.check(extras, place)
    kinds = EXTRAS | (EVALUATION_EXTRAS if extras.get("mode") == "policy_eval" else {})
    for key, value in extras.items():
        if key in kinds and value not in (None, ""):
            kinds[key].check(value, f"{place}.{key}")


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
        "extras": Kind("a JSON object", lambda value: isinstance(value, Mapping), check_extras),
    }
)
SUBMISSION = Table(
    {
        "run_name": text(300),
        "entry_point": text(),
        "arguments": list_of(text()),
        "environment": ENVIRONMENT,
        "resources": section(
            executor=choice("local", "ray", "slurm"),
            cpus=number(most=1e6, above=0),
            memory_mb=whole(1, 1 << 40),
            gpus=section(requested=whole(0, 100_000), mandatory=FLAG),
            ray=section(custom=map_of(number(0, 1e9), 1_000), runtime_env=OBJECT),
            slurm=map_of(Kind("a text, a whole number, true or false", lambda value: type(value) in (str, int, bool))),
        ),
        "artifacts": section(output_prefix=text(), persist_logs=FLAG, keep_checkpoints=FLAG),
        "schedule": section(max_duration_seconds=number(most=1e9, above=0), max_steps=whole(1)),
        "retry": section(max_restarts=RESTARTS),
        "metadata": section(
            ui=section(
                **{part: text(300) for part in ("agent_id", "worker_id", "run_mode", "group", "version")},
                eval_batch_size=whole(1, 1_000_000_000),
                eval_repeat=FLAG,
            ),
            worker=section(
                **{part: text(300) for part in ("worker_id", "module", "agent_id", "grpc_target")},
                script=text(),
                arguments=list_of(text()),
                use_grpc=FLAG,
                config=CONFIG,
            ),
        ),
    },
    closed=True,
)

_PROCESS: dict[str, Kind | Table] = {"pid": whole(1, (1 << 31) - 1), "start_ticks": COUNT, "boot_id": text(300)}
# Cards: the file in which a running server names itself, in its home.
CARD = Table(
    {**_PROCESS, **{part: text() for part in ("home", "target", "token_file", "ca")}},
    required=(*_PROCESS, "home", "target", "token_file"),
)
WEB_CARD = Table({**_PROCESS, "port": whole(1, 65535), "boot": text(300)}, required=(*_PROCESS, "port", "boot"))
RAY_CARD = Table({**_PROCESS, "port": whole(1, 65535), "address": text(300)}, required=(*_PROCESS, "port", "address"))

_STEP = whole()
_TIME = number(-1e12, 1e12)
ROW = Table({"step": _STEP, "resumed_from": _STEP, "time": _TIME})
"""the fields of a metrics row besides its tags"""
TAG = text(TAG_CHARS)
EVENT = Table({"seq": COUNT, "timestamp": _TIME})
_MANIFEST = Table(
    {
        "artifacts": Table(
            {
                "policy": text(),
                "videos": list_of(text(), 100_000),
                "tensorboard": Table({"enabled": FLAG, "relative_path": text()}),
                "wandb": Table({"enabled": FLAG, "run_path": text()}),
            }
        )
    }
)
EVENT_PAYLOADS: dict[str, Table | Kind] = {
    "episode": Table({"step": _STEP, "return": READING, "length": READING}, required=("return",)),
    "step": Table({"steps": Kind("a list of at most 100,000", lambda value: _is_list(value, 100_000))}),
    "metrics": map_of(READING, ROW_KEYS + 1, TAG),
    "eval_batch": Table({"step": _STEP, "episodes": READING, "avg_return": READING}),
    "stage": Table({"step": _STEP, "stage": whole(), "env_id": text(300), "reason": text()}),
    "heartbeat": Table({"step": _STEP, "sps": READING, "last_return": READING, "doing": text(300), "paused": FLAG}),
    "paused": Table({"step": _STEP}),
    "continued": Table({"step": _STEP, "paused_seconds": READING}),
    "checkpoint": Table(
        {
            **{"step": _STEP, "path": text(), "exact": FLAG, "seconds": READING},
            **{"weights": DIGEST, "metrics_bytes": COUNT, "device": text(300)},
        }
    ),
    "resumed": Table({"step": _STEP, "exact": FLAG, "changed": OBJECT, "message": text(100_000)}),
    "phase": Table(
        {
            **{part: text(300) for part in ("name", "status", "outcome", "env_id")},
            **{part: whole(0) for part in ("number", "phases")},
            "total_timesteps": whole(),
        }
    ),
    "warning": Table({"message": text(EVENT_BYTES)}),
    "run_started": Table({"total_timesteps": whole(), "seed": whole(), "pid": whole()}),
    "run_completed": Table({"manifest": _MANIFEST, "mean_return": READING, "stopped_by": text(300)}),
    "run_failed": Table(
        {
            "exit_code": whole(),
            **{part: text(100_000) for part in ("signal", "error", "stopped_by")},
            "manifest": _MANIFEST,
        }
    ),
}
"""fields of an event's payload that readers use, by the event's kind"""


# The registry's own file is untrusted, too: anybody with a shell can write to it.
# A value beyond the range of gRPC's messages, a clock or our tables makes a row unreadable.
_INT32 = (1 << 31) - 1
_MOMENT = number(0, 253_402_300_799)  # the end of the year 9999
_SWITCH = whole(0, 1)
_VALUE = Kind("a number", lambda value: type(value) in (int, float))
REASON_LENGTH = 4096  # of what is shown
RUN_ROW: dict[str, Kind] = {
    "run_id": RUN_ID,
    "state": choice("INIT", "HANDSHAKE", "READY", "EXECUTING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED", "LOST"),
    **{part: text(1 << 26) for part in ("reason", "asked_reason", "closing")},
    **{part: text() for part in ("run_name", "worker_type", "algo", "env_id", "mode", "agent_id", "group", "executor")},
    **{part: text() for part in ("job", "node", "signal", "nonce", "boot_id", "worker_id", "session_hash")},
    "seed": whole(),
    **dict.fromkeys(("total_timesteps", "step", "episodes", "max_steps", "memory_mb", "gpus_requested"), COUNT),
    **dict.fromkeys(("slot", "start_ticks", "events_seq", "events_offset", "metrics_offset"), COUNT),
    "metrics_epoch": whole(0, 1 << 22),  # above the count in a curve's cursor
    "queue_order": whole(),
    **{part: whole(-_INT32 - 1, _INT32) for part in ("priority", "exit_code")},
    **{part: whole(0, _INT32) for part in ("attempt", "restarts", "max_restarts", "pid")},
    **dict.fromkeys(("external", "gpus_mandatory", "asked_sent", "reads_files", "imported"), _SWITCH),
    "stalled": number(0, 1e12),  # since when, 0 if it is not
    "deleting": _SWITCH,
    **{part: json_list(text(1 << 26)) for part in ("secret_names", "warnings")},
    "gpus": json_list(whole(0, _INT32)),
    **dict.fromkeys(("created_at", "started_at", "ended_at"), _MOMENT),
    **{part: number(0) for part in ("cpus", "max_duration", "grace", "ran_seconds", "asked_grace")},
    **dict.fromkeys(("last_return", "mean_return", "last_length", "sps"), _VALUE),
    "asked": choice("", "cancel", "pause", "continue"),
}
"""the registry's columns of a run"""
RUN_NULLS = frozenset(
    "seed max_duration max_steps asked_grace exit_code last_return mean_return last_length sps".split()
)
"""those that may be NULL"""
_PARAMS = Kind("a JSON object", lambda value: isinstance(value, Mapping) or value == "")  # "" counts as absent
STORED_PAYLOAD = Table(
    {
        "metadata": Table(
            {
                "ui": OBJECT,
                "worker": Table(
                    {"config": Table({"extras": Table({"algo_params": _PARAMS})}), "arguments": list_of(ANYTHING)}
                ),
            }
        ),
        **dict.fromkeys(("environment", "resources", "artifacts", "schedule", "retry"), OBJECT),
        "arguments": list_of(ANYTHING),
    }
)
"""parts of a stored payload that pages and commands rely on"""
PAYLOAD_BYTES = 16 << 20  # a submission with every default filled in


def _is_list(value: object, most: int) -> bool:
    return type(value) is list and len(value) <= most


def parse_object(data: bytes | str, what: str, most_bytes: int = CONFIG_BYTES, *, wide: bool = False) -> dict[str, Any]:
    """Return the JSON object of a text within its cap; raise FieldError for anything else."""
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
    """Return the JSON object of a file; raise FieldError for anything else."""
    return parse_object(read_bytes(path, what, most_bytes), what, most_bytes, wide=wide)


def read_bytes(path: Path | str, what: str, most_bytes: int) -> bytes:
    """Return a plain file's bytes; refuse a pipe, a device and a file over its cap before reading."""
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
