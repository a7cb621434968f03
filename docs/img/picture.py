"""Draws run.svg, the picture in the README: the real view of a real run, at its end."""

import io
import os
import re
import tempfile
from pathlib import Path

from rich.console import Console

from mosaic import cli
from mosaic import console as view

COMMAND = "train ppo CartPole-v1 --set total_timesteps=200000 --set learning_rate=0.0005 --set seed=1"


def main() -> None:
    """Train in a folder that is thrown away, keep the picture."""
    target = Path(__file__).with_name("run.svg")
    args = cli.parser().parse_args(COMMAND.split())
    worker, schema = cli.find_worker(args.algo)
    (config,) = cli.build_configs(args, schema)
    with tempfile.TemporaryDirectory() as home:
        os.chdir(home)
        progress = cli.train_one(worker, config, Console())
    recorder = Console(record=True, width=92, file=io.StringIO(), force_terminal=True)
    recorder.print("[bold]$[/bold] make run", highlight=False)
    recorder.print(view.render(progress, view.plot_columns(recorder)))
    recorder.print(view.summary_line(progress), markup=False, highlight=False)
    svg = recorder.export_svg(title="MOSAIC", unique_id="run")
    # A picture in a README fetches nothing: without rich's web font the reader's own monospace is used.
    target.write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
