"""The files of a run at the typed border: checkpoints, sidecars, manifests of stores and notes of its processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mosaic.contract.fields import CHUNK_BYTES, NOTE_BYTES, read_object
from mosaic.contract.kinds import (
    COUNT,
    DIGEST,
    FILE_NAME,
    FILE_PATH,
    FLAG,
    NUMBERS,
    OBJECT,
    PARAMETERS,
    READING,
    RING_NAME,
    RUN_ID,
    SHARE,
    FieldError,
    Kind,
    Table,
    list_of,
    map_of,
    name,
    number,
    text,
    whole,
)

SCORE = Kind("a number", lambda value: type(value) in (int, float))
_WORD = (1 << 32) - 1


def _are_words(value: object, count: int) -> bool:
    if type(value) is not list or len(value) != count or set(map(type, value)) != {int}:
        return False
    return min(value) >= 0 and max(value) <= _WORD


def _is_position(value: object) -> bool:
    return type(value) is int and 0 <= value <= 624  # numpy would read beyond its words


GENERATORS = Table(
    {
        "python": Kind(
            "the state of Python's generator",
            lambda value: (
                type(value) is list and len(value) == 3 and _are_words(value[1], 625) and _is_position(value[1][-1])
            ),
        ),
        "numpy": Kind(
            "the state of numpy's Mersenne Twister",
            lambda value: (
                type(value) is list and len(value) == 5 and _are_words(value[1], 624) and _is_position(value[2])
            ),
        ),
        "run": Table(
            {"bit_generator": name(40), "state": OBJECT, "has_uint32": whole(0, 1), "uinteger": whole(0, _WORD)}
        ),
    },
    required=("python", "numpy", "run"),
)
CHECKPOINT = Table(
    {
        "format": whole(1, 1_000_000),
        "step": COUNT,
        "algo": name(4096),
        "env_id": name(),
        "seed": COUNT,
        "args": PARAMETERS,
        "files": map_of(DIGEST, 100, FILE_NAME),
        "weights": DIGEST,
        "numbers": OBJECT,
        "random": GENERATORS,
        "replay": Table(
            {
                "added": COUNT,
                "capacity": COUNT,
                "segments": list_of(
                    Table(
                        {"file": FILE_NAME, "first": COUNT, "end": COUNT, "sha256": DIGEST},
                        ("file", "first", "end", "sha256"),
                    )
                ),
            },
            ("segments",),
        ),
        "saved_at": number(0, 1e12),
        "score": SCORE,
        "exact": FLAG,
        "shift": whole(),
        "metrics_bytes": COUNT,
        "run_folder": text(),
        "spaces": text(10_000),
        "env_backend": text(300),
        "device": text(300),
    },
    required=("format", "step", "files"),
)
ACTING = Table(
    {
        **dict.fromkeys(("gamma", "end_e", "repeat_action_probability"), SHARE),
        **dict.fromkeys(("v_min", "v_max", "exploration_noise"), number()),
        **dict.fromkeys(("env_backend", "network", "distribution_mode", "exp_name"), text(300)),
        **dict.fromkeys(("start_level", "num_levels"), COUNT),
        "n_atoms": whole(1),
        "mission": FLAG,
    }
)
"""arguments of a training that its policy needs to act"""
SIDECAR = Table(
    {
        "format": whole(1, 1_000_000),
        "algo": text(),
        "env_id": text(300),
        "args": PARAMETERS,
        "seed": COUNT,
        "step": COUNT,
        "training_return": SCORE,
        "weights": DIGEST,
        "observation_statistics": Table({"mean": NUMBERS, "var": NUMBERS}, ("mean", "var")),
        "spaces": text(10_000),
        "env_backend": text(300),
        "device": text(300),
        "versions": map_of(text(300), 1_000),
    }
)
_CHUNK = Kind(
    f"a chunk's size, at most {CHUNK_BYTES}, and its SHA-256",
    lambda value: (
        type(value) is list
        and len(value) == 2
        and type(value[0]) is int
        and 0 <= value[0] <= CHUNK_BYTES
        and DIGEST.fits(value[1])
    ),
)
STORED = Table(
    {
        "format": whole(1, 1_000_000),
        "updated_at": number(0, 1e12),
        "run_id": RUN_ID,
        "generation": COUNT,
        "files": map_of(
            Table({"chunks": list_of(_CHUNK, 1_000_000), "changed_at": number(0, 1e12)}, ("chunks", "changed_at")),
            1_000_000,
            FILE_PATH,
        ),
        "checkpoints": map_of(
            Table(
                {
                    "step": COUNT,
                    "saved_at": number(0, 1e12),
                    "files": list_of(FILE_PATH, 100_000),
                    "exact": FLAG,
                    "score": SCORE,
                    "stage": COUNT,
                    "pinned": FLAG,
                },
                ("step", "saved_at", "files"),
                closed=True,
            ),
            10_000,
            FILE_PATH,
        ),
    },
    required=("format", "run_id", "generation", "files", "checkpoints"),
)
"""the manifest of a stored run"""

# Files that a run's processes leave for each other, by their names in the run's folder.
COPIES = Table({"url": text(), "files": map_of(list_of(number(), 2), 1_000_000, FILE_PATH)})
STORAGE = Table(
    {
        "url": text(),
        **dict.fromkeys(("moved_bytes", "left_bytes", "flushed"), COUNT),
        "stored_at": number(0, 1e12),
        "error": text(100_000),
        "again": FLAG,
    }
)
EXIT = Table({"attempt": text(300), "code": whole(-(1 << 31), _WORD), "signal": text(300)}, ("attempt", "code"))
RING = Table({"name": RING_NAME}, ("name",))
HUB = Table({"repository": text(100_000), "error": text(100_000)})
ANALYTICS = Table({"artifacts": OBJECT, "summary": OBJECT, "notes": text(100_000)})
EVALUATION = Table(
    {
        **dict.fromkeys(("batch_index", "episodes"), COUNT),
        **dict.fromkeys(("avg_return", "min_return", "max_return", "median_return", "std_return"), READING),
        **dict.fromkeys(("duration_sec", "updated_at"), READING),
    }
)
TRACKING = Table({part: text(100_000) for part in ("mode", "error", "folder", "run_path", "entity", "project")})
PHASE = Table(
    {
        **dict.fromkeys(("number", "first_step", "metrics_offset", "pid", "end_step", "episodes"), COUNT),
        **{part: text() for part in ("name", "algo", "env_id", "outcome")},
        "exit_code": whole(),
        "seconds": number(),
        **dict.fromkeys(("final_return", "best_return"), READING),
        "error": text(100_000),
    },
    required=("number", "name", "algo", "env_id", "first_step", "metrics_offset", "pid"),
    closed=True,
)


def read_note(path: Path, table: Table) -> dict[str, Any]:
    """Return a small object that a run's process left for others; {} if it is missing or refused."""
    try:
        found = read_object(path, path.name, NOTE_BYTES, wide=True)
        table.check_fields(found, "")
    except FieldError:
        return {}
    return found
