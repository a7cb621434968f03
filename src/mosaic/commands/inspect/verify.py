"""mosaic verify: windows of a run or bundle trained again and compared bit for bit; its files are only read."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mosaic.commands.connection import connect
from mosaic.commands.daemon.fetch import fetch_for
from mosaic.commands.inspect.rerun import Rerun, config_from_checkpoint, config_from_zero, rerunning
from mosaic.commands.inspect.subject import Subject, from_bundle, from_run, is_bundle
from mosaic.commands.inspect.windows import RunRecord, Window, count_rows, difference, windows_of
from mosaic.commands.naming import HELP, find_run
from mosaic.commands.printing import add_json, print_json, say
from mosaic.contract.automatic import read_automatic
from mosaic.contract.curriculum import read_schedule
from mosaic.contract.errors import ConfigError, shown
from mosaic.contract.provenance import differences, newest, read_provenance
from mosaic.contract.workers import discover_workers, schema_of

PROGRESS_SECONDS = 10.0
SELF_SECONDS = 20.0  # for the worker to describe itself


def add_to(commands: Any) -> None:
    """Declare the command."""
    one = commands.add_parser(
        "verify",
        help="train a part of a run again and compare it bit for bit",
        description="Train from a kept checkpoint, or from step 0, to the next recorded weight hash, in a temporary "
        "folder, and compare weights and metrics. Exit 0: equal, 1: different, 2: it cannot be verified.",
    )
    one.add_argument("run", metavar="RUN|BUNDLE", help=f"{HELP}; or the folder of a bundle, or of one of its seeds")
    one.add_argument(
        "--windows", type=int, default=1, metavar="K", help="parts to verify, the newest first (%(default)s)"
    )
    add_json(one)
    one.set_defaults(command=verify)


def verify(args: argparse.Namespace) -> int:
    """Verify the newest windows; return 1 at the first difference."""
    if args.windows < 1:
        raise ConfigError(f"--windows {args.windows}: 1 or more is needed")
    run = from_bundle(args.run) if is_bundle(args.run) else _run_of_home(args.run)
    _refuse_kind(run)
    windows = windows_of(run.paths)[: args.windows]
    document = read_provenance(run.paths)
    report: dict[str, Any] = {"run_id": run.run_id, "equal": True, "differs_here": [], "windows": []}
    report_line = (lambda text: None) if args.json else lambda text: print(text, flush=True)
    for window in windows:
        found = _verify_window(run, window, document, report, report_line)
        report["windows"].append(found)
        if found["difference"]:
            report["equal"] = False
            break
    if args.json:
        print_json(report)
    return 0 if report["equal"] else 1


def _run_of_home(name: str) -> Subject:
    with connect() as client:
        run = client.get_run(find_run(client, name))
    fetch_for(run)
    return from_run(run)


def _verify_window(
    run: Subject,
    window: Window,
    document: Mapping[str, Any] | None,
    report: dict[str, Any],
    report_line: Callable[[str], None],
) -> dict[str, Any]:
    began = time.monotonic()
    config, command = _config(run, window, document)
    name = f"steps {window.start:,} to {window.end.step:,}"
    report_line(f"{name}: training again from {'the kept checkpoint' if window.checkpoint else 'the beginning'}")
    with rerunning(window, config, command, run.submitted) as again:
        if not report["windows"]:
            report["differs_here"] = _compare_machines(window, document, again)
            for line in report["differs_here"]:
                report_line(f"differs from the recorded run: {line}")
        end = _finish(again, window)
        if end.device != window.end.device:
            raise ConfigError(
                f"the run trained on {window.end.device or 'an unknown device'}, this machine trains on {end.device}; "
                "verify it where it was trained"
            )
        found = difference(window, run.paths.metrics, again.paths.metrics, end, thinned=run.thinned)
    rows = count_rows(window, run.paths.metrics, thinned=run.thinned)
    here = " (here with the differences above)" if report["differs_here"] else ""
    result = f"different{here}: {found}" if found else f"equal{here}: weights {end.weights[:12]}, {rows:,} rows"
    report_line(f"{name}: {result}")
    seconds = round(time.monotonic() - began, 1)
    span = {"start": window.start, "end": window.end.step, "weights": end.weights, "rows": rows, "seconds": seconds}
    return {**span, "equal": not found, "difference": found}


def _compare_machines(window: Window, document: Mapping[str, Any] | None, again: Rerun) -> list[str]:
    """Return the versions and machine parts in which the recorded attempt differs from this one."""
    if document is None:
        return ["provenance.json is missing: packages and machine of the recorded run are not known"]
    end, now = time.monotonic() + SELF_SECONDS, None
    while now is None and time.monotonic() < end:
        again.poll()
        now = again.provenance()
    if now is None:
        return ["packages and machine of this run are not known: its provenance.json was not written in time"]
    attempts = document["attempts"] if window.checkpoint else document["attempts"][:1]
    before = newest({"attempts": attempts})
    gpus = [(entry.get("machine") or {}).get("gpus") or [] for entry in (before, now)]
    if window.end.device not in ("", "cpu") and gpus[0] and not set(gpus[0]) & set(gpus[1]):
        raise ConfigError(
            f"the run trained on {', '.join(sorted(set(gpus[0])))}, which this machine does not have; "
            "verify it where it was trained"
        )
    return differences(before, now)


def _finish(again: Rerun, window: Window) -> RunRecord:
    """Wait for the checkpoint at the window's end; show the step meanwhile."""
    shown_at = time.monotonic()
    status = None
    if sys.stderr.isatty():
        from rich.console import Console

        status = Console(stderr=True).status("training again")
        status.start()
    try:
        while (found := again.poll()) is None:
            text = f"training again: step {again.step:,} of {window.end.step:,}"
            if status is not None:
                status.update(text)
            elif time.monotonic() - shown_at > PROGRESS_SECONDS:
                shown_at = time.monotonic()
                say(text)
        return found
    finally:
        if status is not None:
            status.stop()


