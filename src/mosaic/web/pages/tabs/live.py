"""The Live tab: the agent as it acts, its reward and return, beside the curve of its returns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nicegui import ui

from mosaic.contract.files import EVALUATION, read_note
from mosaic.web.pages.tabs.metrics import Wall

if TYPE_CHECKING:
    from mosaic.web.pages.run import RunPage

RETURNS = ("charts/episodic_return", "eval/episode_return", "eval/episodic_return")
SUMMARY_SECONDS = 1.0
STYLE = """
.mosaic-lane { position: relative; background: #111; border-radius: 8px; overflow: hidden; display: flex;
  align-items: center; justify-content: center; width: 100%; aspect-ratio: 3 / 2; max-height: 60vh; }
.mosaic-lane canvas { width: 100%; height: 100%; object-fit: contain; visibility: hidden; }
.mosaic-lane[data-seen] canvas { visibility: visible; }
.mosaic-lane[data-seen]:not(:fullscreen) { background: transparent; aspect-ratio: auto; }
.mosaic-lane[data-seen] .mosaic-lane-empty { display: none; }
.mosaic-lane-empty { position: absolute; color: #d4d4d4; padding: 1.5rem; text-align: center; max-width: 40rem; }
.mosaic-lane:fullscreen { max-height: none; border-radius: 0; }
.mosaic-lane-state { display: inline-block; width: 0.6rem; height: 0.6rem; border-radius: 50%; background: #9ca3af; }
[data-lane=connected] .mosaic-lane-state { background: #009E73; }
[data-lane=reconnecting] .mosaic-lane-state, [data-lane=quiet] .mosaic-lane-state { background: #E69F00; }
[data-lane=unavailable] .mosaic-lane-state, [data-lane=gone] .mosaic-lane-state { background: #D55E00; }
"""


async def show(page: RunPage) -> None:
    """Draw the tab; frames flow until it is left, or the window is hidden."""
    ui.add_css(STYLE)
    with ui.element("div").classes("w-full grid grid-cols-1 lg:grid-cols-5 gap-4"):
        with ui.column().classes("lg:col-span-3 min-w-0 gap-2") as panel:
            ids = _draw_lane(page)
        with ui.column().classes("lg:col-span-2 min-w-0 gap-4"):
            ids |= _draw_numbers(page)
            await _draw_returns(page)
    options = {"run": page.run_id, "panel": panel.html_id, "notes": page.run.mode != "policy_eval", **ids}
    ui.run_javascript(f"mosaicLive.start({json.dumps(options)})")


def _draw_lane(page: RunPage) -> dict[str, str]:
    """Draw the picture and its status; return the ids that the script needs."""
    ids = {}
    evaluation = page.run.mode == "policy_eval"
    with ui.row().classes("w-full items-center gap-2"):
        ui.element("span").classes("mosaic-lane-state").props("aria-hidden=true")
        ids["status"] = (
            ui.label("Fast lane: connecting").classes("text-sm break-words min-w-0").props("role=status").html_id
        )
        ids["label"] = ui.label("(Eval)" if evaluation else "").classes("text-sm font-semibold").html_id
        ui.space()
        full = ui.button(icon="fullscreen").props('flat round dense aria-label="Full screen"').tooltip("Full screen")
    with ui.element("div").classes("mosaic-lane") as box:
        canvas = ui.element("canvas").props('width=600 height=400 role=img aria-label="Live picture of the agent"')
        ids["canvas"] = canvas.html_id
        ids["empty"] = ui.label().classes("mosaic-lane-empty").html_id
    full.on("click", js_handler=f"() => mosaicLive.fullScreen({json.dumps(box.html_id)})")
    return ids


def _draw_numbers(page: RunPage) -> dict[str, str]:
    """Draw the numbers of the shown frame."""
    ids = {}
    with ui.row().classes("gap-x-8 gap-y-1"):
        names = {"reward": "Reward", "return": "Return", "rate": "Steps/s", "step": "Step", "fps": "Frames/s"}
        for name, word in names.items():
            with ui.column().classes("gap-0"):
                ui.label(word).classes("text-xs opacity-70")
                ids[name] = ui.label("–").classes("text-base font-medium").html_id
    note = ui.label().classes("mosaic-mono text-sm break-words")
    ids["note"] = note.html_id
    if page.run.mode == "policy_eval":
        _follow_summary(page, note)
    return ids


def _follow_summary(page: RunPage, note: ui.label) -> None:
    """Update the line of an evaluation's latest batch, with or without a picture."""
    shown: dict[str, Any] = {}

    async def look() -> None:
        summary = await page.web.do(lambda: read_note(page.paths.eval_summary, EVALUATION))
        if summary == shown:
            return
        shown.clear()
        shown.update(summary)
        line = eval_line(summary)
        if line:
            note.set_text(line)
            page.web.happenings.note("ui.fastlane.eval_summary_update", page.run_id, summary=line)
        else:
            page.web.happenings.warn("ui.fastlane.eval_summary_warning", page.run_id, reason="unreadable summary")

    page.every(SUMMARY_SECONDS, look)


def eval_line(summary: Mapping[str, Any]) -> str:
    """Return an evaluation's latest batch in one line, batches counted from 1; "" if a number is missing."""
    try:
        batch, episodes = int(summary["batch_index"]) + 1, int(summary["episodes"])
        numbers = [float(summary[f"{name}_return"]) for name in ("avg", "min", "max")]
    except (KeyError, TypeError, ValueError, OverflowError):
        return ""
    average, low, high = (f"{number:.1f}" if math.isfinite(number) else "NaN" for number in numbers)
    return f"eval batch {batch} | episodes={episodes} avg={average} min={low} max={high}"


async def _draw_returns(page: RunPage) -> None:
    wall = Wall(page, columns=1, most=1)
    await wall.draw(lambda key: key in RETURNS)
    if wall.is_empty:
        hint = "The return curve appears with the first episode." if not page.run.ended else "No episode was finished."
        wall.say(hint)
