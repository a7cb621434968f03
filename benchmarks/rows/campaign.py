"""The steps of a campaign: choose a row, train its seeds in slices, write its bundle after each that ends."""

import contextlib
import fcntl
import json
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic import catalog
from mosaic.contract.metrics import read_rows
from mosaic.contract.paths import write_atomic
from rows import bundle, page, pinned, queued, slices, sources, training, validity
from rows.queued import Row
from rows.training import Training

LEAST_SECONDS = 20.0  # of a slice: starting a worker takes 2 to 10
LEAST_SHARE = 0.2  # of the whole time, where that is shorter
# Of a transition in a replay memory: a stacked image is one new frame, a vector has up to 50 numbers before and after.
IMAGE_BYTES, FLAT_BYTES = 7_600, 400


class Interrupted(Exception):
    """A signal stopped a slice; its trainings continue from their checkpoints."""


@dataclass(frozen=True)
class Places:
    """The files and folders that a campaign reads and writes."""

    queue: Path
    work: Path
    results: Path
    page: Path
    commit: str


def train(places: Places, seconds: float, *, device: str, key: str = "", carry_mb: float | None = None) -> int:
    """Train rows of the queue for so long at most; slices end at a checkpoint, ended seeds are in their bundle.

    Return the exit code: 1 if a signal stopped it.
    """
    end, tried = time.monotonic() + seconds, set[str]()
    least = min(LEAST_SECONDS, LEAST_SHARE * seconds)
    while (left := end - time.monotonic()) >= least:
        row = _next_row(queued.load(places.queue), device, key, tried)
        if row is None:
            nothing = f"{key} has ended" if key else f"no row for a {device} is queued"
            _report("nothing is left to train in the time given" if tried else nothing)
            return 0
        with _holding(row, places.work) as held:
            if not held:
                _report(f"{row.key}: another process trains it")
                tried.add(row.key)
                continue
            try:
                if not _train_row(places, row, left, carry_mb):
                    tried.add(row.key)
            except Interrupted:
                _report(f"{row.key}: stopped by a signal; it continues from its checkpoints")
                return 1
    return 0


def report(places: Places) -> Path:
    """Write the page from the bundles; those that the queue holds again are marked."""
    found, rows = bundle.read_all(places.results), queued.load(places.queue)
    again = {row.key: row.why for row in rows if row.state in ("queued", "failed") and row.why}
    return page.write(found, places.page, again)


def check(places: Places, keys: list[str]) -> int:
    """Queue again every measured row whose pinned update changed; return how many."""
    again, rows = 0, queued.load(places.queue)
    for row in [queued.find(rows, key) for key in keys] or rows:
        if row.state != "done":
            if keys:
                _report(f"{row.key}: not measured yet ({row.state})")
            continue
        reason, digests = validity.reason_against(row, places.results)
        if reason:
            again += 1
            queued.update(places.queue, row.key, state="queued", checkpoints={}, why=reason)
            _forget(row, places.work)
            _report(f"{row.key}: queued again: {reason}")
        else:
            if digests is not None:
                validity.keep(places.results, row.key, digests)
            _report(f"{row.key}: valid{': equal pinned update with changed files' if digests else ''}")
    report(places)
    return again


def measure(places: Places, key: str, processes: int, seconds: float) -> Row:
    """Train one seed alone, then several side by side; the faster choice is kept in the queue's row."""
    row = queued.find(queued.load(places.queue), key)
    measured = dict(row.measured)
    for count in (1, min(processes, len(row.seeds))):
        work = places.work / "measure"
        shutil.rmtree(work, ignore_errors=True)
        group = [Training(row, seed, work) for seed in row.seeds[:count]]
        found = slices.run_slice(group, seconds, places.commit)
        if found.failed:
            raise SystemExit(f"{key}: {found.failed}")
        measured[str(count)] = round(sum(_speed(one) for one in group), 1)
        shutil.rmtree(work, ignore_errors=True)
    best = max(measured, key=lambda count: measured[count])
    return queued.update(places.queue, key, measured=measured, side_by_side=int(best))


def _speed(one: Training) -> float:
    """Return the steps per second between the first and the last row, without the start."""
    rows = read_rows(one.paths.metrics) if one.paths.metrics.exists() else []
    if len(rows) < 2 or rows[-1]["time"] <= rows[0]["time"]:
        raise SystemExit(f"{one.row.key}: nothing was logged in this time; give more --seconds")
    return float((rows[-1]["step"] - rows[0]["step"]) / (rows[-1]["time"] - rows[0]["time"]))


