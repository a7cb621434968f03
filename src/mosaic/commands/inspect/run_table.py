"""The table of runs, fitted to the width of the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mosaic.commands.printing import ago, moment, short_id, stall_mark

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from mosaic.trainer.run import Run

STYLES = {
    "COMPLETED": "green",
    "FAILED": "red",
    "LOST": "red",
    "BROKEN": "red",
    "EXECUTING": "cyan",
    "PAUSED": "yellow",
    "INIT": "dim",
}
BAR = 8
# Below the first width the speed is left out, below the second also time and bar.
WIDE, NARROW = 110, 96
# From this width on, state and mark both fit.
WIDEST = 140
NAMES, SHORTEST_NAME = (2, 3), 8
# A table for a file or another program is not cut to a terminal's width.
PIPE_WIDTH = 500


def table(runs: Sequence[Run], console: Console) -> RenderableType:
    """Return the runs as rows: short names, bars and colours on a terminal, complete ids and plain words elsewhere."""
    from rich.table import Table

    terminal = console.is_terminal
    names = ["run", "state", "algorithm", "environment", "seed", "steps", "return", "steps/s", "time"]
    names.append("age" if terminal else "created")
    left_out = {"steps/s": console.width < WIDE, "time": console.width < NARROW}
    narrow, cut = console.width < NARROW, console.width < WIDEST
    rows = [list(_cells(run, terminal, bar=not narrow, cut=cut)) for run in runs]
    shown = [place for place, name in enumerate(names) if not left_out.get(name)]
    drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    widths = {place: max([len(names[place]), *(cell_width(row[place]) for row in rows)]) for place in shown}
    for place, width in fitting(widths, console.width).items():
        drawn.add_column(
            names[place],
            no_wrap=True,
            overflow="ellipsis",
            style="cyan" if place == 0 else None,
            justify="left" if place < 4 or (place == 5 and terminal) else "right",
            width=width,
        )
    for row in rows:
        drawn.add_row(*(row[place] for place in shown))
    return drawn


def fitting(widths: dict[int, int], room: int) -> dict[int, int]:
    """Shorten algorithm and environment names until the columns fit; a truncated state or number would mislead."""
    fitted = dict(widths)
    excess = sum(widths.values()) + 2 * (len(widths) - 1) - room
    while excess > 0:
        widest = max(NAMES, key=lambda place: fitted[place])
        if fitted[widest] <= SHORTEST_NAME:
            break
        fitted[widest] -= 1
        excess -= 1
    return fitted


def cell_width(cell: RenderableType) -> int:
    """Return the width of a text cell; any other cell is a bar with its share."""
    from rich.text import Text

    return cell.cell_len if isinstance(cell, Text) else BAR + 5


def _cells(run: Run, terminal: bool, *, bar: bool, cut: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    from mosaic import console as view

    state = str(run.state) if run.queue_position < 0 else f"queued {run.queue_position + 1}"
    if run.asked:
        state = {"pause": "pausing", "continue": "continuing", "cancel": "cancelling"}[run.asked]
    yield Text(short_id(run.run_id) if terminal else run.run_id)
    shown = [state if terminal else str(run.state), stall_mark(run)]
    if run.stalled and cut:  # the mark implies the state: queued and paused runs have no mark
        shown = shown[1:]
    yield Text(" ".join(filter(None, shown)), style="red" if run.stalled else STYLES.get(str(run.state), ""))
    yield Text((run.run_name if run.mode == "script" else run.algo.rpartition("/")[2]) + _mode(run.mode))
    yield Text(run.env_id)
    yield Text("" if run.seed is None else str(run.seed))
    yield steps_of(run, bar=bar) if terminal else Text(f"{run.step}/{run.total_timesteps}")
    yield Text("" if _return(run) is None else view.short(_return(run)))
    yield Text("" if not run.sps and not run.stalled else f"{run.sps or 0:,.0f}" if terminal else f"{run.sps or 0:.0f}")
    yield Text(time_of(run))
    age = ago(run.created_at).removesuffix(" ago") if terminal else moment(run.created_at)
    yield Text(age if run.created_at else "")  # the time of a BROKEN run may be unreadable


def _return(run: Run) -> float | None:
    """Return the run's mean return; for an older run without one, the return of its last episode."""
    return run.last_return if run.mean_return is None else run.mean_return


def _mode(mode: str) -> str:
    return {"train": "", "resume_training": " (resumed)", "policy_eval": " (eval)", "script": " (script)"}.get(mode, "")


def steps_of(run: Run, *, bar: bool = True) -> RenderableType:
    """Return a bar with a share; a step count if the total is unknown."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    if run.progress is None:
        return Text(f"{run.step:,}" if run.step else "")
    share = f"{run.progress:4.0%}"
    if not bar:
        return Text(share)
    colour = STYLES.get(str(run.state), "cyan")
    row = Table.grid(padding=(0, 1))
    row.add_row(
        ProgressBar(total=1.0, completed=run.progress, width=BAR, complete_style=colour, finished_style=colour), share
    )
    return row


def time_of(run: Run) -> str:
    """Return the duration so far or in total; for a live run the remaining time if it is known."""
    from mosaic.console import clock

    if not run.started_at:
        return ""
    if not run.ended and run.eta_seconds is not None:
        return f"{clock(run.eta_seconds)} left"
    return clock((run.ended_at or time.time()) - run.started_at)
