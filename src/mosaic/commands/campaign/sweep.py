"""mosaic sweep: a search for good parameters with Optuna; repeating the command continues it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.commands.connection import Steady, connect_or_start, home_of, page_address
from mosaic.commands.printing import add_json, print_json, say
from mosaic.commands.run.settings import add_settings, find_schema, parse_settings, resources_of, split_settings
from mosaic.contract.errors import ConfigError, nearest
from mosaic.contract.returns import MEAN_RETURN, RECENT_EPISODES
from mosaic.contract.settings import parse_seeds

if TYPE_CHECKING:
    from mosaic.commands.campaign.optuna_study import Spec, Study
    from mosaic.contract.sweeps import Dimension, Summary

REPORTS, TRIALS, SEEDS = 10, 20, "1"
SAMPLERS, PRUNERS = ("tpe", "random"), ("median", "hyperband", "none")
STARTUP = 5
LEFT = 130  # the exit code that shells use for a command ended by Ctrl-C


def add_to(commands: Any) -> None:
    """Declare the command; options that define the sweep have no default, so that a continuation sees the given
    ones.
    """
    one = commands.add_parser(
        "sweep",
        help="search for good parameters of an algorithm with Optuna (extra `tune`)",
        epilog="Ctrl-C leaves the sweep; `mosaic sweep --name NAME` goes on with it.",
    )
    one.add_argument("algo", nargs="?", metavar="ALGO", help="a name that `mosaic algos` lists, or your own script")
    one.add_argument("env_id", nargs="?", metavar="ENV", help="an environment id (see `mosaic envs`)")
    one.add_argument(
        "--vary", action="append", default=[], metavar="NAME[=RANGE]",
        help="vary this: around its default, =1e-5..1e-2, or =32,64,128; may be repeated (the usual parameters)",
    )  # fmt: skip
    one.add_argument("--space", metavar="FILE", help="what to vary, as TOML: a table for each parameter")
    one.add_argument("--trials", type=int, metavar="N", help=f"trials in all ({TRIALS})")
    one.add_argument("--seeds", metavar="1-3", help=f"seeds of each trial, whose values are averaged ({SEEDS})")
    one.add_argument("--metric", metavar="KEY", help=f"the metric to score ({MEAN_RETURN})")
    one.add_argument(
        "--last", type=int, metavar="N", help="a run is scored by its last N values (1; 100 of another metric)"
    )
    one.add_argument("--direction", choices=("maximize", "minimize"), help="which score is the better one (maximize)")
    one.add_argument("--reports", type=int, metavar="N", help=f"parts of a run after which pruning looks ({REPORTS})")
    one.add_argument("--pruner", choices=PRUNERS, default="median", help="how bad trials are ended early (%(default)s)")
    one.add_argument(
        "--startup-trials", type=int, default=STARTUP, metavar="N", help="trials before median prunes (%(default)s)"
    )
    one.add_argument("--sampler", choices=SAMPLERS, default="tpe", help="how parameters are chosen (%(default)s)")
    one.add_argument("--parallel", type=int, metavar="N", help="trials at once (as many as the daemon has slots for)")
    one.add_argument("--storage", default="", metavar="URL", help="Optuna's storage (SQLite in var/sweeps/optuna.db)")
    add_settings(one, name="the sweep's name; given again, it goes on (ALGO-ENV)", dry_run=None)
    one.add_argument("--dry-run", action="store_true", dest="preview", help="check, print the space, and begin nothing")
    one.add_argument("--delete", action="store_true", help="forget the sweep of this --name; its runs stay")
    add_json(one)
    one.set_defaults(command=sweep)


def sweep(args: argparse.Namespace) -> int:
    """Begin a sweep, or continue one of this name."""
    from mosaic.commands.campaign.optuna_study import Study, load_optuna

    for name in ("trials", "last", "reports", "parallel"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ConfigError(f"--{name} takes a number from 1, not {getattr(args, name)}")
    if args.startup_trials < 0:
        raise ConfigError(f"--startup-trials takes a number from 0, not {args.startup_trials}")
    if args.algo is not None and args.env_id is None:
        raise ConfigError(f"on which environment shall {args.algo} be tuned? Give ALGO and ENV; see: mosaic envs")
    if args.preview:
        return _preview(args)
    load_optuna()  # before starting a daemon in vain
    with Steady(connect_or_start()) as daemon:
        home = home_of(daemon.client)
        name = _name(args, home)
        from mosaic.commands.campaign.planned_runs import Ledger
        from mosaic.contract.sweeps import sweeps_folder

        known = args.algo is not None or args.storage or (sweeps_folder(home) / name).is_dir()
        if not known:
            raise ConfigError(_no_such(name, home))
        with Ledger(sweeps_folder(home) / name, f"sweep {name!r}") as ledger:
            study = Study(name, args.storage, home)
            if args.delete:
                return _delete(name, study, sweeps_folder(home) / name, home)
            spec = _spec(args, name, study, home)
            return _drive(args, name, spec, study, ledger, daemon, home)


def _preview(args: argparse.Namespace) -> int:
    if args.algo is None:
        raise ConfigError("give ALGO and ENV with --dry-run")
    from mosaic.commands.campaign.sample_check import survey

    spec = new_spec(args, find_schema(args.algo))
    space = spec.space
    if refused := survey(spec, args):
        say(refused)
    if args.json:
        print_json({"space": [one.model_dump() for one in space]})
        return 0
    from mosaic import tables

    tables.show(("parameter", "type", "values"), [(one.name, one.kind, one.told) for one in space])
    return 0


def _delete(name: str, study: Study, folder: Path, home: Path) -> int:
    """Delete a sweep: its study and the files that pages read."""
    import shutil

    from mosaic.contract.groups import SWEEP, group_of

    known = study.delete()
    if not known and not (folder / "summary.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        raise ConfigError(_no_such(name, home))
    shutil.rmtree(folder)
    print(f"sweep {name} is forgotten; its runs stay: mosaic runs --group {group_of(SWEEP, name)}")
    return 0


def _name(args: argparse.Namespace, home: Path) -> str:
    from mosaic.contract.groups import check_name

    if args.name:
        return check_name(args.name)
    if args.algo is None:
        raise ConfigError(_no_such("", home))
    words = f"{Path(args.algo).stem if args.algo.endswith('.py') else args.algo}-{args.env_id}"
    return check_name("".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in words)[:64])


def _no_such(name: str, home: Path) -> str:
    from mosaic.contract.sweeps import list_sweeps

    names = list_sweeps(home)
    there = f"; there are: {', '.join(names[:10])}" if names else ""
    if not name:
        return f"give ALGO and ENV to begin a sweep, or --name to go on with one{there}"
    return f"there is no sweep {name!r} to go on with{nearest(name, names)}{there}; to begin it, give ALGO and ENV"


def _spec(args: argparse.Namespace, name: str, study: Study, home: Path) -> Spec:
    """Return the specification: the stored one, or a new one from the command line; ConfigError if the two differ."""
    old = study.spec()
    if old is None and args.algo is None:
        raise ConfigError(_no_such(name, home))
    if old is None:
        schema = find_schema(args.algo)
        spec = new_spec(args, schema)
        defaults = {str(field["name"]): field.get("default") for field in schema.get("fields", ())}
        params = (spec.config.get("extras") or {}).get("algo_params") or {}
        study.start(spec, {**defaults, **params})
        return spec
    if args.algo is not None:
        _check_same(args, name, old)
    resources, seconds = resources_of(args), args.max_seconds
    given = {"trials": args.trials, "resources": resources or None, "max_seconds": seconds}
    fresh = old.model_copy(update={name: value for name, value in given.items() if value is not None})
    if fresh != old:
        study.save(fresh)
    return fresh


def new_spec(args: argparse.Namespace, schema: dict[str, Any]) -> Spec:
    """Return the specification that the command line describes."""
    from mosaic.commands.campaign.combinations import with_steps
    from mosaic.commands.campaign.optuna_study import Spec

    settings = parse_settings(args.settings)
    for key in ("seed", "env_id"):
        if key in settings:
            raise ConfigError(f"--set {key}=… cannot be; give {'--seeds' if key == 'seed' else 'ENV'} instead")
    space = read_dimensions(args, schema)
    fixed = [one.name for one in space if one.name in settings]
    if fixed and (args.vary or args.space):
        raise ConfigError(f"{fixed[0]} is both set and varied; leave one away")
    algo = str(Path(args.algo).resolve()) if args.algo.endswith(".py") else args.algo
    config = {"algo": algo, "env_id": args.env_id, **with_steps(split_settings(settings, schema), schema)}
    total = config.get("total_timesteps")
    if not isinstance(total, int) or isinstance(total, bool) or total < 1:
        raise ConfigError(f"how long shall a run of {args.algo} be? Add: --set total_timesteps=100000")
    metric = args.metric or MEAN_RETURN
    return Spec(
        algo=algo, env_id=args.env_id, config=config, total_timesteps=total,
        seeds=tuple(parse_seeds(args.seeds or SEEDS)), metric=metric,
        last=args.last or (1 if metric == MEAN_RETURN else RECENT_EPISODES),
        direction=args.direction or "maximize", reports=args.reports or REPORTS,
        space=tuple(one for one in space if one.name not in fixed), trials=args.trials or TRIALS,
        resources=resources_of(args), max_seconds=args.max_seconds,
    )  # fmt: skip


def read_dimensions(args: argparse.Namespace, schema: dict[str, Any]) -> list[Dimension]:
    """Return the varied parameters: from `--space` or `--vary`, else the algorithm's usual ones."""
    from mosaic.commands.campaign.search_space import default_space, parse_vary, read_space

    if args.space and args.vary:
        raise ConfigError("both --space and --vary were given; give one of them")
    if args.space:
        return read_space(Path(args.space).expanduser(), schema)
    return parse_vary(args.vary, schema) if args.vary else default_space(schema)


