"""The header of a run's page: state and reason, progress, numbers, and the run's actions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from nicegui import background_tasks, ui

from mosaic.contract.errors import MosaicError
from mosaic.store.syncing import storage_of
from mosaic.trainer.rpc.client import Client, Run, State
from mosaic.web import words
from mosaic.web.forms.again import train_again
from mosaic.web.layout import busy, code_box, confirmed, state_badge, tell
from mosaic.web.log_files import last_words
from mosaic.web.pages.split_bar import SplitBar
from mosaic.web.run_rows import STALLED_COLOUR

if TYPE_CHECKING:
    from mosaic.web.pages.run import RunPage

MODES = {"train": "training", "resume_training": "resumed training", "policy_eval": "evaluation", "script": "script"}
TROUBLED = (State.FAILED, State.LOST, State.BROKEN)
BUTTON = "outline no-caps dense padding='4px 10px'"
ASKED = {"cancel": "Cancelling: it saves its state first", "pause": "Pausing", "continue": "Continuing"}


class Header:
    """The header, built once; its texts follow the run, and only applicable buttons are visible."""

    def __init__(self, page: RunPage) -> None:
        self._page = page
        self._shape: object = None
        self._cause_shown, self._last_line = False, ""
        with ui.card().classes("w-full gap-3 p-4"):
            with ui.row().classes("w-full items-start justify-between gap-3"):
                self._draw_title()
                self._draw_buttons()
            self._reason = ui.label().classes("whitespace-pre-wrap break-words w-full").props("role=status")
            with ui.column().classes("w-full gap-1") as self._progress_row:
                self._bar = ui.linear_progress(show_value=False, size="8px").props(
                    'rounded instant-feedback aria-label="Progress"'
                )
                self._progress = ui.label().classes("text-sm opacity-80")
            self._numbers = _Numbers()
            self._split = SplitBar()
            self._warnings = ui.column().classes("w-full gap-1")
            self._cause = ui.column().classes("w-full gap-1")
            self._cause.set_visibility(False)
        self.update()

    def update(self) -> None:
        """Update the header from the current run."""
        run = self._page.run
        shape = (run.state, run.asked, _policy(run), _has_checkpoint(run), run.warnings)
        if shape != self._shape:
            self._shape = shape
            self._badge.clear()
            with self._badge:
                state_badge(run.state)
            self._show_buttons(run)
            self._draw_warnings(run)
        reason = reason_line(run, self._last_line)
        self._reason.set_text(reason)
        self._reason.set_visibility(bool(reason))
        self._reason.classes(
            add="text-negative font-medium" if run.state in TROUBLED else "",
            remove="" if run.state in TROUBLED else "text-negative font-medium",
        )
        self._stalled.set_text(words.stall_mark(run.stalled_since))
        self._stalled.set_visibility(run.stalled)
        share, text = progress_of(self._page.web.seen(run))
        self._bar.set_visibility(share is not None)
        self._bar.set_value(share or 0.0)
        self._progress.set_text(text)
        self._numbers.update(run)
        self._split.update(run.last_values)
        if run.state == State.FAILED and not self._cause_shown:
            self._cause_shown = True
            background_tasks.create(self._draw_cause(), name="cause")

    def show_deleted(self) -> None:
        self._badge.clear()
        with (
            self._badge,
            ui.row().classes("items-center gap-1 rounded-full px-2 py-0.5 bg-gray-500 text-white text-sm"),
        ):
            ui.icon("delete").props("aria-hidden=true")
            ui.label("deleted")
        for part in (self._buttons, self._stalled, self._reason, self._progress_row, self._warnings, self._cause):
            part.set_visibility(False)

    def _draw_title(self) -> None:
        run = self._page.run
        with ui.column().classes("gap-1 min-w-0"):
            with ui.row().classes("items-center gap-3"):
                self._badge = ui.element("div")
                self._stalled = ui.label().classes("rounded-full px-2 py-0.5 text-white text-sm")
                self._stalled.style(f"background: {STALLED_COLOUR}").props("data-testid=stalled role=status")
                self._stalled.tooltip("its step has not grown for longer than its pace explains")
                title = run.run_name or f"{run.algo} on {run.env_id}"
                ui.label(title).classes("text-xl font-semibold break-words min-w-0").props("role=heading aria-level=2")
            facts = [
                run.algo,
                run.env_id,
                f"seed {run.seed}" if run.seed is not None else "",
                MODES.get(run.mode, run.mode),
            ]
            with ui.row().classes("items-center gap-x-3 gap-y-0 text-sm opacity-80"):
                for fact in facts:
                    if fact:
                        ui.label(fact).classes("break-all")
                if run.agent_id:
                    ui.label(f"agent {run.agent_id}").classes("break-all")
                ui.label(run.run_id).classes("mosaic-mono break-all select-all").tooltip("the run's id")

    def _draw_buttons(self) -> None:
        """Draw every button, once: a button redrawn during a click loses the click."""
        run_id = self._page.run_id
        with ui.row().classes("gap-2 items-center") as self._buttons:
            with ui.row().classes("gap-2 items-center") as self._asked:
                ui.spinner(size="sm").props("aria-hidden=true")
                self._asked_label = ui.label().classes("text-sm opacity-80")
            self._pause = self._act("Pause", "pause", lambda client: client.pause_run(run_id))
            self._continue = self._act("Continue", "play_arrow", lambda client: client.continue_run(run_id))
            self._cancel = self._act(
                "Cancel",
                "stop",
                lambda client: client.cancel_run(run_id),
                ask="Cancel this run? It saves its state first, and can be resumed later.",
            )
            self._resume = _go("Resume", "restore", f"/resume?run={run_id}")
            self._evaluate = _go("Evaluate", "fact_check", "")
            self._again_button()
            if self._page.run.mode in ("train", "resume_training"):
                _go("Edit and train", "edit", f"/train?from={run_id}")
            self._delete = self._act(
                "Delete",
                "delete",
                lambda client: client.delete_run(run_id),
                ask="Delete this run? Its folder, its checkpoints and its curves are gone for good.",
                colour="negative",
            )

    def _show_buttons(self, run: Run) -> None:
        """Show only the applicable buttons."""
        self._asked.set_visibility(run.asked in ASKED and not run.ended)
        self._asked_label.set_text(ASKED.get(run.asked, ""))
        self._pause.set_visibility(run.state == State.EXECUTING and not run.asked)
        self._continue.set_visibility(run.state == State.PAUSED and not run.asked)
        self._cancel.set_visibility(not run.ended and run.asked != "cancel")
        self._resume.set_visibility(_has_checkpoint(run))
        self._delete.set_visibility(run.ended)
        policy = _policy(run)
        self._evaluate.set_visibility(bool(policy))
        if policy:
            self._evaluate.props["href"] = f"/policy?policy={quote(home_path(self._page, policy), safe='')}"
            self._evaluate.update()

    def _again_button(self) -> None:
        async def again() -> None:
            try:
                with busy(button):
                    new = await train_again(self._page.web, self._page.run)
                ui.navigate.to(f"/run/{new.run_id}")
            except MosaicError as error:
                tell(error)

        word = {"policy_eval": "Evaluate again", "script": "Run again"}.get(self._page.run.mode, "Train again")
        button = ui.button(word, icon="replay", on_click=again).props(BUTTON)

    def _act(
        self, word: str, icon: str, call: Callable[[Client], Any], ask: str = "", colour: str | None = "primary"
    ) -> ui.button:
        async def act() -> None:
            if ask and not await confirmed(ask, word):
                return
            try:
                with busy(button):
                    await self._page.web.ask(call)
                    await self._page.refresh()
            except MosaicError as error:
                tell(error)

        button = ui.button(word, icon=icon, color=colour, on_click=act).props(BUTTON)
        return button

    def _draw_warnings(self, run: Run) -> None:
        self._warnings.clear()
        self._warnings.set_visibility(bool(run.warnings))
        with self._warnings:
            for text in run.warnings[-3:]:
                with ui.row().classes("items-start gap-2 no-wrap text-sm"):
                    ui.icon("warning", color="warning").classes("mt-0.5").props("aria-hidden=true")
                    ui.label(text).classes("break-words min-w-0")

    async def _draw_cause(self) -> None:
        said = await self._page.web.do(lambda: last_words(self._page.paths))
        self._cause.clear()
        self._cause.set_visibility(bool(said))
        if said:
            self._last_line = said.splitlines()[-1].strip()
            self.update()
            with self._cause:
                ui.label("What it said last:").classes("text-sm font-medium")
                code_box(said, label="Copy what it said last")


class _Numbers:
    """The headline numbers, in a row that wraps."""

    NAMES = (
        *("Return", "Last episode", "Episodes", "Steps/s", "Running", "Started"),
        *("GPU", "Runs on", "Storage", "Attempt"),
    )

    def __init__(self) -> None:
        self._cells: dict[str, tuple[ui.element, ui.label]] = {}
        with ui.row().classes("gap-x-8 gap-y-2"):
            for name in self.NAMES:
                with ui.column().classes("gap-0") as cell:
                    ui.label(name).classes("text-xs opacity-70")
                    whole = "" if name != "Storage" else " break-all"  # a URL has no spaces to break at
                    self._cells[name] = (cell, ui.label().classes(f"text-base font-medium{whole}"))

    def update(self, run: Run) -> None:
        texts = numbers_of(run)
        for name, text in texts.items():
            cell, label = self._cells[name]
            cell.set_visibility(bool(text))
            label.set_text(text)


def numbers_of(run: Run) -> dict[str, str]:
    """Return the headline figures as texts; "" hides one."""
    return {
        "Return": words.number(run.mean_return) if run.mean_return is not None else "",
        "Last episode": words.number(run.last_return) if run.last_return is not None else "",
        "Episodes": words.number(run.episodes) if run.episodes else "",
        "Steps/s": words.number(run.sps) if run.sps is not None else "",
        "Running": words.duration(running_seconds(run)),
        "Started": words.age(run.started_at or run.created_at),
        "GPU": ", ".join(map(str, run.gpus)),
        "Runs on": "" if run.executor == "local" else " ".join(filter(None, (run.executor, run.node))),
        "Storage": storage_of(_extras(run)),
        "Attempt": f"{run.attempt} (restarted {run.restarts} of {run.max_restarts})" if run.attempt > 1 else "",
    }


def reason_line(run: Run, last_line: str = "") -> str:
    """Return the reason for a run's state, in one line; "" if nothing adds to the state.

    A failure with only an exit code is extended by the last line that the run wrote.
    """
    if run.state == State.INIT:
        before = run.queue_position
        place = (
            "next in the queue" if before == 0 else f"{before} runs are before it in the queue" if before > 0 else ""
        )
        return "; ".join(part for part in (run.reason, place) if part)
    if run.state == State.HANDSHAKE:
        return run.reason or "its worker is being started"
    if run.state == State.READY:
        compiles = " (what is in JAX compiles first; the output tells)" if "_jax" in run.algo else ""
        return run.reason or f"its worker is there; the first episode or row of metrics is still to come{compiles}"
    if run.state == State.LOST:
        return run.reason or "its worker has fallen silent; it is taken up again when it answers"
    # After a signal the last line is coincidental, and no cause.
    bare = not run.reason or (run.reason.startswith("exit code") and ":" not in run.reason)
    if run.state == State.FAILED and last_line and bare:
        return f"{run.reason}: {last_line}" if run.reason else last_line
    return run.reason


def progress_of(run: Run) -> tuple[float | None, str]:
    """Return the progress from 0 to 1, and in words; a repeated evaluation counts within its batch."""
    batch, repeats = evaluation_of(run)
    if run.mode == "policy_eval":
        if repeats and batch:
            done = run.step % batch if not run.ended else batch
            share = None if run.ended else done / batch
            return (
                share,
                f"{run.step:,} episodes, batch {run.step // batch + (not run.ended):,} of {batch} episodes each",
            )
        if run.progress is None:
            return None, f"{run.step:,} episodes"
        return run.progress, f"{run.step:,} of {run.total_timesteps:,} episodes"
    if run.progress is None:
        return None, f"{run.step:,} steps" if run.step else ""
    if run.state == State.COMPLETED:  # the last row of metrics lies a little before the end
        return 1.0, f"{run.step:,} of {run.total_timesteps:,} steps"
    text = f"{run.step:,} of {run.total_timesteps:,} steps · {100 * run.progress:.0f} %"
    if run.state == State.EXECUTING and run.eta_seconds is not None:
        text += f" · {words.duration(run.eta_seconds)} to go"
    return run.progress, text


def evaluation_of(run: Run) -> tuple[int, bool]:
    """Return the episodes of a batch, and True if batches repeat until stopped."""
    settings = _extras(run)
    batch = settings.get("eval_batch_size") or settings.get("eval_episodes") or 50
    return (batch if isinstance(batch, int) and batch > 0 else 50), bool(settings.get("eval_repeat"))


def _extras(run: Run) -> dict[str, Any]:
    return run.payload.get("metadata", {}).get("worker", {}).get("config", {}).get("extras") or {}


def running_seconds(run: Run) -> float | None:
    """Return the seconds from the run's start to its end, or to now."""
    return (run.ended_at or time.time()) - run.started_at if run.started_at else None


def home_path(page: RunPage, relative: str) -> str:
    """Return the path of a run's file relative to the home, as the forms use it."""
    return (page.paths.folder / relative).relative_to(page.web.home).as_posix()


def _policy(run: Run) -> str:
    found = [one.path for one in run.artifacts if one.kind == "policy"]
    return found[-1] if found else ""


def _has_checkpoint(run: Run) -> bool:
    return any(one.kind == "checkpoint" for one in run.artifacts)


def _go(word: str, icon: str, address: str) -> ui.button:
    """Draw a button that is a link: it can be opened in another window."""
    button = ui.button(word, icon=icon).props(BUTTON)
    button.props["href"] = address
    return button
