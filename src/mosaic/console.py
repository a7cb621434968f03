"""A run in the terminal: its state from its events, the live view, the plain lines, the closing summary."""

import math
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mosaic.contract.events import Event, resumed_total
from mosaic.contract.returns import MEAN_RETURN, RECENT_EPISODES, RunReturn

PLAIN_INTERVAL = 2.0
PLOT_HEIGHT = 8
AXIS_WIDTH = 10
FRAME_WIDTH = AXIS_WIDTH + 4
FRAME_STYLES = {"completed": "green", "failed": "red", "paused": "yellow", "cancelled": "yellow"}
# The events that a pipe prints immediately; the rest comes with the line every two seconds.
TOLD = {"run_started": "started", "resumed": "resumed at step {step:,}", "paused": "paused", "continued": "goes on"}
BLOCKS = " ▁▂▃▄▅▆▇█"


def follow(events: Iterable[Event], progress: "TerminalProgress", console: Console) -> None:
    """Show a run until its events end: a live view on a terminal, a plain line every 2 seconds elsewhere."""
    if not console.is_terminal:
        follow_plainly(events, progress, console)
        return
    shown = Live(get_renderable=lambda: render(progress, plot_columns(console)), console=console, refresh_per_second=8)
    with shown as live:
        for event in events:
            progress.apply(event)
        live.refresh()


def plot_columns(console: Console) -> int:
    """Return the width for the curve beside its axis and the frame; more than 76 columns do not improve it."""
    return max(10, min(76, console.width - FRAME_WIDTH))


def follow_plainly(events: Iterable[Event], progress: "TerminalProgress", console: Console) -> None:
    shown_at = -math.inf
    warned = 0
    for event in events:
        progress.apply(event)
        if event.event in TOLD:
            print_line(console, TOLD[event.event].format(step=progress.step))
        elif event.event == "phase":
            told = event.payload.get("outcome") or event.payload.get("status")
            print_line(console, f"{phase_of(event.payload)} on {event.payload.get('env_id')}: {told}")
        for warning in progress.warnings[warned:]:
            print_line(console, f"warning: {warning}")
        warned = len(progress.warnings)
        if time.monotonic() - shown_at >= PLAIN_INTERVAL and progress.step:
            shown_at = time.monotonic()
            print_line(console, status_line(progress))


@dataclass
class TerminalProgress:
    """The state of a run from its events; safe to read while another thread applies them."""

    run_id: str
    algo: str
    env_id: str
    total_timesteps: int
    folder: str
    seed: int | None = None
    reward_threshold: float | None = None
    unit: str = "steps"
    status: str = "starting"
    step: int = 0
    steps_per_second: float | None = None
    returns: RunReturn = field(default_factory=RunReturn)
    losses: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    failure: dict[str, Any] = field(default_factory=dict)
    overall_return: float | None = None
    notice: str = ""
    stalled_since: float = 0.0
    """the time of its last step, while the daemon marks it as stalled"""
    started: float | None = None
    latest: float | None = None
    phase: str = ""
    """the current run of a script, such as `phase 2 of 3`"""

    def __post_init__(self) -> None:
        self.curve = TerminalCurve()
        self.lock = threading.Lock()

    def apply(self, event: Event) -> None:
        """Apply one event; kinds that a terminal does not show change nothing."""
        with self.lock:
            self.started = event.timestamp if self.started is None else self.started
            self.latest = event.timestamp
            getattr(self, f"_on_{event.event}", self._on_other)(event.payload)

    @property
    def episodes(self) -> int:
        return self.returns.episodes

    @property
    def seconds(self) -> float:
        return (self.latest or 0.0) - (self.started or 0.0)

    @property
    def solved(self) -> bool:
        """Return True if the return, of 100 episodes and not fewer, reaches the environment's own threshold."""
        full, value = self.returns.behind >= RECENT_EPISODES, self.returns.value
        return full and value is not None and self.reward_threshold is not None and value >= self.reward_threshold

    def settle(self, status: str, reason: str) -> None:
        """Set the registry's final status; its reason applies only if the run's events gave none."""
        with self.lock:
            self.status = status
            if status != "completed" and not self.failure:
                self.failure = {"error": reason or f"it is {status}"}

    def _on_run_started(self, payload: dict[str, Any]) -> None:
        # Also the start of a second attempt: the first one's failure is obsolete.
        self.status, self.failure = "starting", {}
        self.seed = payload.get("seed", self.seed)
        self.total_timesteps = int(payload.get("total_timesteps") or self.total_timesteps)

    def _on_resumed(self, payload: dict[str, Any]) -> None:
        self.step = int(payload.get("step") or 0)
        if not self.phase:  # a phase's end is not the script's
            self.total_timesteps = resumed_total(payload) or self.total_timesteps

    def _on_phase(self, payload: dict[str, Any]) -> None:
        if payload.get("status") != "started":
            return
        self.phase = phase_of(payload)
        self.total_timesteps = max(self.total_timesteps, int(payload.get("total_timesteps") or 0))
        if payload.get("env_id") not in (None, self.env_id):
            self.env_id, self.reward_threshold = str(payload["env_id"]), None
            self.returns.restart()

    def _on_episode(self, payload: dict[str, Any]) -> None:
        self._advance(payload)
        value = number(payload["return"])
        self.returns.add_episode(value)
        self.curve.add(self.step, value)

    def _on_metrics(self, payload: dict[str, Any]) -> None:
        self._advance(payload)
        for tag, value in payload.items():
            if tag == "charts/SPS":
                self.steps_per_second = number(value)
            elif tag == MEAN_RETURN:
                self.returns.add_mean(number(value))
            elif tag.startswith("losses/"):
                self.losses[tag.removeprefix("losses/")] = number(value)

    def _on_heartbeat(self, payload: dict[str, Any]) -> None:
        self.step = max(self.step, int(payload.get("step") or 0))

    def _on_paused(self, payload: dict[str, Any]) -> None:
        self.status = "paused"

    def _on_continued(self, payload: dict[str, Any]) -> None:
        self.status = "training"

    def _on_warning(self, payload: dict[str, Any]) -> None:
        self.warnings.append(str(payload.get("message") or payload))

    def _on_run_completed(self, payload: dict[str, Any]) -> None:
        self.status = "cancelled" if payload.get("stopped_by") else "completed"
        if isinstance(payload.get("mean_return"), int | float):  # an evaluation's, over all of its episodes
            self.overall_return = number(payload["mean_return"])

    def _on_run_failed(self, payload: dict[str, Any]) -> None:
        self.status = "cancelled" if payload.get("stopped_by") else "failed"
        self.failure = payload

    def _on_other(self, payload: dict[str, Any]) -> None:
        pass

    def _advance(self, payload: dict[str, Any]) -> None:
        self.status = "training"
        self.step = max(self.step, int(payload.get("step") or 0))


