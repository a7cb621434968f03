"""The validity of measured rows for the sources: digests are compared first, the pinned update if they differ."""

import json
from pathlib import Path
from typing import Any

from mosaic.contract.paths import write_atomic
from rows import bundle, pinned, sources
from rows.queued import Row


def changed_files(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return the first-party files of the algorithm that differ."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def reason_against(row: Row, results: Path) -> tuple[str, dict[str, Any] | None]:
    """Return the reason why the row is invalid ("" if it is valid), and the new digests of a valid row."""
    document = bundle.read(results, row.key)
    if document is None:
        return "its bundle is missing", None
    files = changed_files(document["sources"], now := sources.digests_of(row.algo))
    if not files:
        return "", None
    before = json.loads((results / row.key / "pinned.json").read_text())
    try:
        found = pinned.change(before, pinned.compute(row))
    except pinned.PinnedError as error:
        return f"the pinned update cannot be computed: {error}", None
    return (f"{found}; changed: {', '.join(files[:3])}", None) if found else ("", now)


def keep(results: Path, key: str, digests: dict[str, str]) -> None:
    """Note that the row is valid for these sources, so that they are not compared again."""
    path = results / key / "bundle.json"
    document = json.loads(path.read_text()) | {"sources": digests}
    write_atomic(path, json.dumps(document, indent=1) + "\n")
