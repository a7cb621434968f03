"""The bundle of a row under results/: scores, curve, provenance, thinned rows, weight hashes, one small checkpoint."""

import contextlib
import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from curves import GRID, LAST, smoothed

from mosaic.contract.checkpoints import REPLAY, find_all, read_document, sealed
from mosaic.contract.metrics import encode_row, is_episode, read_rows
from mosaic.contract.paths import write_atomic
from rows.queued import Row
from rows.slices import Slice, machine, slices_of
from rows.training import Training, trainings_of

FORMAT = 1
CHECKPOINT_BYTES = 5_000_000
ROWS = 150  # of each seed, besides its last episodes
_EVENTS = ("run_started", "resumed", "checkpoint")


def write(row: Row, work: Path, results: Path, sources: dict[str, str], pinned: dict[str, Any]) -> Path:
    """Write the bundle of the seeds that have ended, beside the old one, and put it in its place."""
    folder, beside = results / row.key, results / f".{row.key}.new"
    shutil.rmtree(beside, ignore_errors=True)
    ended = [one for one in trainings_of(row, work) if one.progress().ended]
    episodes = {one.seed: _episodes(one) for one in ended}
    end = min(one.progress().step for one in ended)  # cut seeds are compared at the step that all have reached
    for one in ended:
        _write_seed(one, beside / f"seed-{one.seed}")
    _write_checkpoint(ended, beside)
    slices = slices_of(row, work)
    document = {
        "format": FORMAT,
        **{name: getattr(row, name) for name in ("algo", "env_id", "label", "steps", "flags", "side_by_side")},
        "wanted": list(row.seeds),
        "end": end,
        "seeds": {str(seed): _result(found, end) for seed, found in episodes.items()},
        **_totals(slices, [str(one.seed) for one in ended]),
        "slices": [dataclasses.asdict(one) for one in slices],
        "sources": sources,
        "curve": _curve(list(episodes.values()), end),
    }
    write_atomic(beside / "pinned.json", json.dumps(pinned) + "\n")
    write_atomic(beside / "bundle.json", json.dumps(document, indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)
    return folder


def read_all(results: Path) -> list[dict[str, Any]]:
    """Return the document of each bundle, with its name as `key`."""
    found = sorted(path for path in results.glob("*/bundle.json") if not path.parent.name.startswith("."))
    return [_document(path) for path in found]


def read(results: Path, key: str) -> dict[str, Any] | None:
    """Return the document of one bundle, None where it is missing."""
    path = results / key / "bundle.json"
    return _document(path) if path.exists() else None


def _document(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text())) | {"key": path.parent.name}
    except (OSError, TypeError, ValueError) as error:
        raise SystemExit(f"bundle {path} cannot be read: {error}; restore it, or train its row again") from None


def _episodes(one: Training) -> np.ndarray:
    """Return (step, return) of every logged training episode."""
    rows = [(r["step"], r["charts/episodic_return"]) for r in read_rows(one.paths.metrics) if is_episode(r)]
    return np.array(rows, dtype=float).reshape(-1, 2)


def _result(episodes: np.ndarray, end: int) -> dict[str, Any]:
    last = episodes[episodes[:, 0] <= end][-LAST:, 1]
    return {"score": float(last.mean()) if len(last) else None, "episodes": len(last)}


def _curve(seeds: list[np.ndarray], end: int) -> dict[str, Any]:
    grid = np.linspace(end / GRID, end, GRID)
    values = [[None if np.isnan(v) else round(float(v), 4) for v in smoothed(found, grid)] for found in seeds]
    return {"steps": [int(step) for step in grid], "seeds": values}


def _totals(slices: list[Slice], seeds: list[str]) -> dict[str, Any]:
    """Return wall-clock, throughput and energy of all slices of these seeds."""
    of_seeds = [one for one in slices if one.steps.keys() & set(seeds)]
    seconds = sum(one.seconds for one in of_seeds)
    steps = sum(to - since for one in of_seeds for to, since in [(b, a) for a, b in one.steps.values()])
    kwh = [one.kwh for one in of_seeds]
    commits = list(dict.fromkeys(one.commit for one in of_seeds if one.commit))
    return {
        "seconds": round(seconds, 1),
        "steps_per_second": round(steps / seconds, 1) if seconds else None,
        "kwh": None if None in kwh or not kwh else round(sum(filter(None, kwh)), 4),
        "commits": commits,
        "machines": list(dict.fromkeys(one.machine for one in of_seeds)) or [machine()],
        "measured": max((one.began for one in of_seeds), default=0.0),
    }


