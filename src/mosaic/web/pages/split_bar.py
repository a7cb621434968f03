"""The bar of a run's page that shows where its time goes."""

from __future__ import annotations

from collections.abc import Mapping

from nicegui import ui

# Colour-blind safe colours (Okabe and Ito).
PARTS = {
    "perf/env": ("Environment", "#0072B2"),
    "perf/inference": ("Acting", "#009E73"),
    "perf/update": ("Learning", "#E69F00"),
    "perf/other": ("Other", "#9ca3af"),
}


class SplitBar:
    """A stacked bar with labels; hidden until a run has logged its shares."""

    def __init__(self) -> None:
        self._pieces: dict[str, tuple[ui.element, ui.label]] = {}
        with ui.column().classes("w-full gap-1") as self._whole:
            with ui.element("div").classes("w-full flex rounded overflow-hidden").style("height: 6px") as self._bar:
                pieces = {tag: ui.element("div").style(f"background: {PARTS[tag][1]}") for tag in PARTS}
            with ui.row().classes("gap-x-4 gap-y-0 text-xs opacity-80 items-center"):
                ui.label("Time spent on")
                for tag, (_, colour) in PARTS.items():
                    with ui.row().classes("gap-1 items-center no-wrap"):
                        dot = ui.element("span").style(f"background: {colour}; width: 8px; height: 8px")
                        dot.classes("rounded-full").props("aria-hidden=true")
                        self._pieces[tag] = (pieces[tag], ui.label())
        self._bar.props("role=img")
        self._whole.set_visibility(False)

    def update(self, last_values: Mapping[str, float]) -> None:
        """Show the shares that were logged last."""
        shares = shares_of(last_values)
        if not shares:
            return
        texts = {tag: f"{PARTS[tag][0]} {100 * share:.0f} %" for tag, share in shares.items()}
        for tag, (piece, label) in self._pieces.items():
            piece.style(f"width: {100 * shares[tag]:.1f}%")
            label.set_text(texts[tag])
        self._bar.props["aria-label"] = f"Time spent on: {', '.join(texts.values())}"
        self._bar.update()
        self._whole.set_visibility(True)


def shares_of(last_values: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each part, adding up to 1; empty if the run has not logged any (yet)."""
    known = {tag: max(last_values.get(tag, 0.0), 0.0) for tag in PARTS}
    total = sum(known.values())
    return {tag: value / total for tag, value in known.items()} if total > 0 else {}
