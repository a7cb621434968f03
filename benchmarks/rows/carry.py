"""What continues a campaign on another machine, in one file: runs, logs, bundles and the queue's rows."""

import dataclasses
import io
import json
import tarfile
from pathlib import Path

from mosaic.wire.checkpoints import REPLAY
from rows import queued, slices, training
from rows.campaign import Places
from rows.queued import Row

ROWS = "rows.json"


def pack(places: Places, file: Path, carry_mb: float | None = None) -> list[str]:
    """Write every row that was trained in the work folder; return the names of its rows.

    Replay memories of ended seeds stay behind, as do all that are larger than `carry_mb`.
    """
    rows = [row for row in queued.load(places.queue) if slices.log_of(row, places.work).exists()]
    beside = file.with_name(f".{file.name}.new")
    with tarfile.open(beside, "w:gz") as archive:
        _add_text(archive, ROWS, json.dumps([row.to_json() for row in rows]))
        for row in rows:
            for path in _files_of(row, places.work, carry_mb):
                archive.add(path, f"work/{path.relative_to(places.work)}", recursive=False)
            if (places.results / row.key).is_dir():
                archive.add(places.results / row.key, f"results/{row.key}")
    beside.replace(file)
    return [row.key for row in rows]


def unpack(places: Places, file: Path) -> list[str]:
    """Put the files of a pack in their places and its rows into the queue; return their names."""
    try:
        archive = tarfile.open(file, "r:gz")
    except (OSError, tarfile.TarError) as error:
        raise SystemExit(f"{file} is not a file of campaign.py pack: {error}") from None
    with archive:
        entry = archive.extractfile(ROWS)
        rows = queued.parse(json.loads(entry.read()) if entry else None, f"pack {file}")
        for member in archive.getmembers():
            top, _, rest = member.name.partition("/")
            if target := {"work": places.work, "results": places.results}.get(top):
                archive.extract(member.replace(name=rest, deep=False), target, filter="data")
    with queued.changing(places.queue) as known:
        places_of = {row.key: place for place, row in enumerate(known)}
        for row in rows:
            if row.key not in places_of:
                known.append(row)
            else:
                own = known[places_of[row.key]]
                known[places_of[row.key]] = dataclasses.replace(row, priority=own.priority)
    return [row.key for row in rows]


def _files_of(row: Row, work: Path, carry_mb: float | None) -> list[Path]:
    found = [slices.log_of(row, work), work / "begun" / f"{row.key}.json"]
    for one in training.trainings_of(row, work):
        files = [path for path in one.paths.folder.rglob("*") if path.is_file()]
        replay = [path for path in files if path.parent.name == REPLAY]
        size = sum(path.stat().st_size for path in replay) / 1e6
        leave = one.progress().ended or (carry_mb is not None and size > carry_mb)
        found += [path for path in files if not (leave and path in replay)]
    return [path for path in found if path.exists()]


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
