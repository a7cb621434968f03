"""Metrics in the registry: blobs of up to 4,096 packed points per run and key, and the last value of each key."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mosaic.contract.fields import SERIES
from mosaic.contract.kinds import text
from mosaic.contract.returns import BEST_EPISODES, EPISODE_RETURNS, MEAN_RETURN
from mosaic.trainer.run import Series

# A row per point would make a curve of a million points thirty times slower to read.
POINTS_PER_PART = 4096
SKETCHED_PARTS = 32
# From this many points on a part also stores the lowest and highest point of each of its buckets: a long curve is
# downsampled from these, without reading all of it.
DIGEST_FROM, DIGEST_BUCKETS = 1024, 64
# MinMaxLTTB selects from this many extremes per returned point.
EXTREMES_PER_POINT = 4
# A cursor is the number of points before it; the bits above these count the resumptions from a checkpoint.
_COUNT_BITS = 40
_COUNT_MASK = (1 << _COUNT_BITS) - 1
_TAG = text(10_000)
_NOT_TAGS = frozenset({"step", "time"})

Points = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64]]


def append_rows(connection: sqlite3.Connection, run: int, rows: Iterable[Mapping[str, Any]]) -> tuple[int, str]:
    """Store rows of metrics.jsonl in order, inside the caller's transaction, in which the file's cursor moves too.

    Return the number of resumptions, which delete later points, and the first key dropped because the run has SERIES
    others.
    """
    resumptions, left_out = 0, ""
    gathered: dict[str, list[tuple[int, float, float]]] = {}
    for row in rows:
        if "resumed_from" in row:
            left_out = _flush(connection, run, gathered) or left_out
            gathered = {}
            _take_back(connection, run, row["resumed_from"])
            resumptions += 1
            continue
        step, time = row["step"], float(row["time"])
        for key, value in row.items():
            if key not in _NOT_TAGS:
                gathered.setdefault(key, []).append((step, time, float(value)))
    return resumptions, _flush(connection, run, gathered) or left_out


def read_series(
    connection: sqlite3.Connection,
    run: int,
    epoch: int,
    *,
    keys: Sequence[str] = (),
    max_points: int = 0,
    since: Mapping[str, int] | None = None,
    average: bool = False,
) -> list[Series]:
    """Return the series of these keys (none: all), downsampled to max_points (0: whole), or the points after `since`.

    `average` returns means of neighbours instead of outstanding points, which would be a biased sample.
    """
    query = "SELECT id, key, count FROM series WHERE run = ?"
    if keys:
        query += f" AND key IN ({', '.join('?' * len(keys))})"
    found = connection.execute(f"{query} ORDER BY key", (run, *keys)).fetchall()
    cursors = since or {}
    read = [_read_one(connection, row, epoch, max_points, cursors.get(row["key"]), average) for row in found]
    return [replace(one, highest=_best(connection, run)) if average and one.key == MEAN_RETURN else one for one in read]


def last_values(connection: sqlite3.Connection, run: int) -> dict[str, float]:
    """Return the newest value of every key."""
    rows = connection.execute("SELECT key, value FROM series WHERE run = ? ORDER BY key", (run,))
    return {
        key: math.nan if value is None else value
        for key, value in rows
        if _TAG.fits(key) and isinstance(value, float | None)
    }


def last_value(connection: sqlite3.Connection, run: int, key: str) -> float | None:
    """Return the newest value of a key, None if it has none."""
    found = connection.execute("SELECT value FROM series WHERE run = ? AND key = ?", (run, key)).fetchone()
    return None if found is None else found[0]


def count_and_mean(
    connection: sqlite3.Connection, run: int, keys: Sequence[str], newest: int
) -> tuple[int, float | None]:
    """Return the number of points of the longest series among `keys`, and the mean of its newest numeric ones."""
    query = f"SELECT id, count FROM series WHERE run = ? AND key IN ({', '.join('?' * len(keys))}) ORDER BY count DESC"
    found = connection.execute(query, (run, *keys)).fetchone()
    if found is None or not found["count"]:
        return 0, None
    values = np.empty(0)
    # A part may be as short as a resumption left it: read as many parts as needed, the newest first.
    for (packed,) in connection.execute("SELECT vals FROM points WHERE series = ? ORDER BY part DESC", (found["id"],)):
        values = np.concatenate([np.frombuffer(packed, "<f8"), values])
        if len(values) >= newest:
            break
    recent = values[-newest:]
    recent = recent[np.isfinite(recent)]
    return int(found["count"]), float(recent.mean()) if len(recent) else None


def step_gaps(connection: sqlite3.Connection, run: int, newest: int) -> list[float]:
    """Return the seconds between the newest step increases, taken from the longest series, oldest first."""
    found = connection.execute("SELECT id FROM series WHERE run = ? ORDER BY count DESC LIMIT 1", (run,)).fetchone()
    grown: list[float] = []
    first: tuple[int, float] | None = None
    query = "SELECT steps, times FROM points WHERE series = ? ORDER BY part DESC"
    for packed in connection.execute(query, (found["id"],)) if found else ():
        steps, times = (np.frombuffer(packed[i], kind).tolist() for i, (_, kind) in enumerate(_KINDS[:2]))
        for step, at in zip(reversed(steps), reversed(times), strict=True):
            if first is not None and step < first[0]:
                grown.insert(0, first[1])
            if first is None or step <= first[0]:  # the first row of each step
                first = (step, at)
        if len(grown) > newest:
            break
    grown = grown[-newest - 1 :]
    return [max(0.0, after - before) for before, after in itertools.pairwise(grown)]


def sketch(connection: sqlite3.Connection, run: int, keys: Sequence[str], points: int) -> tuple[float, ...]:
    """Return the longest series among `keys` as a few means; () if none exists."""
    query = f"SELECT id, count FROM series WHERE run = ? AND key IN ({', '.join('?' * len(keys))}) ORDER BY count DESC"
    found = connection.execute(query, (run, *keys)).fetchone()
    if found is None:
        return ()
    # A list draws many of them: of a long series some parts suffice.
    every = 1 + found["count"] // (POINTS_PER_PART * SKETCHED_PARTS)
    query = "SELECT vals FROM points WHERE series = ? AND part % ? = 0 ORDER BY part"
    parts = connection.execute(query, (found["id"], every)).fetchall()
    values = np.concatenate([np.frombuffer(packed, "<f8") for (packed,) in parts]) if parts else np.empty(0)
    values = values[np.isfinite(values)]
    return tuple(_means(values, points).tolist())


def forget(connection: sqlite3.Connection, run: int) -> None:
    """Delete all metrics of a run."""
    connection.execute("DELETE FROM points WHERE series IN (SELECT id FROM series WHERE run = ?)", (run,))
    connection.execute("DELETE FROM series WHERE run = ?", (run,))


def downsample(points: Points, max_points: int) -> Points:
    """Return at most `max_points` points, the extremes among them, that draw the same curve."""
    steps, times, values = points
    if max_points <= 0 or len(values) <= max_points:
        return points
    if max_points < 4:  # the sampler needs both ends and a point between
        chosen = np.linspace(0, len(values) - 1, max_points).astype(np.int64)
    else:
        from tsdownsample import MinMaxLTTBDownsampler, NaNMinMaxLTTBDownsampler

        sampler = MinMaxLTTBDownsampler() if np.isfinite(values).all() else NaNMinMaxLTTBDownsampler()
        chosen = sampler.downsample(values, n_out=max_points)
    return steps[chosen], times[chosen], values[chosen]


def averaged(points: Points, max_points: int) -> Points:
    """Return at most `max_points` points, each the mean of equally many neighbours, at the position of the last one."""
    steps, times, values = points
    if max_points <= 0 or len(values) <= max_points:
        return points
    last = np.linspace(0, len(values), max_points + 1).astype(np.int64)[1:] - 1
    return steps[last], times[last], _means(values, max_points)


def _means(values: npt.NDArray[np.float64], points: int) -> npt.NDArray[np.float64]:
    """Return the means of equal parts, ignoring NaN."""
    if len(values) <= points:
        return values
    edges = np.linspace(0, len(values), points + 1).astype(np.int64)[:-1]
    finite = np.isfinite(values)
    counts = np.add.reduceat(finite.astype(np.int64), edges)
    sums = np.add.reduceat(np.where(finite, values, 0.0), edges)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _read_one(
    connection: sqlite3.Connection, row: sqlite3.Row, epoch: int, max_points: int, since: int | None, average: bool
) -> Series:
    seen = 0 if since is None else since & _COUNT_MASK
    reset = since is not None and (since >> _COUNT_BITS != epoch or seen > row["count"])
    skip = 0 if reset else seen
    digest = not skip and not average and 0 < max_points < row["count"]
    points = _digested(connection, row["id"], max_points) if digest else None
    if points is None:
        points = _points_from(connection, row["id"], row["count"], skip)
    steps, times, values = averaged(points, max_points) if average else downsample(points, max_points)
    cursor = (epoch << _COUNT_BITS) | row["count"]
    finite = points[2][np.isfinite(points[2])] if average else np.empty(0)
    highest = float(finite.max()) if len(finite) else None
    return Series(row["key"], steps, times, values, cursor, reset, row["count"], highest)


def _best(connection: sqlite3.Connection, run: int) -> float | None:
    """Return the highest logged return backed by enough episodes; None with fewer."""
    query = "SELECT id, key, count FROM series WHERE run = ? AND key IN (?, ?, ?) ORDER BY count DESC"
    found = connection.execute(query, (run, MEAN_RETURN, *EPISODE_RETURNS)).fetchall()
    means = next(row for row in found if row["key"] == MEAN_RETURN)
    episodes = next((row for row in found if row["key"] != MEAN_RETURN and row["count"] >= BEST_EPISODES), None)
    if episodes is None:
        return None
    first = _points_from(connection, episodes["id"], episodes["count"], 0)[0][BEST_EPISODES - 1]
    steps, _, values = _points_from(connection, means["id"], means["count"], 0)
    values = values[(steps >= first) & np.isfinite(values)]
    return float(values.max()) if len(values) else None


def _digested(connection: sqlite3.Connection, series: int, max_points: int) -> Points | None:
    """Return the extremes of a long curve; None if they are too few to choose from."""
    known = connection.execute(
        "SELECT SUM(CASE WHEN digest IS NULL THEN count ELSE ? END) FROM points WHERE series = ?",
        (2 * DIGEST_BUCKETS, series),
    ).fetchone()[0]
    if known is None or known < EXTREMES_PER_POINT * max_points:
        return None
    query = (
        "SELECT digest, CASE WHEN digest IS NULL THEN steps END, CASE WHEN digest IS NULL THEN times END, "
        "CASE WHEN digest IS NULL THEN vals END FROM points WHERE series = ? ORDER BY part"
    )
    parts = []
    for digest, *packed in connection.execute(query, (series,)):
        if digest is not None:
            third = len(digest) // 3
            packed = [digest[:third], digest[third : 2 * third], digest[2 * third :]]
        parts.append([np.frombuffer(packed[i], kind) for i, kind in _KINDS])
    steps, times, values = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return steps, times, values


def _digest(points: Points) -> bytes | None:
    """Return the first and the last point, and the lowest and the highest of each bucket."""
    values = points[2]
    if len(values) < DIGEST_FROM:
        return None
    width = -(-len(values) // DIGEST_BUCKETS)
    padded = np.full(width * DIGEST_BUCKETS, values[-1])
    padded[: len(values)] = values
    buckets, starts = padded.reshape(DIGEST_BUCKETS, width), np.arange(DIGEST_BUCKETS) * width
    missing = np.isnan(buckets)
    lowest = starts + np.where(missing, np.inf, buckets).argmin(axis=1)
    highest = starts + np.where(missing, -np.inf, buckets).argmax(axis=1)
    last = len(values) - 1
    chosen = np.unique(np.minimum(np.concatenate([[0, last], lowest, highest]), last))
    return b"".join(column[chosen].astype(kind).tobytes() for column, (_, kind) in zip(points, _KINDS, strict=True))


def _points_from(connection: sqlite3.Connection, series: int, count: int, skip: int) -> Points:
    """Return points from number `skip` on; whole parts before it are not read."""
    size = count - skip
    steps, times, values = np.empty(size, np.int64), np.empty(size, np.float64), np.empty(size, np.float64)
    if size <= 0:
        return steps[:0], times[:0], values[:0]
    first = 0
    if skip:
        before, first = 0, 0
        for part, number in connection.execute(
            "SELECT part, count FROM points WHERE series = ? ORDER BY part", (series,)
        ).fetchall():
            first = part
            if before + number > skip:
                break
            before += number
        skip -= before
    place = 0
    query = "SELECT steps, times, vals FROM points WHERE series = ? AND part >= ? ORDER BY part"
    for packed in connection.execute(query, (series, first)):
        some = np.frombuffer(packed[0], "<i8")[skip:]
        end = place + len(some)
        steps[place:end] = some
        times[place:end] = np.frombuffer(packed[1], "<f8")[skip:]
        values[place:end] = np.frombuffer(packed[2], "<f8")[skip:]
        place, skip = end, 0
    return steps[:place], times[:place], values[:place]


def _flush(connection: sqlite3.Connection, run: int, gathered: Mapping[str, list[tuple[int, float, float]]]) -> str:
    if not gathered:
        return ""
    ids = _series_ids(connection, run, list(gathered))
    for key, series in ids.items():
        points = gathered[key]
        steps = np.fromiter((point[0] for point in points), np.int64, len(points))
        times = np.fromiter((point[1] for point in points), np.float64, len(points))
        values = np.fromiter((point[2] for point in points), np.float64, len(points))
        for start in range(0, len(points), POINTS_PER_PART):
            part = slice(start, start + POINTS_PER_PART)
            _append_part(connection, series, (steps[part], times[part], values[part]))
    connection.executemany(
        "UPDATE series SET count = count + ?, step = ?, time = ?, value = ? WHERE id = ?",
        [(len(gathered[key]), *gathered[key][-1], series) for key, series in ids.items()],
    )
    return next((key for key in gathered if key not in ids), "")


def _series_ids(connection: sqlite3.Connection, run: int, keys: Sequence[str]) -> dict[str, int]:
    """Return the ids of these series; create new ones up to a run's limit."""
    # One statement for all of them: a row may have thousands.
    query = "SELECT key, id FROM series WHERE run = ? AND key IN (SELECT value FROM json_each(?))"
    known = dict(connection.execute(query, (run, json.dumps(keys))).fetchall())
    if len(known) == len(keys):
        return known
    count = connection.execute("SELECT COUNT(*) FROM series WHERE run = ?", (run,)).fetchone()[0]
    new = [key for key in keys if key not in known][: max(0, SERIES - count)]
    connection.executemany("INSERT INTO series (run, key) VALUES (?, ?)", [(run, key) for key in new])
    return dict(connection.execute(query, (run, json.dumps([*known, *new]))).fetchall())