def _next_row(rows: list[Row], device: str, key: str, tried: set[str]) -> Row | None:
    if key:
        row = queued.find(rows, key)
        return None if row.state == "done" or key in tried else row
    fitting = (row for row in rows if row.device == device and row.state in ("queued", "running"))
    return next((row for row in fitting if row.key not in tried), None)


def _train_row(places: Places, row: Row, left: float, carry_mb: float | None) -> bool:
    """Train one group of the row's seeds in one slice; return False if nothing more can be done with the row."""
    if reason := _begin(places, row):
        _report(f"{row.key}: {reason}")
        return False
    waiting = [one for one in training.trainings_of(row, places.work) if not one.progress().ended]
    if waiting:
        group, groups = waiting[: row.side_by_side], -(-len(waiting) // row.side_by_side)
        cut = carry_mb is not None and needed_mb(row) > carry_mb
        seconds = left / groups if cut else left  # seeds that are cut get equal shares
        queued.update(places.queue, row.key, state="running")
        found = slices.run_slice(group, seconds, places.commit, last=cut)
        _report(f"{row.key}: {_steps(found)} in {found.seconds:.0f} s{'; ' + found.failed if found.failed else ''}")
        for one in group if cut and not (found.failed or found.interrupted) else ():
            if not one.progress().ended:
                one.cut()
        more = _finish(places, row)
        if found.failed:
            _note(places, row, state="failed", commit=found.commit, why=found.failed)
            return False
        if found.interrupted:
            raise Interrupted
        # Without an ended seed, the time that is left is too short for another checkpoint.
        return more and any(one.progress().ended for one in group)
    return _finish(places, row)


def _finish(places: Places, row: Row) -> bool:
    """Write the bundle of the seeds that have ended and the page; return True while others wait."""
    every = training.trainings_of(row, places.work)
    ended = [one for one in every if one.progress().ended]
    if ended and (begun := _begun(row, places.work)) is not None:
        bundle.write(row, places.work, places.results, begun["sources"], begun["pinned"])
    done = len(ended) == len(every)
    cut = any(one.cut_at() is not None for one in ended)
    why = "cut: its replay memory is too large to carry" if cut else ""
    _note(places, row, state="done" if done else "running", commit=places.commit, why=why)
    report(places)
    return not done


def _note(places: Places, row: Row, **changes: Any) -> None:
    steps = {str(one.seed): one.progress().step for one in training.trainings_of(row, places.work)}
    queued.update(places.queue, row.key, checkpoints={seed: step for seed, step in steps.items() if step}, **changes)


def _begin(places: Places, row: Row) -> str:
    """Compute the pinned update of a new row; a row whose update changed since begins again. Return what failed."""
    path, digests = _begun_file(row, places.work), sources.digests_of(row.algo)
    begun = _begun(row, places.work)
    if begun is not None and begun["sources"] == digests:
        return ""
    try:
        now = pinned.compute(row)
    except pinned.PinnedError as error:
        reason = f"it cannot be trained here: {error}"
        queued.update(places.queue, row.key, state="failed", why=reason)
        return reason
    if begun is not None and (changed := pinned.change(begun["pinned"], now)):
        _report(f"{row.key}: begins again: {changed}")
        _forget(row, places.work)
    write_atomic(path, json.dumps({"sources": digests, "pinned": now}))
    return ""


def _forget(row: Row, work: Path) -> None:
    """Remove what an earlier measurement of the row left in the work folder."""
    for one in training.trainings_of(row, work):
        shutil.rmtree(one.paths.folder, ignore_errors=True)
    slices.log_of(row, work).unlink(missing_ok=True)
    _begun_file(row, work).unlink(missing_ok=True)


def _begun_file(row: Row, work: Path) -> Path:
    return work / "begun" / f"{row.key}.json"


def _begun(row: Row, work: Path) -> dict[str, Any] | None:
    path = _begun_file(row, work)
    return json.loads(path.read_text()) if path.exists() else None


def needed_mb(row: Row) -> float:
    """Return about how many megabytes the row's replay memory takes; 0.0 for an on-policy algorithm."""
    from cleanrl_worker.schema import parameters

    fields = {field["name"]: field["default"] for field in parameters.describe()[row.algo]["fields"]} | row.flags
    known = catalog.find(row.env_id)
    transition = IMAGE_BYTES if known is not None and known.observation_space == "image" else FLAT_BYTES
    return min(int(fields.get("buffer_size") or 0), row.steps) * transition / 1e6


@contextlib.contextmanager
def _holding(row: Row, work: Path) -> Iterator[bool]:
    """Hold a row's lock, so that two processes with one work folder train different rows."""
    path = work / "locks" / row.key
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _steps(found: slices.Slice) -> str:
    return ", ".join(f"seed {seed}: {since:,} to {to:,}" for seed, (since, to) in found.steps.items())


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
