"""mosaic logs and events: the output of a run's processes, and the events of its worker."""

from __future__ import annotations

import argparse
import codecs
import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.commands.connection import connect
from mosaic.commands.daemon.fetch import fetch_for
from mosaic.commands.naming import add_run, find_run
from mosaic.commands.printing import add_json, print_json, say, short_id
from mosaic.commands.run.follow import LEFT
from mosaic.contract.errors import ConfigError
from mosaic.contract.events import EVENT_KINDS, Event, encode

if TYPE_CHECKING:
    from mosaic.trainer.rpc.client import Client
    from mosaic.trainer.run import Run

POLL_SECONDS = 0.3
CHUNK = 1 << 16
# For the readable form: fields that every event of a run repeats, and the longest value.
SAME = ("algo", "env_id", "agent_id", "worker_id", "config_digest")
LONGEST = 160


def add_to(commands: Any) -> None:
    """Declare the commands."""
    one = commands.add_parser("logs", help="print what a run's algorithm wrote")
    add_run(one)
    one.add_argument("-f", "--follow", action="store_true", help="go on printing until the run ends")
    one.add_argument("-n", "--lines", type=int, metavar="N", help="only the last N lines")
    which = one.add_mutually_exclusive_group()
    which.add_argument("--stderr", action="store_true", help="its errors instead of its output")
    which.add_argument("--worker", action="store_true", help="what the worker around it wrote to stderr")
    add_json(one)
    one.set_defaults(command=logs)

    two = commands.add_parser("events", help="print a run's events; a JSON line each where no terminal reads them")
    add_run(two)
    two.add_argument("-f", "--follow", action="store_true", help="go on printing until the run ends")
    two.add_argument("--from", type=int, default=0, metavar="SEQ", dest="from_seq", help="begin with this number (0)")
    two.add_argument(
        "--only", action="append", choices=sorted(EVENT_KINDS), help="only events of this kind; may be repeated"
    )
    add_json(two)
    two.set_defaults(command=events)


def logs(args: argparse.Namespace) -> int:
    """Print a log file, or follow it until the run ends."""
    with connect() as client:
        run = client.get_run(find_run(client, args.run))
        path = log_file(run, stderr=args.stderr, worker=args.worker)
        start = 0 if args.lines is None else tail_offset(path, args.lines)
        texts = _follow(client, run, path, start) if args.follow else _texts(path, start)
        try:
            if args.json:
                print_json({"run_id": run.run_id, "file": str(path), "lines": "".join(texts).splitlines()})
                return 0
            printed = False
            for text in texts:
                sys.stdout.write(text)
                sys.stdout.flush()
                printed = True
        except KeyboardInterrupt:
            say(f"the run goes on; come back with: mosaic logs -f {short_id(run.run_id)}")
            return LEFT
    if not printed:
        say(_nothing(run, path))
    return 0


def log_file(run: Run, *, stderr: bool, worker: bool) -> Path:
    """Return the log file; ConfigError if the run is on another machine or was never started."""
    from mosaic.contract.paths import RunPaths

    folder = Path(run.folder)
    paths = RunPaths(run.run_id, folder.parents[3])
    path = paths.worker_stderr_log if worker else paths.stderr_log if stderr else paths.stdout_log
    fetch_for(run, str(path.relative_to(paths.folder)))
    if path.exists():  # a copy fetched earlier may be outdated
        fetch_for(run, str(path.parent.relative_to(paths.folder)))
    if not folder.is_dir():
        raise ConfigError(
            f"{path} is not on this machine; read it where the daemon runs, or: mosaic events {run.run_id}"
        )
    if not path.exists() and run.external:
        raise ConfigError(
            f"run {run.run_id} has no {path.name} here: its worker was started elsewhere, not by this daemon; "
            f"read it where the worker runs, or: mosaic events {run.run_id}"
        )
    if not path.exists() and run.ended:
        why = run.reason or f"it is {run.state}"
        raise ConfigError(f"run {run.run_id} has no {path.name}: it was never started ({why})")
    return path


def tail_offset(path: Path, lines: int) -> int:
    """Return the offset at which the last `lines` lines of a file begin."""
    starts: deque[int] = deque(maxlen=max(1, lines))
    position = 0
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                starts.append(position)
                position += len(line)
    return starts[0] if starts and lines > 0 else position


def _texts(path: Path, start: int) -> Iterator[str]:
    """Yield a file's text from an offset."""
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as file:
            file.seek(start)
            while text := file.read(CHUNK):
                yield text


def _follow(client: Client, run: Run, path: Path, start: int) -> Iterator[str]:
    """Yield a file's text, and what is appended until the run has ended."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    position, ended = start, run.ended
    while True:
        if path.exists():
            with path.open("rb") as file:
                file.seek(position)
                while data := file.read(CHUNK):
                    position += len(data)
                    yield decoder.decode(data)
        if ended:
            return
        time.sleep(POLL_SECONDS)
        # Requested before the next read, so that everything written until then is still printed.
        ended = client.get_run(run.run_id).ended


def _nothing(run: Run, path: Path) -> str:
    """Return why the output is empty, and where to look instead."""
    name = short_id(run.run_id)
    if not run.ended:
        return f"{path.name} is still empty; run {name} is {run.state}"
    if path.name.endswith("stderr.log"):
        return f"{path.name} is empty: no errors were written"
    return f"{path.name} is empty; its errors: mosaic logs {name} --stderr"


def events(args: argparse.Namespace) -> int:
    """Print the events so far, or follow them until the run ends."""
    with connect() as client:
        run_id = find_run(client, args.run)
        read = client.follow_events if args.follow else client.read_events
        wanted = (event for event in read(run_id, args.from_seq) if not args.only or event.event in args.only)
        try:
            if args.json:
                print_json({"run_id": run_id, "events": [asdict(event) for event in wanted]})
                return 0
            terminal = sys.stdout.isatty()
            for event in wanted:
                print(readable(event) if terminal else encode(event).decode().rstrip(), flush=args.follow)
        except KeyboardInterrupt:
            say(f"the run goes on; come back with: mosaic events -f {short_id(run_id)}")
            return LEFT
    return 0


def readable(event: Event) -> str:
    """Return an event as a readable line: its time, its kind, and its payload without the repeated fields."""
    clock = time.strftime("%H:%M:%S", time.localtime(event.timestamp))
    carried = {key: value for key, value in event.payload.items() if key not in SAME and value is not None}
    text = "  ".join(f"{key} {_value(value)}" for key, value in carried.items())
    return f"{event.seq:>6}  {clock}  {event.event:<13}  {text}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