def _check_same(args: argparse.Namespace, name: str, old: Spec) -> None:
    """Raise ConfigError if a given option contradicts the sweep's specification; the others are not compared."""
    fresh = new_spec(args, find_schema(args.algo))
    given = {
        "algo": True, "env_id": True, "space": bool(args.space or args.vary), "seeds": args.seeds is not None,
        "metric": args.metric is not None, "last": args.last is not None, "direction": args.direction is not None,
        "reports": args.reports is not None, "config": bool(args.settings),
    }  # fmt: skip
    for part, was_given in given.items():
        if was_given and getattr(fresh, part) != getattr(old, part):
            what = {"config": "settings (--set)", "env_id": "environment"}.get(part, part)
            raise ConfigError(
                f"sweep {name!r} was begun with another {what}; go on with `mosaic sweep --name {name}`, or give "
                "this one another --name"
            )


def _drive(
    args: argparse.Namespace, name: str, spec: Spec, study: Study, ledger: Any, daemon: Steady, home: Path
) -> int:
    from rich.console import Console

    from mosaic.commands.campaign.trials import Trials

    slots = int(daemon.call(lambda client: client.health())["cpu_slots"])
    parallel = args.parallel or max(1, slots // len(spec.seeds))
    study.load(spec, sampler=args.sampler, pruner=args.pruner, startup=args.startup_trials, parallel=parallel)
    work = Trials(name, spec, args, study, ledger, daemon, home, tell=say)
    say(
        f"sweep {name}: {len(study.frozen())} of {spec.trials} trials so far, {len(spec.seeds)} run(s) each, "
        f"{parallel} at once; its page: {page_address(home, f'/sweeps/{name}')}"
    )
    console = Console(stderr=True)
    try:
        if console.is_terminal:
            with console.status("") as status:
                for _ in work.drive(parallel):
                    status.update(_line(work))
        else:
            for _ in work.drive(parallel):
                pass
    except KeyboardInterrupt:
        going = sum(len(trial.runs) for trial in work.active.values())
        say(f"left; {going} run(s) go on. Go on with the sweep: mosaic sweep --name {name}")
        return LEFT
    return _report(args, work.summary())


def _line(work: Any) -> str:
    """Return the trials in flight, for a terminal's status line."""
    parts = []
    for trial in work.active.values():
        runs = [work.runs[run_id] for run_id in trial.runs if run_id in work.runs]
        share = sum(run.progress or 0.0 for run in runs) / max(1, len(runs))
        parts.append(f"trial {trial.number}: {share:.0%}")
    return " · ".join(parts) or "waiting for the last runs to end"


def _report(args: argparse.Namespace, summary: Summary) -> int:
    from mosaic.console import short

    best = summary.best_trial()
    if args.json:
        print_json(summary.model_dump(mode="json"))
        return 0 if best else 1
    counts = ", ".join(f"{summary.count(state)} {state}" for state in ("complete", "pruned", "failed"))
    print(f"trials: {counts}")
    if best is None:
        say("no trial completed, so there is no best one")
        return 1
    first = summary.default_trial()
    beside = f" (the defaults, trial {first.number}: {short(first.value)})" if first and first != best else ""
    print(f"best: trial {best.number} with {short(best.value)}{beside}")
    if summary.importance:
        told = ", ".join(f"{name} {share:.0%}" for name, share in list(summary.importance.items())[:5])
        print(f"share of the spread that each parameter alone explains: {told}")
    print(summary.command)
    sys.stdout.flush()
    return 0