def _append_part(connection: sqlite3.Connection, series: int, points: Points) -> None:
    """Add a part, merged with the small ones before it.

    A part is merged with one that is less than twice its size: so at most a dozen parts are unfinished, and a point is
    rewritten at most a dozen times, whether points arrive singly or in thousands.
    """
    last = connection.execute(
        "SELECT part, count FROM points WHERE series = ? ORDER BY part DESC LIMIT 16", (series,)
    ).fetchall()
    number = last[0]["part"] + 1 if last else 0
    merged, size = [], len(points[0])
    for row in last:
        if row["count"] >= 2 * size or row["count"] + size > POINTS_PER_PART:
            break
        merged.append(row["part"])
        size += row["count"]
    if merged:
        number = merged[-1]
        packed = connection.execute(
            "SELECT steps, times, vals FROM points WHERE series = ? AND part >= ? ORDER BY part", (series, number)
        ).fetchall()
        connection.execute("DELETE FROM points WHERE series = ? AND part >= ?", (series, number))
        before = [np.concatenate([np.frombuffer(row[i], kind) for row in packed]) for i, kind in _KINDS]
        points = tuple(np.concatenate([old, new]) for old, new in zip(before, points, strict=True))  # type: ignore[assignment]
    _insert_part(connection, series, number, points)