def _write_seed(one: Training, folder: Path) -> None:
    (folder / "logs").mkdir(parents=True)
    progress = dataclasses.replace(one.progress(), checkpoint=None)
    config = one.config(progress, 0.0) | {"run_id": folder.name}
    config["extras"] = {"algo_params": config["extras"]["algo_params"]}
    write_atomic(folder / "config.json", json.dumps(config, indent=1) + "\n")
    if one.paths.provenance.exists():
        document = _public(json.loads(one.paths.provenance.read_text()))
        write_atomic(folder / "provenance.json", json.dumps(document, indent=1) + "\n")
    with (folder / "metrics.jsonl").open("wb") as file:
        for row in _thinned(read_rows(one.paths.metrics)):
            values = {tag: value for tag, value in row.items() if tag not in ("step", "time")}
            file.write(encode_row(row["step"], row["time"], values))
    with (folder / "logs" / "worker.jsonl").open("w") as file:
        file.writelines(json.dumps(event) + "\n" for event in _events(one.paths.events))


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return evenly spaced rows, and those of the last episodes, from which the score follows."""
    last = [place for place, row in enumerate(rows) if is_episode(row)][-LAST:]
    spaced = np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).astype(int).tolist()
    return [rows[place] for place in sorted({*last, *spaced})]


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events that hold weight hashes, without the paths of this machine."""
    for line in path.read_text().splitlines():
        if not any(f'"{name}"' in line for name in _EVENTS):
            continue
        with contextlib.suppress(ValueError):  # a line that was cut short
            event = json.loads(line)
            if event["event"] in _EVENTS:
                event["payload"] = {k: _relative(v) for k, v in event["payload"].items() if k != "message"}
                yield event


def _write_checkpoint(ended: list[Training], beside: Path) -> None:
    """Copy the newest checkpoint from which `mosaic verify` can train a window, if it is small enough."""
    for one in ended:
        for path in find_all(one.paths.checkpoints):
            document = read_document(path)
            size = sum(file.stat().st_size for file in path.iterdir())
            whole = all((path / name).exists() for name in document["files"])  # large ones are not carried
            last = int(path.name) >= one.progress().step
            if last or not whole or not document.get("exact") or document.get(REPLAY) or size > CHECKPOINT_BYTES:
                continue
            folder = beside / f"seed-{one.seed}" / "checkpoints" / path.name
            folder.mkdir(parents=True)
            for name in document["files"]:
                shutil.copyfile(path / name, folder / name)
            document["run_folder"] = "."
            document["args"] = {k: v for k, v in document["args"].items() if k not in ("run_dir", "resume")}
            write_atomic(folder / "state.json", sealed(json.dumps(document, indent=1).encode()))
            return


def _public(document: dict[str, Any]) -> dict[str, Any]:
    """Return a provenance without host, folders and the attempts between the first and the last.

    Uncommitted changes are left out as well: the campaign itself changes its queue and page in the checkout.
    """
    attempts = document["attempts"]
    return {"format": document["format"], "attempts": [_attempt(one) for one in attempts[:1] + attempts[1:][-1:]]}


def _attempt(entry: dict[str, Any]) -> dict[str, Any]:
    entry = {name: value for name, value in entry.items() if name not in ("cwd", "config_digest")}
    entry["command"] = ["python", *(_relative(word) for word in entry.get("command", ())[1:])]
    extras = (entry.get("config") or {}).get("extras") or {}
    extras.pop("checkpoint_path", None)
    for name in ("mosaic", "environment"):
        part = {key: value for key, value in (entry.get(name) or {}).items() if key != "path"}
        if "git" in part:
            part["git"] = {key: part["git"][key] for key in ("commit",) if key in part["git"]}
        entry[name] = part
    for name, private in (("machine", "host"), ("python", "executable")):
        entry[name] = {key: value for key, value in (entry.get(name) or {}).items() if key != private}
    return entry


def _relative(value: Any) -> Any:
    """Return a text without the folders of this machine: `/home/me/run/checkpoints/7` becomes `checkpoints/7`."""
    if not isinstance(value, str):
        return value
    return re.sub(r"/[^\s=]*/", lambda found: "checkpoints/" if found[0].endswith("/checkpoints/") else "", value)
