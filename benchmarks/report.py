"""Tables for people and JSON for the record: what every benchmark writes."""

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def save(name: str, results: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write <name>.json with the day and the machine; parts measured earlier, there or in results/, stay."""
    path = folder / f"{name}.json"
    written = json.dumps({**load(name, folder), **results, "measured": machine()}, indent=1) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(written)
    return path


def load(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """What was measured earlier, in this folder or else in results/."""
    path = folder / f"{name}.json"
    earlier = path if path.exists() else RESULTS / path.name
    return json.loads(earlier.read_text()) if earlier.exists() else {}


def machine() -> dict[str, Any]:
    """The day, and what the figures depend on."""
    today = datetime.now(UTC).date().isoformat()
    return {"date": today, "cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}


def markdown(rows: list[dict[str, Any]]) -> str:
    """Rows as a table; rows with other columns start a new one."""
    lines: list[str] = []
    header: list[str] = []
    for row in rows:
        if list(row) != header:
            header = list(row)
            lines += ["", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        cells = (f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values())
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines[1:])
