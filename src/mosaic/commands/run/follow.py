"""The live view of runs until they end: one with its curve, several as a table; leaving it does not end the runs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mosaic import catalog
from mosaic.commands.printing import short_id, shortest, stall_mark
from mosaic.contract.errors import MosaicError, NoDaemonError

if TYPE_CHECKING:
    from rich.console import Console

    from mosaic import console as view
    from mosaic.contract.events import Event
    from mosaic.trainer.rpc.client import Client
    from mosaic.trainer.run import Run

POLL_SECONDS = 0.5
PLAIN_SECONDS = 2.0
LEFT = 130  # the exit code that shells use for a command ended by Ctrl-C


def follow(client: Client, runs: Sequence[Run], *, to_stderr: bool = False) -> int:
    """Show runs until all have ended; return 0 if all completed, 1 if one did not, 130 if the user left."""
    from rich.console import Console

    console = Console(stderr=to_stderr)
    try:
        if len(runs) == 1:
            return follow_one(client, runs[0], console)
        return follow_several(client, runs, console)
    except KeyboardInterrupt:
        say_how_to_return(console, runs)
        return LEFT
    except NoDaemonError as error:
        raise NoDaemonError(
            f"{error}. What runs goes on without it; once it is back: mosaic show -f {short_id(runs[0].run_id)}"
        ) from None


def follow_one(client: Client, run: Run, console: Console) -> int:
    """Show the live view, then one closing line, or the reason why the run did not complete."""
    from mosaic import console as view

    progress = progress_of(run)
    with _noting_stalls(client, progress, console):
        view.follow(_events(client, run, progress, console), progress, console)
    ended = client.wait_run(run.run_id)
    progress.settle(ended.state.lower(), ended.reason)
    completed = progress.status == "completed"
    for line in [view.summary_line(progress)] if completed else view.failure_lines(progress):
        view.print_line(console, line)
    return 0 if completed else 1


@contextlib.contextmanager
def _noting_stalls(client: Client, progress: view.TerminalProgress, console: Console) -> Iterator[None]:
    """Copy the daemon's stall mark to the view: a stalled run sends no events."""
    from mosaic import console as view

    left = threading.Event()

    def look() -> None:
        while not left.wait(PLAIN_SECONDS):
            with contextlib.suppress(MosaicError):
                since = client.get_run(progress.run_id).stalled_since
                if bool(since) != bool(progress.stalled_since) and not console.is_terminal and not left.is_set():
                    view.print_line(console, "STALLED: its step has not grown for long" if since else "moves again")
                progress.stalled_since = since

    looker = threading.Thread(target=look, name="stalls", daemon=True)
    looker.start()
    try:
        yield
    finally:
        left.set()
        looker.join(PLAIN_SECONDS)


def progress_of(run: Run) -> view.TerminalProgress:
    """Return the view's state of a run before its first event."""
    from mosaic import console as view

    environment = catalog.find(run.env_id)
    return view.TerminalProgress(
        run_id=run.run_id,
        algo=run.run_name if run.mode == "script" else Path(run.algo).name if run.algo.endswith(".py") else run.algo,
        env_id=run.env_id,
        total_timesteps=run.total_timesteps,
        folder=shortest(run.folder),
        seed=run.seed,
        reward_threshold=environment.reward_threshold if environment else None,
        unit="episodes" if run.mode == "policy_eval" else "steps",
    )


def _events(client: Client, run: Run, progress: view.TerminalProgress, console: Console) -> Iterator[Event]:
    """Yield a run's events until its end; show its place in the queue before them."""
    from mosaic import console as view

    began = time.monotonic()
    while run.queue_position >= 0:
        ahead = run.queue_position
        notice = f"queued: {ahead} ahead of it" if ahead else "queued: it is the next"
        # A run that starts immediately has not waited: no notice.
        if notice != progress.notice and time.monotonic() - began >= PLAIN_SECONDS:
            progress.notice = notice
            if not console.is_terminal:
                view.print_line(console, notice)
        time.sleep(POLL_SECONDS)
        run = client.get_run(run.run_id)
    progress.notice = ""
    yield from client.follow_events(run.run_id)


def follow_several(client: Client, runs: Sequence[Run], console: Console) -> int:
    """Show a live table; without a terminal, a line per state change and a summary every 2 seconds."""
    from rich.live import Live

    from mosaic import console as view
    from mosaic.commands.inspect.run_table import table

    shown: dict[str, Run] = {run.run_id: run for run in runs}
    if console.is_terminal:
        with Live(get_renderable=lambda: table(list(shown.values()), console), console=console, refresh_per_second=4):
            while _refresh(client, shown):
                time.sleep(POLL_SECONDS)
    else:
        states = {run.run_id: run.state for run in runs}
        stalled: set[str] = set()
        said_at = time.monotonic()
        going = True
        while going:
            going = _refresh(client, shown)
            for run in shown.values():
                if run.state != states[run.run_id]:
                    states[run.run_id] = run.state
                    reason = f": {run.reason}" if run.reason else ""
                    view.print_line(console, f"{run.run_id} seed {run.seed} is {run.state}{reason}")
                if run.stalled and run.run_id not in stalled:
                    view.print_line(console, f"{run.run_id} seed {run.seed} is {run.state} {stall_mark(run)}")
            stalled = {run.run_id for run in shown.values() if run.stalled}
            if going and time.monotonic() - said_at >= PLAIN_SECONDS:
                said_at = time.monotonic()
                view.print_line(console, sum_line(list(shown.values())))
            if going:
                time.sleep(POLL_SECONDS)
    ended = list(shown.values())
    view.print_line(console, series_line(ended))
    return 0 if all(run.state == "COMPLETED" for run in ended) else 1


def _refresh(client: Client, shown: dict[str, Run]) -> bool:
    """Refresh the runs that had not ended; return False once all have ended."""
    for run_id, run in shown.items():
        if not run.ended:
            shown[run_id] = client.get_run(run_id)
    return not all(run.ended for run in shown.values())


def sum_line(runs: Sequence[Run]) -> str:
    """Return the progress of several runs in one line."""
    total = sum(run.total_timesteps for run in runs)
    step = sum(min(run.step, run.total_timesteps) for run in runs)
    ended = sum(run.ended for run in runs)
    share = f" ({step / total:.0%})" if total else ""
    return f"{ended} of {len(runs)} runs have ended · {step:,} of {total:,} steps{share}"


def series_line(runs: Sequence[Run]) -> str:
    """Return the summary of several seeds: the mean of their returns."""
    from mosaic import console as view

    done = sum(run.state == "COMPLETED" for run in runs)
    means = [run.mean_return for run in runs if run.mean_return is not None]
    line = f"{done} of {len(runs)} runs completed"
    if not means:
        return line
    mean = view.short(sum(means) / len(means))
    return f"{line}: mean return {mean}, from {view.short(min(means))} to {view.short(max(means))}"


def say_how_to_return(console: Console, runs: Sequence[Run]) -> None:
    """Print how to return: Ctrl-C ends only the view."""
    from mosaic import console as view

    names = " ".join(short_id(run.run_id) for run in runs)
    if len(runs) == 1:
        lines = [
            "The run goes on.",
            f"  come back:  mosaic show -f {names}",
            f"  its log:    mosaic logs -f {names}",
            f"  end it:     mosaic cancel {names}",
        ]
    else:
        lines = ["The runs go on.", "  look:       mosaic runs", f"  end them:   mosaic cancel {names}"]
    for line in lines:
        view.print_line(console, line)
