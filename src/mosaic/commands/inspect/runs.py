"""mosaic runs and show: the registry as a table, one run in full."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.commands.connection import connect
from mosaic.commands.inspect.run_table import PIPE_WIDTH, STYLES, steps_of, table, time_of
from mosaic.commands.naming import add_run, find_run
from mosaic.commands.printing import add_json, ago, moment, print_json, say, short_id, shortest, stall_mark
from mosaic.commands.run.submission import document
from mosaic.contract.errors import ConfigError
from mosaic.contract.paths import RunPaths

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from mosaic.trainer.run import Run

# Copies of mosaic.trainer.states, which the parser need not import; a test compares them.
STATES = ("INIT", "HANDSHAKE", "READY", "EXECUTING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED", "LOST", "BROKEN")
LIVE, ENDED = ("HANDSHAKE", "READY", "EXECUTING", "PAUSED", "LOST"), ("COMPLETED", "FAILED", "CANCELLED", "BROKEN")
GROUPS = {"live": LIVE, "ended": ENDED, "queued": ("INIT",)}
MODES = ("train", "resume_training", "policy_eval", "script")
LIMIT, LARGEST_PAGE = 20, 1000


def add_to(commands: Any) -> None:
    """Declare the commands."""
    one = commands.add_parser("runs", help="list runs, newest first")
    one.add_argument("--state", action="append", default=[], type=str, metavar="STATE", help=_state_help())
    one.add_argument("--algo", default="", metavar="ALGO", help="only this algorithm")
    one.add_argument("--env", default="", metavar="ENV", dest="env_id", help="only this environment")
    one.add_argument("--mode", default="", choices=MODES, help="only runs of this kind")
    one.add_argument("--group", default="", metavar="GROUP", help="only this group: benchmark:NAME, sweep:NAME, a name")
    one.add_argument("--text", default="", metavar="TEXT", help="only where id, name, algorithm or environment has it")
    one.add_argument("--limit", type=int, default=LIMIT, metavar="N", help="at most N runs (%(default)s); 0: all")
    add_json(one)
    one.set_defaults(command=list_runs)

    two = commands.add_parser("show", help="show a run: where it stands, its values, files and warnings")
    add_run(two)
    two.add_argument("-f", "--follow", action="store_true", help="the live view until it ends; Ctrl-C leaves it going")
    add_json(two)
    two.set_defaults(command=show)


def _state_help() -> str:
    return f"only in this state: {', '.join(STATES)}, or {', '.join(GROUPS)}; may be repeated"


def list_runs(args: argparse.Namespace) -> int:
    """Print the runs that match."""
    from rich.console import Console

    filters = {name: getattr(args, name) for name in ("algo", "env_id", "mode", "text", "group")}
    states = parse_states(args.state)
    runs: list[Run] = []
    with connect() as client:
        page = ""
        while True:
            wanted = min(LARGEST_PAGE, args.limit - len(runs)) if args.limit > 0 else LARGEST_PAGE
            answer = client.list_runs(states=states, **filters, page_size=wanted, page=page)
            runs += answer.runs
            page = answer.next_page
            if not page or (args.limit > 0 and len(runs) >= args.limit):
                break
    if args.json:
        print_json({"runs": [document(run) for run in runs], "total": answer.total})
        return 0
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    if runs or not console.is_terminal:
        console.print(table(runs, console))
    if console.is_terminal:
        _hint(console, runs, answer.total, filtered=bool(states or any(filters.values())))
    return 0


def _hint(console: Console, runs: Sequence[Run], total: int, *, filtered: bool) -> None:
    if not runs:
        text = "No run matches." if filtered else "No runs yet. Start one: mosaic train ppo CartPole-v1"
    elif len(runs) < total:
        text = f"{len(runs)} of {total}; all of them: --limit 0    One in full: mosaic show {short_id(runs[0].run_id)}"
    else:
        text = f"One in full: mosaic show {short_id(runs[0].run_id)}"
    console.print(text, style="dim", markup=False, highlight=False)


def parse_states(texts: Sequence[str]) -> list[str]:
    """Return the states that the words name."""
    from mosaic.contract.errors import nearest

    found: list[str] = []
    for text in (word for given in texts for word in given.split(",")):
        if text.upper() in STATES:
            found.append(text.upper())
        elif text.lower() in GROUPS:
            found += GROUPS[text.lower()]
        else:
            near = nearest(text, [*STATES, *GROUPS])
            raise ConfigError(f"--state {text!r} is no state{near or '.'} Give one of: {', '.join([*STATES, *GROUPS])}")
    return list(dict.fromkeys(found))


def show(args: argparse.Namespace) -> int:
    """Print everything the registry knows of a run, or show the live view."""
    from rich.console import Console

    with connect() as client:
        run = client.get_run(find_run(client, args.run))
        if args.follow:
            from mosaic.commands.run.follow import follow

            code = follow(client, [run], to_stderr=args.json)
            if args.json:
                print_json(client.get_run(run.run_id).to_json())
            return code
    provenance, trouble = _provenance(run)
    if args.json:
        print_json({**run.to_json(), "provenance": provenance})
        if trouble:
            say(trouble)
        return 0
    console = Console()
    for part in _full(run, console, provenance, trouble):
        console.print(part, soft_wrap=not console.is_terminal)
    return 0


def _provenance(run: Run) -> tuple[dict[str, Any] | None, str]:
    """Return provenance.json if the run's folder is on this machine, and the reason if it cannot be read."""
    from mosaic.contract.provenance import read_provenance

    folder = Path(run.folder)
    if not folder.is_dir():
        return None, ""
    try:
        return read_provenance(RunPaths(run.run_id, folder.parents[3])), ""
    except ConfigError as error:
        return None, str(error)


