"""The W&B tab: the tracking's address and status; the command that uploads an offline run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nicegui import ui

from mosaic.contract.files import ANALYTICS, TRACKING, read_note
from mosaic.web.layout import code_box

if TYPE_CHECKING:
    from mosaic.web.pages.run import RunPage

SITE = "https://wandb.ai"
# entity/project/run; anything else becomes no address
_RUN_PATH = re.compile(r"[\w.-]+/[\w.-]+/[\w.-]+")


async def show(page: RunPage) -> None:
    """Draw the tab, and redraw it whenever its facts change."""
    column = ui.column().classes("w-full gap-3")
    seen: list[Tracking] = []

    async def draw() -> None:
        tracking = await page.web.do(
            lambda: tracking_of(
                read_note(page.paths.analytics, ANALYTICS),
                read_note(page.paths.wandb_status, TRACKING),
                page.paths.folder,
            )
        )
        if seen == [tracking]:
            return
        seen[:] = [tracking]
        column.clear()
        with column:
            _draw(tracking)

    await draw()
    page.hear(draw)


@dataclass(frozen=True)
class Tracking:
    """The tracking of a run: none, online (with its address), offline (with the folder to upload)."""

    enabled: bool
    mode: str = ""
    address: str = ""
    project: str = ""
    error: str = ""
    sync: str = ""


def tracking_of(manifest: Mapping[str, Any], status: Mapping[str, Any], folder: Path) -> Tracking:
    """Combine the manifest and the tracker's own status."""
    artifacts = manifest.get("artifacts")
    found = artifacts.get("wandb") if isinstance(artifacts, Mapping) else None
    found = found if isinstance(found, Mapping) else {}
    if not found.get("enabled") and not status:
        return Tracking(False)
    run_path = str(found.get("run_path") or status.get("run_path") or "")
    names = (found.get("entity") or status.get("entity"), found.get("project") or status.get("project"))
    offline = folder / str(status.get("folder") or "wandb")
    sync = ""
    if not run_path and status.get("mode") == "offline" and offline.resolve().is_relative_to(folder.resolve()):
        sync = f"wandb sync {shlex.quote(str(offline))}"
    return Tracking(
        True,
        str(status.get("mode") or ""),
        f"{SITE}/{run_path}" if _RUN_PATH.fullmatch(run_path) else "",
        "/".join(str(name) for name in names if name),
        str(status.get("error") or ""),
        sync,
    )


def _draw(tracking: Tracking) -> None:
    if not tracking.enabled:
        ui.label("This run is not tracked with Weights & Biases.").classes("opacity-80")
        ui.label(
            "Switch it on in the form, or train with: --set track_wandb=true. Every scalar is here in any case."
        ).classes("text-sm opacity-80")
        return
    words = {"online": "Tracked online", "offline": "Tracked offline, on this machine"}
    with ui.row().classes("items-center gap-2"):
        icon = "cloud_done" if tracking.address else "cloud_off" if tracking.mode == "offline" else "cloud_queue"
        ui.icon(icon).classes("text-2xl").props("aria-hidden=true")
        ui.label(words.get(tracking.mode, "The tracker is starting")).classes("text-lg")
        if tracking.project:
            ui.label(tracking.project).classes("mosaic-mono text-sm break-all")
    if tracking.address:
        ui.link(f"Open {tracking.address}", tracking.address, new_tab=True).classes("break-all")
        ui.label("W&B does not let other sites show its pages inside their own.").classes("text-sm opacity-80")
    if tracking.error:
        with ui.row().classes("items-start gap-2 no-wrap"):
            ui.icon("warning", color="warning").props("aria-hidden=true")
            ui.label(tracking.error).classes("break-words min-w-0")
    if tracking.sync:
        ui.label("Upload it when there is a key and a network:")
        code_box(tracking.sync, label="Copy the command")
