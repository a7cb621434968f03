"""Where the time of a training goes: a table of its parts, and a flame graph as an SVG that any browser shows.

    python benchmarks/flame.py sac_continuous_action HalfCheetah-v5 --total-timesteps 8000
    make profile ALGO=dqn ENV=CartPole-v1 ARGS='--total-timesteps 50000'

What follows the environment goes to the algorithm. A timer looks 500 times a second at what the program is doing; what
an operation of torch or MuJoCo takes counts for the function that called it. Only the training loop is counted, neither
imports and set-up nor the closing evaluation. On a GPU, waiting for it shows under `transfer`.
"""

import argparse
import importlib
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import FrameType

from report import markdown

from cleanrl_worker.run.split import frames_below, part_of, sections_of

EVERY = 0.002  # seconds; a look takes some 10 µs
Stack = tuple[str, ...]


def main() -> None:
    """Train with the timer running, then write the picture and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algo")
    parser.add_argument("env_id")
    parser.add_argument("--out", type=Path, help="the picture (default: flame-<algo>-<env>.svg)")
    args, flags = parser.parse_known_args()
    try:
        algorithm = importlib.import_module(f"cleanrl_worker.algorithms.{args.algo}")
    except ModuleNotFoundError as error:
        raise SystemExit(f"unknown algo {args.algo!r} ({error}); list them with: mosaic algos") from None
    samples = Samples(str(algorithm.__file__), sections_of(str(algorithm.__file__)))
    with tempfile.TemporaryDirectory(prefix="mosaic-flame-") as folder:
        sys.argv = [args.algo, f"--env-id={args.env_id}", f"--run-dir={folder}", *flags]
        samples.start()
        try:
            algorithm.main()
        finally:
            samples.stop()
    if not samples.stacks:
        raise SystemExit("the training was over before the first look; give a larger --total-timesteps")
    path = args.out or Path(f"flame-{args.algo}-{args.env_id.replace('/', '-')}.svg")
    path.write_text(picture(samples.stacks, f"{args.algo} {args.env_id}"))
    total = sum(samples.parts.values())
    rows = [{"part": part, "share": f"{100 * count / total:.1f} %"} for part, count in samples.parts.most_common()]
    print(f"\n{markdown(rows)}\n\n{total:,} looks; the picture: {path}")


@dataclass
class Samples:
    """What the timer saw: stacks below the training loop, and the parts that they belong to."""

    loop_file: str
    sections: list[tuple[int, str]]
    stacks: Counter[Stack] = field(default_factory=Counter)
    parts: Counter[str] = field(default_factory=Counter)

    def start(self) -> None:
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, EVERY, EVERY)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _look(self, _number: int, frame: FrameType | None) -> None:
        below = frames_below(frame, self.loop_file)
        if any(one.f_code.co_filename == __file__ for one in below):
            return  # a look amid another one, on a slow machine
        if not below or "step" not in below[0].f_locals or "obs" not in below[0].f_locals:
            return  # not in the loop yet: the first observations are not there
        self.parts[part_of(below, self.sections)] += 1
        self.stacks[tuple(name_of(one) for one in below)] += 1


def name_of(frame: FrameType) -> str:
    """`file:function`, the loop itself by its line, so that what stands in it is seen."""
    code = frame.f_code
    where = f"{code.co_name} line {frame.f_lineno}" if code.co_name == "main" else code.co_name
    return f"{Path(code.co_filename).stem}: {where}"


# -- the picture ----------------------------------------------------------------------------------------------------

WIDTH, ROW = 1200, 18
NARROWEST = 0.5  # pixels: thinner boxes cannot be seen
COLOURS = ("#e07b53", "#e39a5c", "#d9b26a", "#cf8a4e", "#e5a07a")


def picture(stacks: Counter[Stack], title: str) -> str:
    """Boxes as wide as the time that they took, what was called below its caller."""
    total = sum(stacks.values())
    boxes: list[str] = []
    depth = lay_out(stacks, 0, 0.0, WIDTH / total, total, boxes)
    height = (depth + 2) * ROW
    when = time.strftime("%Y-%m-%d")
    head = f'<text x="4" y="13">{escape(title)}, {total:,} looks, {when}; point at a box for its share</text>'
    style = "text { font: 11px sans-serif; } rect { stroke: white; stroke-width: 0.5; }"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">'
        f"<style>{style}</style>{head}{''.join(boxes)}</svg>\n"
    )


def lay_out(stacks: Counter[Stack], depth: int, left: float, scale: float, total: int, boxes: list[str]) -> int:
    """Draw the boxes of one depth and what is below them; returns the greatest depth."""
    children: dict[str, Counter[Stack]] = {}
    for stack, count in stacks.items():
        if len(stack) > depth:
            children.setdefault(stack[depth], Counter())[stack] += count
    deepest = depth
    for name, inside in sorted(children.items()):
        count = sum(inside.values())
        width = count * scale
        if width >= NARROWEST:
            y = (depth + 1) * ROW
            colour = COLOURS[sum(name.encode()) % len(COLOURS)]
            shown = escape(name if len(name) * 6.2 < width else name[: max(0, int(width / 6.2))])
            box = f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{ROW}" fill="{colour}"/>'
            text = f'<text x="{left + 3:.1f}" y="{y + 13}">{shown}</text>'
            boxes.append(f"<g><title>{escape(name)}: {100 * count / total:.1f} %</title>{box}{text}</g>")
            deepest = max(deepest, lay_out(inside, depth + 1, left, scale, total, boxes))
        left += width
    return deepest


if __name__ == "__main__":
    main()
