"""The pack that continues a campaign on another machine, one file: runs, logs, bundles and the queue's rows."""

import dataclasses
import io
import json
import tarfile
import zlib
from pathlib import Path

from mosaic.contract.checkpoints import REPLAY
from mosaic.contract.paths import write_atomic
from rows import bundle, queued, slices, training
from rows.campaign import Places
from rows.queued import Row

ROWS = "rows.json"


def pack(places: Places, file: Path, carry_mb: float | None = None, part_mb: float | None = None) -> list[str]:
    """Write every row that was trained in the work folder; return the names of its rows.

    Of a running seed goes the checkpoint that it continues from, with its replay memory up to `carry_mb`. With
    `part_mb`, the file is cut into parts of this size.
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
    if part_mb is not None:
        _split(file, int(1e6 * part_mb))
    return [row.key for row in rows]


def unpack(places: Places, file: Path) -> list[str]:
    """Put the files of a pack in their places and its rows into the queue; return their names."""
    try:
        archive = tarfile.open(fileobj=io.BytesIO(_content(file)), mode="r:gz")
        members = archive.getmembers()  # reads all of it: a file that was cut short changes nothing
        entry = archive.extractfile(ROWS)
        rows = queued.parse(json.loads(entry.read()) if entry else None, f"pack {file}")
    except (OSError, EOFError, ValueError, KeyError, zlib.error, tarfile.TarError) as error:
        raise SystemExit(f"{file} is not a whole file of campaign.py pack: {error}; pack it again") from None
    with archive:
        for member in members:
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
    found, earlier = [slices.log_of(row, work), work / "begun" / f"{row.key}.json"], slices.slices_of(row, work)
    for one in training.trainings_of(row, work) if row.state != "done" else ():
        progress = one.progress(slices.since(earlier, one.seed))
        kept = [path for path in one.paths.folder.rglob("*") if path.is_file()]
        if progress.ended:  # a bundle is all that it is needed for
            kept = [path for path in kept if path.suffix != ".safetensors" or _is_small(path)]
        else:
            others = [path for path in one.checkpoints() if path != progress.checkpoint]
            kept = [path for path in kept if path.parent not in others]
        replay = [path for path in kept if path.parent.name == REPLAY]
        size = sum(path.stat().st_size for path in replay) / 1e6
        if progress.ended or (carry_mb is not None and size > carry_mb):
            kept = [path for path in kept if path not in replay]
        found += kept
    return [path for path in found if path.exists()]


def _is_small(path: Path) -> bool:
    return path.stat().st_size <= bundle.CHECKPOINT_BYTES


def _split(file: Path, part_bytes: int) -> None:
    """Replace a file by parts of a size that can be transferred; `unpack` takes the name without the number."""
    data = file.read_bytes()
    for number, start in enumerate(range(0, len(data), part_bytes)):
        write_atomic(file.with_name(f"{file.name}.{number:03d}"), data[start : start + part_bytes])
    file.unlink()


def _content(file: Path) -> bytes:
    parts = [file] if file.exists() else sorted(file.parent.glob(f"{file.name}.[0-9][0-9][0-9]"))
    if not parts:
        raise SystemExit(f"{file}: no such file, nor its parts {file.name}.000, …")
    return b"".join(part.read_bytes() for part in parts)


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
