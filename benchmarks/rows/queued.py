"""The queue of the campaign: one row for each algorithm on an environment, in a file that is replaced atomically."""

import contextlib
import dataclasses
import difflib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mosaic.contract.paths import write_atomic

FORMAT = 1
STATES = ("queued", "running", "done", "failed", "waiting")
DEVICES = ("cpu", "gpu")
ALGORITHMS = Path(__file__).parents[2] / "src" / "cleanrl_worker" / "algorithms"


class QueueError(SystemExit):
    """A queue that cannot be used: the file, the row, the value and what is allowed, in one line."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: what to train, how far it is, and why it is queued."""

    algo: str
    env_id: str
    steps: int
    seeds: tuple[int, ...]
    priority: int = 100
    """lower numbers are trained first"""
    state: str = "queued"
    device: str = "gpu"
    flags: dict[str, Any] = field(default_factory=dict)
    """the algorithm's parameters beyond its defaults"""
    label: str = ""
    """distinguishes a variant of the same algorithm and environment"""
    side_by_side: int = 1
    """seeds trained at a time"""
    measured: dict[str, float] = field(default_factory=dict)
    """steps per second of all processes together, by the number of processes"""
    checkpoints: dict[str, int] = field(default_factory=dict)
    """by seed: the step that it continues from, or at which it ended"""
    commit: str = ""
    """of the newest slice"""
    why: str = ""
    """the reason for its state"""

    @property
    def key(self) -> str:
        """Return the name of its bundle and of its runs."""
        parts = (self.algo, self.env_id, self.label)
        return "__".join(re.sub(r"[^A-Za-z0-9_-]", "-", part) for part in parts if part)

    def to_json(self) -> dict[str, Any]:
        """Return the row without the fields that have their default."""
        given = dataclasses.asdict(self) | {"seeds": list(self.seeds)}
        defaults = {
            f.name: f.default if f.default is not dataclasses.MISSING else {}
            for f in dataclasses.fields(self)
            if f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
        }
        kept = ("priority", "state", "device")
        return {k: v for k, v in given.items() if k in kept or k not in defaults or v != defaults[k]}


def load(path: Path) -> list[Row]:
    """Return the rows, the next first; QueueError for a file that is not a queue."""
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        raise QueueError(f"queue {path}: no such file; name one with --queue") from None
    except (OSError, ValueError) as error:
        raise QueueError(f"queue {path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT or not isinstance(document.get("rows"), list):
        raise QueueError(f'queue {path}: expected {{"format": {FORMAT}, "rows": [...]}}')
    return sorted(parse(document["rows"], f"queue {path}"), key=lambda row: row.priority)


def parse(entries: Any, where: str) -> list[Row]:
    """Return the rows of a document; QueueError for the first that cannot be one."""
    if not isinstance(entries, list):
        raise QueueError(f"{where}: expected a list of rows")
    rows = [_row(entry, f"{where}: row {number}") for number, entry in enumerate(entries, 1)]
    keys = [row.key for row in rows]
    if twice := next((key for key in keys if keys.count(key) > 1), ""):
        raise QueueError(f"{where}: two rows are named {twice}; give one of them another 'label'")
    return rows


def find(rows: list[Row], key: str) -> Row:
    """Return the row of that name."""
    named = {row.key: row for row in rows}
    if key not in named:
        raise QueueError(f"no row named {key!r}{_nearest(key, list(named))}; list them with: campaign.py status")
    return named[key]


@contextlib.contextmanager
def changing(path: Path) -> Iterator[list[Row]]:
    """Lock the queue, yield its rows and write them back; other processes wait."""
    folder = os.open(path.parent, os.O_RDONLY)  # the file itself is replaced, so its lock would be lost
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        rows = load(path)
        yield rows
        save(path, rows)
    finally:
        os.close(folder)


def save(path: Path, rows: list[Row]) -> None:
    """Replace the file."""
    lines = ",\n".join(f"  {json.dumps(row.to_json(), ensure_ascii=False)}" for row in rows)
    write_atomic(path, f'{{"format": {FORMAT}, "rows": [\n{lines}\n]}}\n')


def update(path: Path, key: str, **changes: Any) -> Row:
    """Change one row in the file and return it."""
    with changing(path) as rows:
        place = rows.index(find(rows, key))
        rows[place] = dataclasses.replace(rows[place], **changes)
        return rows[place]


def _row(entry: Any, where: str) -> Row:
    if not isinstance(entry, dict):
        raise QueueError(f"{where}: expected an object, not {json.dumps(entry)[:60]}")
    where = f"{where} ({entry.get('algo', '?')} {entry.get('env_id', '?')})"
    known = {f.name for f in dataclasses.fields(Row)}
    if unknown := sorted(entry.keys() - known):
        raise QueueError(f"{where}: unknown field {unknown[0]!r}{_nearest(unknown[0], sorted(known))}")
    if missing := [name for name in ("algo", "env_id", "steps", "seeds") if name not in entry]:
        raise QueueError(f"{where}: {missing[0]!r} is missing")
    for name, (allowed, fits) in _ALLOWED.items():
        if name in entry and not fits(entry[name]):
            raise QueueError(f"{where}: {name} must be {allowed}, not {json.dumps(entry[name])[:60]}")
    names = [file.stem for file in ALGORITHMS.glob("[!_]*.py")]
    if entry["algo"] not in names:
        raise QueueError(f"{where}: unknown algo {entry['algo']!r}{_nearest(entry['algo'], names)}")
    return Row(**entry | {"seeds": tuple(entry["seeds"])})


def _nearest(name: str, known: list[str]) -> str:
    found = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(type(number) in (int, float) for number in value.values())


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_seeds(value: Any) -> bool:
    whole = isinstance(value, list) and all(type(seed) is int and seed >= 0 for seed in value)
    return whole and 0 < len(value) == len(set(value))


_ALLOWED: dict[str, tuple[str, Any]] = {
    **dict.fromkeys(("env_id", "label", "commit", "why", "algo"), ("a text", _is_text)),
    **dict.fromkeys(("steps", "priority", "side_by_side"), ("a whole number, 1 or more", _is_count)),
    "seeds": ("a list of different whole numbers", _are_seeds),
    "state": (f"one of {', '.join(STATES)}", lambda value: value in STATES),
    "device": (f"one of {', '.join(DEVICES)}", lambda value: value in DEVICES),
    "flags": ("an object", lambda value: isinstance(value, dict)),
    "measured": ("an object of numbers", _is_counts),
    "checkpoints": ("an object of numbers", _is_counts),
}