_KINDS = ((0, "<i8"), (1, "<f8"), (2, "<f8"))


def _insert_part(connection: sqlite3.Connection, series: int, number: int, points: Points) -> None:
    steps, times, values = points
    connection.execute(
        "INSERT INTO points (series, part, count, min_step, max_step, digest, steps, times, vals) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(series, number, len(steps), int(steps.min()), int(steps.max()), _digest(points)),
            *(steps.astype("<i8").tobytes(), times.astype("<f8").tobytes(), values.astype("<f8").tobytes()),
        ),
    )


def _take_back(connection: sqlite3.Connection, run: int, step: int) -> None:
    """Delete the points after `step`."""
    later = "series IN (SELECT id FROM series WHERE run = ?) AND {} > ?"
    touched = connection.execute(
        f"SELECT DISTINCT series FROM points WHERE {later.format('max_step')}", (run, step)
    ).fetchall()
    if not touched:
        return
    connection.execute(f"DELETE FROM points WHERE {later.format('min_step')}", (run, step))
    mixed = connection.execute(
        f"SELECT series, part, steps, times, vals FROM points WHERE {later.format('max_step')}", (run, step)
    ).fetchall()
    for row in mixed:
        steps, times, values = (np.frombuffer(row[2 + i], kind) for i, kind in _KINDS)
        kept = steps <= step
        connection.execute("DELETE FROM points WHERE series = ? AND part = ?", (row["series"], row["part"]))
        _insert_part(connection, row["series"], row["part"], (steps[kept], times[kept], values[kept]))
    for (series,) in touched:
        _settle_last(connection, series)


def _settle_last(connection: sqlite3.Connection, series: int) -> None:
    count = connection.execute("SELECT COALESCE(SUM(count), 0) FROM points WHERE series = ?", (series,)).fetchone()[0]
    if count == 0:
        connection.execute("DELETE FROM series WHERE id = ?", (series,))
        return
    row = connection.execute(
        "SELECT steps, times, vals FROM points WHERE series = ? ORDER BY part DESC LIMIT 1", (series,)
    ).fetchone()
    last = [np.frombuffer(row[i], kind)[-1].item() for i, kind in _KINDS]
    connection.execute(
        "UPDATE series SET count = ?, step = ?, time = ?, value = ? WHERE id = ?", (count, *last, series)
    )
