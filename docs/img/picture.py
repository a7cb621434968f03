"""Draws run.svg, the picture in the README: the real view of a real run, at its end."""

import io
import os
import re
import signal
import tempfile
from pathlib import Path

from rich.console import Console

from mosaic import Client
from mosaic import console as view
from mosaic.commands.run.follow import progress_of
from mosaic.trainer.daemon import spawn


def main() -> None:
    """Train in a folder that is thrown away, keep the picture."""
    target = Path(__file__).with_name("run.svg")
    with tempfile.TemporaryDirectory() as home:
        os.chdir(home)
        os.environ["XDG_STATE_HOME"] = home  # the person's own daemon stays the one that commands find
        spawn(Path(home), listen="127.0.0.1:0")
        with Client(home=home) as client:
            run = client.train("ppo", "CartPole-v1", seed=1, total_timesteps=200_000, learning_rate=0.001)
            progress = progress_of(run.info)
            view.follow(run.events(follow=True), progress, Console())
            progress.settle(run.wait().state.lower(), "")
            os.kill(client.health()["pid"], signal.SIGTERM)
            os.wait()
    recorder = Console(record=True, width=92, file=io.StringIO(), force_terminal=True)
    recorder.print("[bold]$[/bold] make run", highlight=False)
    recorder.print(view.render(progress, view.plot_columns(recorder)))
    recorder.print(view.summary_line(progress), markup=False, highlight=False)
    svg = recorder.export_svg(title="MOSAIC", unique_id="run")
    # A picture in a README fetches nothing: without rich's web font the reader's own monospace is used.
    target.write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
