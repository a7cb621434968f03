"""The common parts of all pages: the frame with its navigation, error panels, dialogs, copyable text, states."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal

from nicegui import app, background_tasks, context, ui

from mosaic.contract.errors import MosaicError
from mosaic.trainer.rpc.client import Change, State
from mosaic.web.context import Web

# The navigation: address, word, icon, in the order of a typical workflow.
PLACES = (
    ("/runs", "Runs", "list"),
    ("/train", "Train", "play_circle"),
    ("/script", "Script", "terminal"),
    ("/resume", "Resume", "restore"),
    ("/policy", "Evaluate", "fact_check"),
    ("/compare", "Compare", "stacked_line_chart"),
    ("/sweeps", "Sweeps", "tune"),
    ("/play", "Play", "sports_esports"),
    ("/environments", "Environments", "public"),
    ("/system", "System", "memory"),
)
# Okabe and Ito's colour-blind safe colours; a state also has an icon and its word.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
BRAND = {
    "primary": BLUE, "secondary": "#4b5563", "accent": PURPLE,
    "positive": "#00704F", "negative": "#A84300", "warning": ORANGE,
}  # fmt: skip
PALETTE = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, "#8A7A00", "#7F7F7F")
STATES: dict[State, tuple[str, str, str]] = {
    State.INIT: ("schedule", "#6b7280", "queued"),
    State.HANDSHAKE: ("hourglass_top", "#6b7280", "starting"),
    State.READY: ("hourglass_bottom", "#6b7280", "ready"),
    State.EXECUTING: ("play_arrow", BLUE, "running"),
    State.PAUSED: ("pause", "#8A6100", "paused"),
    State.COMPLETED: ("check", "#00704F", "completed"),
    State.FAILED: ("error", "#A84300", "failed"),
    State.CANCELLED: ("stop", "#6b7280", "cancelled"),
    State.LOST: ("signal_wifi_off", "#A84300", "lost"),
    State.BROKEN: ("broken_image", "#A84300", "broken"),
}
AMBER_BANNER, RED_BANNER = "background: #FDE68A; color: black", "background: #A84300; color: white"
# A busy machine may need long for a page; NiceGUI's three seconds would end in an error.
BUILD_SECONDS = 60.0
Kind = Literal["positive", "negative", "warning", "info"]
STYLE = """
:root { --nicegui-default-padding: 0.75rem; }
body { font-feature-settings: "tnum"; }
.mosaic-page { width: 100%; max-width: 1400px; margin: 0 auto; }
/* Not Tailwind's bg-white and text-black: Quasar has classes of the same names, which also hold in the dark. */
.mosaic-header { background: #fff; }
.body--dark .mosaic-header { background: #171717; }
.mosaic-place { color: #111; }
.body--dark .mosaic-place { color: #eee; }
/* lighter, so that words in these colours are read on black, and white ones on them */
.body--dark { --q-primary: #3d90d0 !important; --q-negative: #d96a24 !important; }
/* in a row, too: Tailwind's own lets a long word push the page wider than the window */
.break-words { overflow-wrap: anywhere !important; }
.mosaic-mono { font-family: ui-monospace, SFMono-Regular, Menlo, monospace; }
:focus-visible { outline: 2px solid #0072B2; outline-offset: 2px; }
@media (prefers-reduced-motion: reduce) { * { animation: none !important; transition: none !important; } }
"""


def page_at(web: Web, path: str, title: str) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., Any]]:
    """Register an async page function at an address; its parameters come from path and query (str, int)."""

    def register(show: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
        @functools.wraps(show)
        async def page(*args: Any, **kwargs: Any) -> None:
            with frame(web, path, title):
                try:
                    await show(*args, **kwargs)
                except MosaicError as error:
                    web.page_trouble(error)
                    trouble(error)

        return ui.page(path, title=f"{title} · MOSAIC", response_timeout=BUILD_SECONDS)(page)

    return register


@contextlib.contextmanager
def frame(web: Web, path: str, title: str) -> Iterator[None]:
    """Draw the header with its navigation, the banners for daemon and disk, and the column of the page."""
    ui.add_css(STYLE)
    stored = app.storage.user.get("dark")
    dark = ui.dark_mode(stored if isinstance(stored, bool) else None)
    with ui.left_drawer(value=False, bordered=True).props("overlay behavior=mobile").classes("p-2") as drawer:
        _links(path, "column")
    with ui.header(bordered=True).classes("mosaic-header items-center gap-2 px-3 py-1"):
        _icon("menu", "Menu", drawer.toggle).classes("lg:hidden")
        ui.link("MOSAIC", "/runs").classes("text-lg font-bold no-underline text-primary mr-2")
        with ui.row().classes("max-lg:hidden gap-0 items-center no-wrap"):
            _links(path, "row")
        ui.space()
        _icon("dark_mode", "Light or dark", lambda: _switch(dark))
    _away_banner(web)
    _disk_banner(web)
    with ui.column().classes("mosaic-page gap-4 p-2 sm:p-4"):
        ui.label(title).props('role=heading aria-level="1"').classes("sr-only")
        yield


def tell(error: object, *, kind: Kind = "negative") -> None:
    """Show a notification; an error stays until dismissed, since it gives advice."""
    long = kind in ("negative", "warning")
    ui.notify(str(error), type=kind, multi_line=True, timeout=0 if long else 3000, close_button="OK" if long else False)


def trouble(error: object) -> None:
    """Show an error panel in place of the content."""
    with ui.card().classes("w-full border-l-4 border-negative").props("role=alert"):
        with ui.row().classes("items-center no-wrap gap-3"):
            ui.icon("error", color="negative").classes("text-2xl")
            ui.label(str(error)).classes("whitespace-pre-wrap break-words min-w-0")


async def confirmed(question: str, verb: str, *, detail: str = "") -> bool:
    """Ask for confirmation before an irreversible action."""
    # In the page, not beside the button: elements redrawn while a run changes would remove the dialog.
    with context.client.content, ui.dialog() as dialog, ui.card().classes("max-w-lg"):
        ui.label(question).classes("text-base font-medium break-words")
        if detail:
            ui.label(detail).classes("whitespace-pre-wrap text-sm opacity-80 break-words")
        with ui.row().classes("w-full justify-end"):
            ui.button("Leave it", on_click=lambda: dialog.submit(False)).props("flat")
            ui.button(verb, color="negative", on_click=lambda: dialog.submit(True))
    answer = await dialog
    dialog.delete()
    return bool(answer)


@contextlib.contextmanager
def busy(button: ui.button) -> Iterator[None]:
    """Show the button as loading during its work, which may also remove it from the page."""
    if not button.is_deleted:
        button.props(add="loading")
    try:
        yield
    finally:
        if not button.is_deleted:
            button.props(remove="loading")


def code_box(text: str, *, label: str = "Copy") -> ui.element:
    """Show text to copy, such as a command line or a config, unchanged."""
    with ui.element("div").classes("relative w-full rounded bg-gray-100 dark:bg-neutral-800 p-3 pr-12") as box:
        # A command breaks between its words, and within a word only if it is too long.
        words = ui.label(text).classes("mosaic-mono text-sm whitespace-pre-wrap").props("tabindex=0")
        words.style("overflow-wrap: anywhere")
        _icon("content_copy", label, lambda: _copy(text)).classes("absolute top-1 right-1")
    return box


def state_badge(state: State) -> ui.element:
    """Show a state by icon, colour and word."""
    icon, colour, word = STATES[state]
    with ui.row().classes("items-center gap-1 no-wrap rounded-full px-2 py-0.5 text-white text-sm") as badge:
        badge.style(f"background: {colour}")
        ui.icon(icon).props("aria-hidden=true")
        ui.label(word)
    return badge.props(f"data-state={state.value}")


def on_freshness(web: Web, callback: Callable[[], Any]) -> None:
    """Call back in this page's context when its view of runs becomes stale, or fresh again."""
    client = context.client

    def heard(_connected: bool | None = None) -> None:
        with client:
            callback()

    client.on_delete(web.hub.watch_connection(heard))
    client.on_delete(web.disk.watch(heard))


def on_changes(web: Web, callback: Callable[[list[Change]], Any], run_id: str = "") -> None:
    """Call back in this page's context when runs change, until the page closes; [] means: reload everything."""
    client = context.client
    slot = context.slot

    def heard(changes: list[Change]) -> None:
        with slot:
            answer = callback(changes)
            if inspect.isawaitable(answer):
                background_tasks.create(_awaited(web, answer), name="on changes")

    client.on_delete(web.hub.listen(heard, run_id))


async def _awaited(web: Web, work: Awaitable[Any]) -> None:
    """Await a page's response to a change; a missing daemon is reported by the banner."""
    try:
        await work
    except MosaicError as error:
        web.page_trouble(error)


def _links(here: str, shape: str) -> None:
    for path, word, icon in PLACES:
        current = here.startswith(path) or (path == "/runs" and here.startswith("/run/"))
        look = "font-bold bg-blue-50 dark:bg-neutral-800" if current else ""
        with ui.link(target=path).classes(
            f"flex items-center gap-1 px-2 py-1 rounded no-underline text-inherit {look}"
        ) as link:
            if shape == "column":
                ui.icon(icon).props("aria-hidden=true").classes("text-xl")
            ui.label(word).classes("mosaic-place")
        if current:
            link.props("aria-current=page")


def _icon(icon: str, label: str, act: Callable[[], Any]) -> ui.button:
    """Draw an icon button with a label for screen readers."""
    button = ui.button(icon=icon, on_click=act).props(f'flat round dense aria-label="{label}"')
    return button.tooltip(label)


def _switch(dark: ui.dark_mode) -> None:
    """Toggle light and dark; without a stored choice, the first press switches to dark."""
    value = not bool(dark.value)
    app.storage.user["dark"] = value
    dark.set_value(value)


def _copy(text: str) -> None:
    ui.clipboard.write(text)
    tell("Copied", kind="positive")


def _away_banner(web: Web) -> None:
    """Show a banner while the daemon does not answer."""
    client = context.client
    with ui.row().classes("w-full items-center gap-2 px-4 py-2 bg-amber-200 text-black").props("role=status") as banner:
        ui.icon("sync_problem")
        ui.label("The trainer daemon does not answer. Runs go on; this page comes back by itself.")
    banner.set_visibility(not web.hub.connected)

    def show(connected: bool) -> None:
        with client:
            banner.set_visibility(not connected)

    client.on_delete(web.hub.watch_connection(show))


def _disk_banner(web: Web) -> None:
    """Report a disk that fills up: amber first, then red, and red while the registry cannot be written."""
    with ui.row().classes("w-full items-center gap-2 px-4 py-2 no-wrap") as banner:
        banner.props("role=status data-testid=disk-banner")
        ui.icon("storage").props("aria-hidden=true")
        label = ui.label().classes("break-words min-w-0")

    def show() -> None:
        notice = web.disk.notice
        banner.set_visibility(notice is not None)
        if notice is not None:
            label.set_text(notice.text)
            banner.style(RED_BANNER if notice.red else AMBER_BANNER)
            banner.props(f"data-level={'red' if notice.red else 'amber'}")

    show()
    on_freshness(web, show)