class TerminalCurve:
    """The mean episode return over the steps so far, in a bounded number of bins for any length of run."""

    BINS = 256

    def __init__(self) -> None:
        self.width = 1
        self.sums: list[float] = []
        self.counts: list[int] = []

    def add(self, step: int, value: float) -> None:
        if not math.isfinite(value):
            return
        while step // self.width >= self.BINS:
            self.width *= 2
            self.sums = [sum(self.sums[i : i + 2]) for i in range(0, len(self.sums), 2)]
            self.counts = [sum(self.counts[i : i + 2]) for i in range(0, len(self.counts), 2)]
        missing = step // self.width + 1 - len(self.sums)
        self.sums += [0.0] * missing
        self.counts += [0] * missing
        self.sums[step // self.width] += value
        self.counts[step // self.width] += 1

    def values(self, columns: int) -> list[float]:
        """Return the means from the first episode on; a column without an ended episode repeats its left neighbour."""
        found: list[float] = []
        for column in range(columns):
            low = column * len(self.sums) // columns
            high = max(low + 1, (column + 1) * len(self.sums) // columns)
            count = sum(self.counts[low:high])
            if count:
                found.append(sum(self.sums[low:high]) / count)
            elif found:
                found.append(found[-1])
        return found


def plot(values: Sequence[float], height: int) -> list[str]:
    """Return the values as `height` rows of block characters, the highest row first."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    # The lowest value still gets one eighth, so that its column is visible.
    eighths = [1 + round((value - low) / span * (height * 8 - 1)) for value in values]
    return ["".join(BLOCKS[min(8, max(0, level - 8 * row))] for level in eighths) for row in reversed(range(height))]


def render(progress: TerminalProgress, columns: int = 60) -> RenderableType:
    """Return the live view of the current state."""
    with progress.lock:
        parts: list[RenderableType] = [bar(progress), Text(status_line(progress, brief=True)), Text()]
        parts += return_plot(progress, columns)
        if progress.losses:
            # Names that end in "loss" come first; about five fit.
            names = sorted(progress.losses, key=lambda name: (not name.endswith("loss"), name))
            shown = "   ".join(f"{name} {short(progress.losses[name])}" for name in names[:5])
            parts.append(Text(shown, style="dim", no_wrap=True, overflow="ellipsis"))
        parts += [Text(f"warning: {warning}", style="yellow") for warning in progress.warnings[-2:]]
        if progress.notice:
            parts.append(Text(progress.notice, style="bold yellow"))
        seed = "" if progress.seed is None else f" · seed {progress.seed}"
        title = Text.assemble((progress.algo, "bold"), " on ", (progress.env_id, "bold"), seed)
        style = FRAME_STYLES.get(progress.status, "cyan")
        width = columns + FRAME_WIDTH
        return Panel(Group(*parts), title=title, subtitle=progress.status, border_style=style, width=width)


def bar(progress: TerminalProgress) -> RenderableType:
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(ratio=1)
    row.add_column(justify="right")
    share = min(1.0, progress.step / progress.total_timesteps) if progress.total_timesteps > 0 else 0.0
    drawn = ProgressBar(total=1.0, completed=share, complete_style="cyan", finished_style="green")
    row.add_row(drawn, so_far(progress))
    return row


def so_far(progress: TerminalProgress) -> str:
    """Return the progress, with the total if it is known."""
    total = f" of {progress.total_timesteps:,}" if progress.total_timesteps > 0 else ""
    return f"{progress.step:,}{total} {progress.unit}"


def return_plot(progress: TerminalProgress, columns: int) -> list[RenderableType]:
    values = progress.curve.values(columns)
    if not values:
        return [Text("waiting for the first episode to end", style="dim")]
    rows = plot(values, PLOT_HEIGHT)
    labels = {0: short(max(values)), len(rows) - 1: short(min(values))}
    axis = AXIS_WIDTH - 2
    lines = [Text.assemble((f"{labels.get(i, ''):>{axis}} ┤", "dim"), (row, "cyan")) for i, row in enumerate(rows)]
    caption = f"{'':>{AXIS_WIDTH}}return of episodes; their mean "
    mean = (short(progress.returns.value), "bold")
    said = Text.assemble((caption, "dim"), mean, (verdict(progress), "dim"), no_wrap=True, overflow="ellipsis")
    return [*lines, said, Text()]


def status_line(progress: TerminalProgress, brief: bool = False) -> str:
    """Return the run's progress in one line; `brief` leaves out what the live view shows elsewhere."""
    parts = []
    if not brief:
        share = f" ({min(1.0, progress.step / progress.total_timesteps):.0%})" if progress.total_timesteps > 0 else ""
        parts.append(so_far(progress) + share)
    if progress.stalled_since:
        parts.append(f"STALLED {clock(max(0.0, time.time() - progress.stalled_since))} · 0 steps/s")
    elif progress.steps_per_second:
        parts.append(f"{progress.steps_per_second:,.0f} steps/s")
        left = max(0, progress.total_timesteps - progress.step) / progress.steps_per_second
        if progress.status == "training":
            parts.append(f"{clock(left)} left")
    if progress.unit != "episodes":
        parts.append(f"{progress.episodes:,} episodes")
    if not brief and progress.returns.value is not None:
        parts.append(f"return {short(progress.returns.value)}")
    if progress.phase:
        parts.append(progress.phase)
    if progress.status == "paused":
        parts.append("paused")
    return " · ".join(parts) if progress.step else "starting"


def phase_of(payload: dict[str, Any]) -> str:
    """Return the phase of a script that an event belongs to, with the number of phases if the script declares it."""
    of = f" of {payload['phases']}" if payload.get("phases") else ""
    return f"phase {payload.get('number')}{of}"


def summary_line(progress: TerminalProgress) -> str:
    """Return the summary of a finished run in one line."""
    mean = progress.returns.value
    if progress.overall_return is not None:
        said = f"mean return of {progress.episodes:,} episodes {short(progress.overall_return)}"
    elif mean is None:
        said = "no episode ended"
    else:
        said = f"return {short(mean)}{verdict(progress)}"
    rate = f" · {progress.steps_per_second:,.0f} steps/s" if progress.steps_per_second else ""
    seed = "" if progress.seed is None else f" (seed {progress.seed})"
    steps = f"{progress.step:,} {progress.unit} in {progress.seconds:.1f} s"
    return f"{progress.status}{seed}: {said} · {steps}{rate} · {progress.folder}"


def failure_lines(progress: TerminalProgress) -> list[str]:
    """Return the reason why a run did not complete, hints, and the end of its stderr."""
    failure = progress.failure
    if progress.status == "cancelled":
        return [f"cancelled at step {progress.step:,}; what it wrote is in {progress.folder}"]
    lines = [f"{progress.status}: {failure_reason(failure)}"]
    lines += [f"  hint: {hint}" for hint in as_lines(failure.get("hint"))]
    tail = as_lines(failure.get("stderr_tail"))
    if tail:
        lines += ["  the last lines of its stderr:", *(f"    {line}" for line in tail)]
    return [*lines, f"  its files: {progress.folder}"]


def failure_reason(failure: dict[str, Any]) -> str:
    if failure.get("error"):
        return str(failure["error"])
    if failure.get("signal"):
        return f"the algorithm died of {failure['signal']}"
    return f"the algorithm ended with exit code {failure.get('exit_code')}"


def verdict(progress: TerminalProgress) -> str:
    if progress.reward_threshold is None:
        return ""
    return f" ({'solved: ' if progress.solved else ''}the threshold is {short(progress.reward_threshold)})"


def as_lines(value: Any) -> list[str]:
    if not value:
        return []
    return value.splitlines() if isinstance(value, str) else [str(item) for item in value]


def number(value: Any) -> float:
    """Convert a payload's number; NaN and infinities travel as strings."""
    return float(value)


def short(value: float | None) -> str:
    """Format a number with 4 significant digits, without an exponent if possible."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 0.001 <= abs(value) < 100_000:
        digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
        return f"{value:.{min(digits, 4)}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"
    return f"{value:.2e}"


def clock(seconds: float) -> str:
    whole = math.ceil(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def print_line(console: Console, line: str) -> None:
    """Print text unchanged: no markup, no wrapping, no highlighting."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