def _refuse_kind(run: Subject) -> None:
    """Raise ConfigError for runs that have no windows, or whose algorithm is not registered."""
    reasons = {
        "policy_eval": "it is an evaluation, which trains nothing; evaluate the policy again with mosaic eval",
        "script": "the phases of a script share one run; verify a training outside of a script",
    }
    if why := reasons.get(run.mode):
        raise ConfigError(f"run {run.run_id} cannot be verified: {why}")
    _worker_of(run.run_id, run.algo)


def _worker_of(run_id: str, algo: str) -> Sequence[str]:
    """Return the command of the worker that has the algorithm; ConfigError if no worker has it."""
    for worker in discover_workers()[0].values():
        if algo in schema_of(worker):
            return worker.command
    raise ConfigError(
        f"run {run_id} cannot be verified: {shown(algo)} is not a registered algorithm; "
        "only those that `mosaic algos` lists are trained again"
    )


def _config(run: Subject, window: Window, document: Mapping[str, Any] | None) -> tuple[dict[str, Any], Sequence[str]]:
    """Return the worker's config and command; ConfigError if a file names code besides registered algorithms."""
    if window.checkpoint is not None:
        args = {**(window.state.get("args") or {}), **window.changed}
        algo, env_id = window.state.get("algo"), args.get("env_id")
        config = config_from_checkpoint(window)
    elif document is None:
        raise ConfigError(
            f"run {run.run_id} cannot be verified from step 0: it has no provenance.json, which holds its config; "
            "only windows from a kept checkpoint can be"
        )
    else:
        config = config_from_zero(document["attempts"][0], run.run_id)
        algo, env_id = config["algo"], config["env_id"]
        args = {**config["extras"], **config["extras"]["algo_params"]}
    command = _worker_of(run.run_id, str(algo))
    typed = run.typed and env_id == run.env_id
    named = [*([] if typed else [str(env_id)]), *_stages(args)]
    if foreign := next((name for name in named if ":" in name), ""):
        raise ConfigError(
            f"run {run.run_id} cannot be verified: its files name {shown(foreign)}, a module to import; "
            "only environments that you typed at its submission are imported"
        )
    return config, command


def _stages(args: Mapping[str, Any]) -> list[str]:
    """Return the environments of a curriculum."""
    schedule, automatic = (args.get(name) for name in ("curriculum_schedule", "curriculum"))
    stages = [stage.env_id for stage in read_schedule(schedule)] if schedule else []
    return stages + (list(read_automatic(automatic).tasks) if automatic else [])
