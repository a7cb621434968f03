"""The table of runs as Quasar draws it: columns on wide screens, cards on narrow ones. Vue escapes all texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nicegui import ui

from mosaic.web.run_rows import SPARK_HEIGHT, SPARK_WIDTH

_COLUMNS = (
    ("state", "State", "left"),
    ("name", "Run", "left"),
    ("mode", "Mode", "left"),
    ("algo", "Algorithm", "left"),
    ("env", "Environment", "left"),
    ("seed", "Seed", "right"),
    ("agent", "Agent, worker", "left"),
    ("progress", "Progress", "left"),
    ("return", "Return", "left"),
    ("sps", "Steps/s", "right"),
    ("age", "Age", "right"),
    ("gpu", "GPU", "left"),
)

STYLE = """
.mosaic-state { display: inline-flex; align-items: center; gap: 4px; color: white; border-radius: 999px;
  padding: 1px 8px 1px 6px; font-size: 12px; white-space: nowrap; }
.mosaic-run-link { color: inherit; font-weight: 500; text-decoration: underline; text-decoration-color: #0072B2;
  text-underline-offset: 2px; display: inline-block; vertical-align: middle; white-space: nowrap;
  max-width: 11rem; overflow: hidden; text-overflow: ellipsis; }
.mosaic-cut { max-width: 8.5rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.mosaic-small { font-size: 11px; opacity: 0.75; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.mosaic-number { min-width: 3.2rem; font-variant-numeric: tabular-nums; }
/* Quasar's own is a layer of its own in the browser, one for each row */
.mosaic-progress { height: 6px; border-radius: 4px; overflow: hidden; background: rgba(0, 0, 0, 0.104); }
.body--dark .mosaic-progress { background: rgba(255, 255, 255, 0.24); }
.mosaic-progress > div { height: 100%; background: var(--q-primary); transition: width 0.3s; }
.mosaic-spark { color: #0072B2; flex: none; }
.body--dark .mosaic-spark { color: #56B4E9; }
.mosaic-chosen { outline: 2px solid #0072B2; }
.mosaic-runs td, .mosaic-runs th { padding-left: 8px !important; padding-right: 8px !important; }
.mosaic-runs .mosaic-cell-env { max-width: 11rem; overflow: hidden; text-overflow: ellipsis; }
"""


class RunsTable(ui.table, component="runs_table.js"):
    """An empty table; `chosen` is called for selections, `toggled` for groups that are opened or closed."""

    def __init__(self, chosen: Callable[[Sequence[dict[str, Any]]], None], toggled: Callable[[str], None]) -> None:
        columns = [
            {"name": name, "label": label, "field": name, "align": align, "classes": f"mosaic-cell-{name}"}
            for name, label, align in _COLUMNS
        ]
        super().__init__(
            columns=columns, rows=[], row_key="id", selection="multiple", on_select=lambda: chosen(self.selected)
        )
        ui.add_css(STYLE)
        self.classes("w-full mosaic-runs").props(
            'flat bordered dense hide-pagination :rows-per-page-options="[0]" :grid="Quasar.Screen.lt.md" '
            'aria-label="Runs" hide-selected-banner'
        )
        self.props["spark-width"], self.props["spark-height"] = SPARK_WIDTH, SPARK_HEIGHT
        self.on("toggle", lambda event: toggled(str(event.args)))
