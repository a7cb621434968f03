"""mosaic benchmark: a matrix of runs as one group; repeating the command submits only the missing runs."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from mosaic.commands.connection import Steady, connect, connect_or_start, home_of, page_address
from mosaic.commands.printing import add_json, print_json, say, waiting
from mosaic.commands.run.settings import add_settings
from mosaic.contract.errors import ConfigError, NoDaemonError, storage_error
from mosaic.contract.paths import write_atomic

if TYPE_CHECKING:
    from rich.console import Console

    from mosaic.commands.campaign.combinations import Cell, Matrix
    from mosaic.commands.campaign.planned_runs import Ledger
    from mosaic.trainer.rpc.client import Client
    from mosaic.trainer.run import Page, Run

POLL_SECONDS = 0.5
PLAIN_SECONDS = 5.0
PAGE = 1000
FAILED = ("FAILED", "CANCELLED", "BROKEN")
LEFT = 130  # the exit code that shells use for a command ended by Ctrl-C


def add_to(commands: Any) -> None:
    """Declare the command."""
    one = commands.add_parser(
        "benchmark",
        help="train several algorithms on several environments with several seeds, and score them",
        epilog="The same line again goes on: it submits what is missing. Flags after -- go to every algorithm.",
    )
    one.add_argument("--algos", required=True, metavar="A,B", help="algorithms (see `mosaic algos`), or own scripts")
    one.add_argument("--envs", required=True, metavar="X,Y", help="environment ids (see `mosaic envs`)")
    one.add_argument("--seeds", default="1-5", metavar="1-5", help="seeds for each combination (%(default)s)")
    add_settings(
        one, name="the benchmark's name: given again, it goes on (default: made from what is asked)", dry_run=None
    )
    one.add_argument(
        "--dry-run", action="store_true", dest="preview", help="check and print the matrix; submit nothing"
    )
    one.add_argument("--skip-unfit", action="store_true", help="leave out combinations that do not fit, and go on")
    one.add_argument("--retry", action="store_true", help="submit anew what failed or was cancelled")
    one.add_argument("--max-parallel", type=int, metavar="N", help="at most N of its runs queued or live at once")
    one.add_argument("--no-wait", action="store_true", help="return once all runs are submitted")
    one.add_argument("--csv", metavar="FILE", help="write the results as CSV")
    add_json(one)
    one.add_argument("flags", nargs="*", metavar="-- FLAG", help="flags for every algorithm, after a --")
    one.set_defaults(command=benchmark)


def benchmark(args: argparse.Namespace) -> int:
    """Check the matrix, submit the missing runs, show their progress, and score them."""
    from mosaic.commands.campaign.combinations import read_matrix
    from mosaic.commands.campaign.planned_runs import Ledger

    if args.max_parallel is not None and args.max_parallel < 1:
        raise ConfigError(f"--max-parallel takes a number from 1, not {args.max_parallel}")
    if args.max_parallel is not None and args.no_wait:
        raise ConfigError("--max-parallel needs a command that stays; leave --no-wait away")
    matrix = _fitting(read_matrix(args), args)
    if args.preview:
        return _preview(matrix, args)
    with Steady(connect_or_start()) as daemon:
        home = home_of(daemon.client)
        with Ledger(home / "var" / "benchmarks" / matrix.name, f"benchmark {matrix.name!r}") as ledger:
            work = Work(matrix, args, daemon, ledger, home)
            try:
                return work.run()
            except KeyboardInterrupt:
                say(f"the runs go on; come back with the same line, or end them: mosaic runs --group {matrix.group}")
                return LEFT


def _fitting(matrix: Matrix, args: argparse.Namespace) -> Matrix:
    """Return the matrix without combinations that cannot run; ConfigError, after a line for each, unless skipped."""
    from mosaic.commands.campaign.combinations import misfits, without

    unfit = misfits(matrix, args)
    if not unfit:
        return matrix
    for combination, reason in unfit.items():
        say(f"{combination.label}: {reason}")
    if not args.skip_unfit or len(unfit) == len(matrix.combinations):
        advice = "nothing was started" + ("" if args.skip_unfit else "; leave them out with --skip-unfit")
        raise ConfigError(f"{len(unfit)} of {len(matrix.combinations)} combinations cannot be run; {advice}")
    return without(matrix, unfit)


def _preview(matrix: Matrix, args: argparse.Namespace) -> int:
    """Print the matrix as a table; with a daemon, each row counts the runs submitted before."""
    from mosaic.commands.campaign.combinations import chosen_runs

    known: dict[str, Run] = {}
    try:
        with Steady(connect()) as daemon:
            known = chosen_runs(matrix, list_group(daemon, matrix.group))
    except NoDaemonError:
        pass
    rows = []
    for one in matrix.combinations:
        there = sum(cell.key in known for cell in matrix.cells() if cell.combination is one)
        steps = one.config.get("total_timesteps", "default")
        rows.append(
            {"algo": one.algo, "env_id": one.env_id, "seeds": list(matrix.seeds), "steps": steps, "there": there}
        )
    if args.json:
        print_json({"name": matrix.name, "group": matrix.group, "runs": len(matrix), "matrix": rows})
        return 0
    from mosaic import tables

    seeds = ",".join(map(str, matrix.seeds)) if len(matrix.seeds) <= 10 else f"{len(matrix.seeds)} seeds"
    cells = [
        (row["algo"], row["env_id"], seeds, f"{row['steps']}", f"{row['there']} of {len(matrix.seeds)}") for row in rows
    ]
    tables.show(("algorithm", "environment", "seeds", "steps", "submitted before"), cells)
    missing = len(matrix) - len(known)
    print(f"benchmark {matrix.name}: {len(matrix)} runs, {missing} of them to submit; nothing was submitted")
    return 0


def list_group(daemon: Steady, group: str) -> list[Run]:
    """Return every run of a group and of its parts."""
    runs: list[Run] = []
    page = ""
    while True:

        def ask(client: Client, page: str = page) -> Page:
            return client.list_runs(group=group, page_size=PAGE, page=page)

        answer = daemon.call(ask)
        runs += answer.runs
        page = answer.next_page
        if not page:
            return runs


class Work:
    """The work of one command on a benchmark."""

    def __init__(self, matrix: Matrix, args: argparse.Namespace, daemon: Steady, ledger: Ledger, home: Path) -> None:
        self.matrix, self.args, self.daemon, self.ledger, self.home = matrix, args, daemon, ledger, home
        self.found: dict[str, Run] = {}

    def run(self) -> int:
        from rich.console import Console

        from mosaic.commands.campaign.combinations import check_same

        self.look()
        check_same(self.matrix, self.found, lambda run_id: self.daemon.call(lambda client: client.get_run(run_id)))
        todo = [cell for cell in self.matrix.cells() if self._is_missing(cell.key)]
        again = {cell.key for cell in todo if cell.key in self.found}
        say(
            f"benchmark {self.matrix.name}: {len(self.matrix)} runs, {len(self.matrix) - len(todo)} there already, "
            f"{len(todo)} to submit" + (f" ({len(again)} of them again)" if again else "")
        )
        for key in again:
            self.ledger.renew(key)
            del self.found[key]
        console = Console(stderr=self.args.json)
        limit = self.args.max_parallel or len(self.matrix)
        with waiting("the daemon lets the worker check each run") as tell:
            while todo and self._going() < limit:
                self._submit(todo.pop(0))
                tell(f"submitted {len(self.matrix) - len(todo)} of {len(self.matrix)} runs")
        if not self.args.no_wait:
            self._follow(console, todo, limit)
        return self._report(console)

    def look(self) -> None:
        """Fetch the current state of every run from the registry."""
        from mosaic.commands.campaign.combinations import chosen_runs

        self.found = chosen_runs(self.matrix, list_group(self.daemon, self.matrix.group))

    def _is_missing(self, key: str) -> bool:
        run = self.found.get(key)
        return run is None or (self.args.retry and str(run.state) in FAILED)

    def _going(self) -> int:
        return sum(not run.ended for run in self.found.values())

    def _submit(self, cell: Cell) -> None:
        from mosaic.commands.campaign.combinations import payload

        made = payload(self.matrix, cell, self.args)
        self.found[cell.key] = self.daemon.call(
            lambda client: self.ledger.submit(client, cell.key, made, self.args.priority)
        )

    def _follow(self, console: Console, todo: list[Cell], limit: int) -> None:
        """Wait until all runs have ended; submit a queued cell as soon as the limit allows."""
        from rich.live import Live

        from mosaic.commands.campaign import scores

        def drawn() -> Any:
            return scores.table(scores.scores_of(self.matrix, self.found, interval=False), console)

        if console.is_terminal:
            with Live(get_renderable=drawn, console=console, refresh_per_second=2, transient=True):
                while self._step(todo, limit):
                    time.sleep(POLL_SECONDS)
            return
        said_at, ended = time.monotonic(), -1
        while self._step(todo, limit):
            now_ended = sum(run.ended for run in self.found.values())
            if now_ended != ended and time.monotonic() - said_at >= PLAIN_SECONDS:
                said_at, ended = time.monotonic(), now_ended
                say(f"{now_ended} of {len(self.matrix)} runs have ended")
            time.sleep(POLL_SECONDS)

    def _step(self, todo: list[Cell], limit: int) -> bool:
        """Refresh the runs and submit what the limit allows; return False once all runs have ended."""
        self.look()
        while todo and self._going() < limit:
            self._submit(todo.pop(0))
        return bool(todo) or self._going() > 0

    def _report(self, console: Console) -> int:
        from mosaic.commands.campaign import scores

        found = scores.scores_of(self.matrix, self.found)
        if self.args.csv:
            path = Path(self.args.csv).expanduser()
            try:
                write_atomic(path, scores.csv_text(found))
            except OSError as error:
                raise storage_error(path, error) from None
        links = [page_address(self.home, path) for path in self._pages()]
        if self.args.json:
            done = {
                "name": self.matrix.name,
                "group": self.matrix.group,
                "results": scores.document(found),
                "compare": links,
            }
            print_json(done)
        else:
            self._print(console, found, links)
        failed = sum(str(run.state) in FAILED for run in self.found.values())
        if failed:
            say(
                f"{failed} runs did not complete; why: mosaic runs --group {self.matrix.group} --state ended; "
                "to submit them anew: the same line with --retry"
            )
        return 1 if failed else 0

    def _print(self, console: Console, found: list[Any], links: list[str]) -> None:
        from rich.console import Console as Wide

        from mosaic import tables
        from mosaic.commands.campaign import scores

        printer = console if console.is_terminal else Wide(width=tables.PIPE_WIDTH)
        printer.print(scores.table(found, printer))
        printer.print(
            "IQM of the seeds' returns (charts/mean_return), with its 95 % bootstrap interval",
            style="dim", markup=False, highlight=False,
        )  # fmt: skip
        for line in scores.improvements(found):
            printer.print(line, markup=False, highlight=False, soft_wrap=True)
        for link in links:
            print(f"compare: {link}")
        sys.stdout.flush()

    def _pages(self) -> list[str]:
        """Return one comparison page per environment: returns of different environments share no axis."""
        envs = dict.fromkeys(one.env_id for one in self.matrix.combinations)
        return [f"/compare?{urlencode({'group': self.matrix.group, 'env': env_id}, safe=':/')}" for env_id in envs]
