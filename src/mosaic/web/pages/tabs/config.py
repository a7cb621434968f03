"""The Config tab: the run's config, and its differences from the defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nicegui import ui

from mosaic.contract import provenance
from mosaic.contract.errors import ConfigError
from mosaic.web.layout import code_box

if TYPE_CHECKING:
    from mosaic.contract.paths import RunPaths
    from mosaic.web.pages.run import RunPage

MOST_DIFF = 50_000  # characters that a page shows

COLUMNS: list[dict[str, Any]] = [
    {"name": "name", "label": "Parameter", "field": "name", "align": "left", "sortable": True},
    {"name": "value", "label": "This run", "field": "value", "align": "left"},
    {"name": "default", "label": "Default", "field": "default", "align": "left"},
    {"name": "help", "label": "Meaning", "field": "help", "align": "left"},
]


async def show(page: RunPage) -> None:
    """Draw the tab."""
    payload = page.run.payload
    config = config_of(payload)
    schema = await page.web.do(page.web.schema)
    fields = schema.get(str(config.get("algo")), {}).get("fields", [])
    ui.label("Differs from the defaults").classes("text-base font-semibold")
    rows = differences(config, fields)
    if not fields:
        ui.label("This algorithm is not one of the worker's own; its defaults are not known here.").classes(
            "opacity-80"
        )
    elif not rows:
        ui.label("Every parameter has its default.").classes("opacity-80")
    if rows:
        ui.table(rows=rows, columns=COLUMNS, row_key="name").props("dense flat wrap-cells").classes("w-full")
    name = page.paths.config_file.name
    with ui.row().classes("w-full items-center gap-4"):
        ui.label("The whole config").classes("text-base font-semibold")
        ui.link(name, f"/files/{page.run_id}/{name}", new_tab=True).classes("mosaic-mono text-sm break-all")
    code_box(json.dumps(payload, indent=2, ensure_ascii=False), label="Copy the config")
    await _show_provenance(page)


async def _show_provenance(page: RunPage) -> None:
    """Draw the provenance: the last attempt in a few lines, packages and changes on request."""
    document, trouble = await page.web.do(lambda: _provenance(page.paths))
    with ui.row().classes("w-full items-center gap-4"):
        ui.label("Provenance").classes("text-base font-semibold").props("role=heading aria-level=3")
        if document:
            name = page.paths.provenance.name
            ui.link(name, f"/files/{page.run_id}/{name}", new_tab=True).classes("mosaic-mono text-sm break-all")
    if document is None:
        ui.label(trouble or "Not recorded: the run has not started yet, or an earlier version ran it.").classes(
            "opacity-80"
        )
        return
    with ui.column().classes("w-full gap-1").props('data-provenance="true"'):
        for name, line in provenance.facts(document):
            with ui.row().classes("w-full no-wrap items-start gap-4"):
                ui.label(name).classes("text-sm opacity-80 w-24 shrink-0")
                ui.label(line).classes("mosaic-mono text-sm break-all min-w-0 grow")
    packages = provenance.newest(document).get("packages") or {}
    with ui.expansion(f"All packages ({len(packages)})", icon="inventory_2").classes("w-full"):
        ui.label(", ".join(f"{name} {version}" for name, version in packages.items())).classes("mosaic-mono text-sm")
    for digest, text in (document.get("diffs") or {}).items():
        with ui.expansion(f"Uncommitted changes {digest[:12]}", icon="difference").classes("w-full"):
            code_box(text[:MOST_DIFF], label="Copy the changes")
            if len(text) > MOST_DIFF:
                ui.label(f"The first {MOST_DIFF:,} of {len(text):,} characters; the file has all.").classes("text-sm")


def _provenance(paths: RunPaths) -> tuple[dict[str, Any] | None, str]:
    """Return provenance.json, and why it cannot be read."""
    try:
        return provenance.read_provenance(paths), ""
    except ConfigError as error:
        return None, str(error)


def config_of(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the worker's part of a payload; {} if it has none."""
    found = payload.get("metadata", {}).get("worker", {}).get("config") or {}
    return dict(found) if isinstance(found, Mapping) else {}


def differences(config: Mapping[str, Any], fields: list[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the parameters that differ from the algorithm's defaults, and the worker's settings that are set."""
    extras = dict(config.get("extras") or {})
    given = {**extras, **(extras.pop("algo_params", None) or {})}
    given.pop("algo_params", None)
    for name in ("env_id", "total_timesteps", "seed"):
        if config.get(name) is not None:
            given[name] = config[name]
    rows = []
    known = {str(field["name"]): field for field in fields}
    for name, value in sorted(given.items(), key=lambda item: (item[0] not in known, item[0])):
        field = known.get(name, {})
        if value is None or value == "" or (name in known and _same(value, field.get("default"))):
            continue
        default = _shown(field.get("default")) if name in known else "not set"
        rows.append({"name": name, "value": _shown(value), "default": default, "help": str(field.get("help", ""))})
    return rows


def _same(value: Any, default: Any) -> bool:
    if isinstance(value, bool) or isinstance(default, bool):
        return value is default
    return bool(value == default) or str(value) == str(default)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