def _full(
    run: Run, console: Console, provenance: dict[str, Any] | None = None, trouble: str = ""
) -> Iterator[RenderableType]:
    from rich.text import Text

    state = str(run.state)
    mark = f"  {stall_mark(run)}" if run.stalled else ""
    yield Text.assemble((run.run_id, "bold"), "  ", (state, f"bold {STYLES.get(state, '')}"), (mark, "bold red"))
    what = [f"{run.algo} on {run.env_id}", _seed(run), run.mode]
    what.insert(0 if run.mode == "script" else 3, run.run_name)
    yield Text(" · ".join(filter(None, what)))
    if run.reason:
        yield Text(run.reason, style="red" if state in ("FAILED", "LOST", "BROKEN") else "")
    if console.is_terminal and run.progress is not None:
        yield steps_of(run)
    yield Text()
    yield _grid(_facts(run))
    for warning in filter(None, (*run.warnings, trouble)):
        yield Text(f"warning: {warning}", style="yellow")
    if provenance:
        from mosaic.contract.provenance import facts

        yield Text("\nprovenance", style="bold")
        yield _grid(facts(provenance))
    if run.last_values:
        from mosaic.console import short

        yield Text("\nlast values", style="bold")
        yield _grid([(name, short(value)) for name, value in sorted(run.last_values.items())])
    if run.artifacts:
        yield Text("\nfiles", style="bold")
        yield _grid([(one.kind, f"{one.path}  (step {one.step:,})") for one in run.artifacts])
    if console.is_terminal:
        yield Text(f"\n{_next(run)}", style="dim")


def _seed(run: Run) -> str:
    return "" if run.seed is None else f"seed {run.seed}"


def _facts(run: Run) -> list[tuple[str, str]]:
    from mosaic.console import short

    unit = "episodes" if run.mode == "policy_eval" else "steps"
    total = f" of {run.total_timesteps:,}" if run.total_timesteps else ""
    left = f", {time_of(run)}" if run.eta_seconds is not None else ""
    times = {"created": run.created_at, "started": run.started_at, "ended": run.ended_at}
    attempts = f"{run.attempt}, {run.restarts} of {run.max_restarts} restarts used" if run.max_restarts else ""
    facts = {
        unit: f"{run.step:,}{total}{left}",
        "queue": f"place {run.queue_position + 1}" if run.queue_position >= 0 else "",
        "asked": {"pause": "to pause", "continue": "to go on", "cancel": "to end"}.get(run.asked, ""),
        "episodes": f"{run.episodes:,}" if run.episodes and unit == "steps" else "",
        "return": "" if run.mean_return is None else short(run.mean_return),
        "last episode": "" if run.last_return is None else short(run.last_return),
        "speed": f"{run.sps or 0:,.0f} steps/s" if run.sps or run.stalled else "",
        **{name: f"{moment(at)} ({ago(at)})" if at else "" for name, at in times.items()},
        "took": time_of(run) if run.ended and run.started_at else "",
        "attempt": attempts or (str(run.attempt) if run.attempt > 1 else ""),
        "exit": run.signal or ("" if run.exit_code is None or not run.ended else f"code {run.exit_code}"),
        "GPUs": ", ".join(map(str, run.gpus)),
        "runs on": "" if run.executor == "local" else " ".join(filter(None, (run.executor, run.job, run.node))),
        "process": str(run.pid) if run.pid and not run.ended else "",
        "parameters": ", ".join(f"{key}={value}" for key, value in _parameters(run).items()),
        "folder": shortest(run.folder),
    }
    return [(name, text) for name, text in facts.items() if text]


def _parameters(run: Run) -> dict[str, Any]:
    """Return the settings besides algorithm, environment, seed and steps."""
    worker = (run.payload.get("metadata") or {}).get("worker") or {}
    extras = dict((worker.get("config") or {}).get("extras") or {})
    return {**(extras.pop("algo_params", None) or {}), **extras}


def _grid(rows: Sequence[tuple[str, str]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows:
        grid.add_row(f"  {name}", Text(text))
    return grid


def _next(run: Run) -> str:
    name = short_id(run.run_id)
    if str(run.state) == "BROKEN":
        return f"Recreate its row from its folder: mosaic rebuild    Delete it: mosaic delete {name}"
    if str(run.state) == "FAILED" and run.reason.startswith("refused"):
        return f"It was never started. What was asked for: mosaic show {name} --json"
    if str(run.state) == "FAILED":
        return f"Why: mosaic logs {name} --stderr    Go on from its last checkpoint: mosaic resume {name}"
    if run.ended:
        return f"Its log: mosaic logs {name}    Go on: mosaic resume {name} --additional-timesteps 100000"
    return f"Live: mosaic show -f {name}    Its log: mosaic logs -f {name}    End it: mosaic cancel {name}"
