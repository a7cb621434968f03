"""Learning curves as a small SVG, drawn by hand: every seed thin, their interquartile mean bold; one way or two."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mosaic.contract.metrics import is_episode, read_rows
from mosaic.stats import iqm

IMAGES = Path(__file__).parents[1] / "docs" / "img"
LAST = 100
GRID = 100
WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 36, 44
INK, FAINT, REFERENCE = "#333", "#ddd", "#c0392b"
# a seed, the mean of all, how thick: of the one way and, thinner so that the first stays visible, of the other
STYLES = (("#9db8d9", "#1f5fa8", 2.5), ("#e3c08f", "#b9770e", 1.2))


@dataclass(frozen=True)
class Curve:
    """What is drawn: one series per seed over common steps, and the published return as a line across."""

    title: str
    steps: np.ndarray
    seeds: list[np.ndarray]
    reference: float | None = None
    others: list[np.ndarray] = field(default_factory=list)
    """the seeds of another way to do it, if there is one"""
    names: tuple[str, str] = ("", "")
    """what the two ways are called"""
    last: int = LAST
    """episodes that a point averages"""
    called: str = "published"
    """what the line across is"""
    measure: str = ""
    """what a point is, where it is no mean over episodes"""


def write_svg(path: Path, curve: Curve) -> Path:
    """Draw into a file and return its path."""
    shown = np.concatenate([*curve.seeds, *curve.others, [] if curve.reference is None else [curve.reference]])
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    margin = 0.05 * (high - low) or 1.0
    view = _View(0.0, float(curve.steps[-1]), low - margin, high + margin)
    measure = curve.measure or f"mean return of the last {curve.last} episodes"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/><g font-size="12" fill="{INK}">',
        f'<text x="{LEFT}" y="20" font-size="14">{curve.title}: {measure}</text>',
        *_axes(view),
    ]
    for seeds, name, style, row in zip((curve.seeds, curve.others), curve.names, STYLES, (0, 1), strict=True):
        parts += _way(view, curve.steps, seeds, style) if seeds else []
        legend = f'x="{WIDTH - RIGHT}" y="{HEIGHT // 2 - 8 + 16 * row}" text-anchor="end" fill="{style[1]}"'
        parts += [f"<text {legend}>{name}</text>"] if curve.others else []
    if curve.reference is not None:
        y = view.y(curve.reference)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{REFERENCE}" stroke-dasharray="6 4"/>')
        told = f"{curve.called} {curve.reference:g}"
        parts.append(f'<text x="{LEFT + 6}" y="{y - 5:.1f}" fill="{REFERENCE}">{told}</text>')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</g></svg>"]) + "\n")
    return path


def episodes_of(folder: Path) -> np.ndarray:
    """(step, return) of every training episode of a run."""
    rows = [(r["step"], r["charts/episodic_return"]) for r in read_rows(folder / "metrics.jsonl") if is_episode(r)]
    if not rows:
        raise SystemExit(f"no episode ended in {folder}; give more --total-timesteps")
    return np.array(rows, dtype=float)


def smoothed(episodes: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The mean of the last 100 episodes before each step of the grid; nan before the first."""
    sums = np.concatenate([[0.0], np.cumsum(episodes[:, 1])])
    ends = np.searchsorted(episodes[:, 0], grid, side="right")
    starts = np.maximum(0, ends - LAST)
    return np.where(ends > 0, (sums[ends] - sums[starts]) / np.maximum(ends - starts, 1), np.nan)


@dataclass(frozen=True)
class _View:
    left: float
    right: float
    low: float
    high: float

    def x(self, step: float) -> float:
        return LEFT + (step - self.left) / (self.right - self.left) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.low) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)


def _way(view: _View, steps: np.ndarray, seeds: list[np.ndarray], style: tuple[str, str, float]) -> list[str]:
    middle = np.array([_iqm_of_known(values) for values in np.array(seeds).T])
    thin = [_line(view, steps, values, style[0], 1.2) for values in seeds]
    return [*thin, _line(view, steps, middle, style[1], style[2])]


def _axes(view: _View) -> list[str]:
    parts = []
    for value in ticks(view.low, view.high):
        y = view.y(value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{FAINT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for step in ticks(view.left, view.right):
        label = f"{step / 1e6:g}M" if view.right >= 2e6 else f"{step / 1e3:g}k"
        x = view.x(step)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{label}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">environment steps</text>')
    return parts


def _line(view: _View, steps: np.ndarray, values: np.ndarray, colour: str, width: float) -> str:
    known = [(view.x(s), view.y(v)) for s, v in zip(steps, values, strict=True) if math.isfinite(v)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in known)
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _iqm_of_known(values: np.ndarray) -> float:
    """The interquartile mean once every seed has a value, so that the line never jumps by a seed joining in."""
    return iqm(values) if np.isfinite(values).all() else math.nan


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers between two bounds."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step)
    return [round(n * step, 10) for n in range(first, math.floor(high / step) + 1)]


if __name__ == "__main__":
    raise SystemExit("this module draws for benchmarks/learning.py and others; run those")
