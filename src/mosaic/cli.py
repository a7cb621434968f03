"""The `mosaic` command: reads the command line, hands over, prints. Exit 0 done, 1 a run failed, 2 refused."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mosaic import catalog
from mosaic.wire.errors import ConfigError, MosaicError, WorkerError, nearest
from mosaic.wire.paths import RunPaths, new_run_id
from mosaic.wire.secrets import is_secret
from mosaic.wire.workers import WorkerCapabilities, discover_workers

EXAMPLES = """examples:
  mosaic train ppo CartPole-v1
  mosaic train ppo Acrobot-v1 --set total_timesteps=200000 --set learning_rate=0.001 --seeds 1-5
  mosaic algos ppo
  mosaic envs atari
  mosaic watch latest
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = parser().parse_args(argv)
    try:
        return int(args.command(args))
    except ConfigError as error:
        print(f"mosaic: {error}", file=sys.stderr)
        return 2
    except MosaicError as error:
        print(f"mosaic: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # `mosaic envs atari | head` is no mistake; stdout is pointed away so that its closing flush says nothing.
        sys.stdout = open("/dev/null", "w")
        return 0


def parser() -> argparse.ArgumentParser:
    """The command line as argparse knows it."""
    top = argparse.ArgumentParser(
        prog="mosaic",
        description="Train reinforcement-learning agents and watch them learn.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    one = commands.add_parser("train", help="train an algorithm on an environment and watch it")
    one.add_argument("algo", metavar="ALGO", help="a name that `mosaic algos` lists, or the path of your own script")
    one.add_argument("env_id", metavar="ENV", help="an environment id (see `mosaic envs`)")
    one.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="total_timesteps, seed, any parameter of the algorithm, or extra of the worker; may be repeated",
    )
    one.add_argument("--seeds", metavar="1-5", help="one run for each seed, one after the other: 1-5, or 1,2,7")
    one.add_argument("--follow", action="store_true", help="wait for the end (without a daemon `train` always does)")
    one.add_argument("--json", action="store_true", help="print one JSON document at the end; the view goes to stderr")
    one.set_defaults(command=train)

    two = commands.add_parser("algos", help="list the algorithms, or one algorithm's parameters")
    two.add_argument("name", nargs="?", metavar="NAME", help="show the parameters of this algorithm")
    two.add_argument("--json", action="store_true", help="print one JSON document")
    two.set_defaults(command=list_algos)

    three = commands.add_parser("envs", help="list the environment families, or one family's environments")
    three.add_argument("family", nargs="?", metavar="FAMILY", help="list this family's environment ids")
    three.add_argument("--json", action="store_true", help="print one JSON document")
    three.set_defaults(command=list_envs)

    which = "a run id, the beginning of one, or: latest"
    four = commands.add_parser("watch", help="watch a run's agent in this terminal (Ctrl-C leaves, the run goes on)")
    four.add_argument("run", metavar="RUN", help=which)
    four.set_defaults(command=watch_run)

    five = commands.add_parser("snapshot", help="save the picture of a run's agent")
    five.add_argument("run", metavar="RUN", help=which)
    five.add_argument("target", metavar="OUT.png", type=Path, help="the file to write")
    five.set_defaults(command=save_snapshot)
    return top


def train(args: argparse.Namespace) -> int:
    """Train one run per seed in the foreground; a run that fails or is stopped ends the series."""
    from rich.console import Console

    from mosaic import console as view

    worker, schema = find_worker(args.algo)
    configs = build_configs(args, schema)
    console = Console(stderr=args.json)
    finished: list[view.Progress] = []
    for config in configs:
        finished.append(train_one(worker, config, console))
        if finished[-1].status != "completed":
            break
    if len(configs) > 1:
        view.print_line(console, view.series_line(finished, len(configs)))
    if args.json:
        documents = [view.document(progress) for progress in finished]
        print(json.dumps(documents[0] if len(configs) == 1 else {"runs": documents}))
    return 0 if finished[-1].status == "completed" else 1


def train_one(worker: WorkerCapabilities, config: dict[str, Any], console: Any) -> Any:
    """Start the worker, show its events, say how it ended."""
    from mosaic import console as view
    from mosaic.foreground import ForegroundWorker, passing_signals

    paths = RunPaths(config["run_id"])
    progress = view.Progress(
        run_id=config["run_id"],
        algo=Path(config["algo"]).name if config["algo"].endswith(".py") else config["algo"],
        env_id=config["env_id"],
        total_timesteps=timesteps(config),
        folder=shortest(paths.folder),
        seed=config.get("seed"),
        reward_threshold=reward_threshold(config["env_id"]),
    )
    process = ForegroundWorker(worker, config, paths.home)

    def say(notice: str) -> None:
        progress.notice = notice
        if not console.is_terminal:
            view.print_line(console, notice)

    with passing_signals(process, say):
        view.follow(process.events(), progress, console)
    progress.close(process.exit_code, process.stderr_tail())
    for line in [view.summary_line(progress)] if progress.status == "completed" else view.failure_lines(progress):
        view.print_line(console, line)
    return progress


def find_worker(algo: str) -> tuple[WorkerCapabilities, dict[str, Any]]:
    """The worker that has this algorithm and the algorithm's schema ({} for a person's own module or script)."""
    workers, problems = discover_workers()
    if not workers:
        raise WorkerError("; ".join(["no worker is installed", *problems]))
    schemas = {name: worker.schema() for name, worker in workers.items()}
    for name, worker in workers.items():
        if algo in schemas[name]:
            return worker, schemas[name][algo]
    if algo.endswith(".py") or "." in algo:
        return next(iter(workers.values())), {}
    names = [known for schema in schemas.values() for known in schema]
    raise ConfigError(f"unknown algo {algo!r}{nearest(algo, names) or '.'} List them with: mosaic algos")


def build_configs(args: argparse.Namespace, schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The flat worker config of each run: one per seed."""
    fields = {field["name"]: field for field in schema.get("fields", [])}
    settings = dict(parse_setting(text) for text in args.settings)
    if args.seeds and "seed" in settings:
        raise ConfigError("both --seeds and --set seed=… were given; give one of them")
    seeds = parse_seeds(args.seeds) if args.seeds else [settings.pop("seed", None)]
    shared = {"algo": args.algo, "env_id": args.env_id, "total_timesteps": settings.pop("total_timesteps", None)}
    if args.algo.endswith(".py"):
        shared["algo"] = str(Path(args.algo).resolve())
    if shared["total_timesteps"] is None and "total_frames" in settings:
        del shared["total_timesteps"]
    elif shared["total_timesteps"] is None:
        shared["total_timesteps"] = fields.get("total_timesteps", {}).get("default")
        if shared["total_timesteps"] is None:
            raise ConfigError(f"how long shall {args.algo} train? Add: --set total_timesteps=100000")
    extras = split_extras(settings, set(fields))
    return [
        {"run_id": new_run_id(), **shared, **({} if seed is None else {"seed": seed}), "extras": extras}
        for seed in seeds
    ]


def split_extras(settings: dict[str, Any], fields: set[str]) -> dict[str, Any]:
    """The worker's extras: the algorithm's own parameters under `algo_params`, the rest (`extras.x` too) beside it."""
    extras: dict[str, Any] = {}
    params: dict[str, Any] = {}
    for key, value in settings.items():
        if key.startswith("extras."):
            extras[key.removeprefix("extras.")] = value
        elif fields and key not in fields:
            extras[key] = value
        else:
            params[key] = value
    return {**extras, "algo_params": params} if params else extras


def parse_setting(text: str) -> tuple[str, Any]:
    """`key=value` as a pair; the value is JSON where it can be read as JSON, else the text itself."""
    key, equals, value = text.partition("=")
    key = key.strip().lstrip("-").replace("-", "_")
    if not equals or not key:
        raise ConfigError(f"--set takes KEY=VALUE, not {text!r}; for example: --set learning_rate=0.001")
    if is_secret(key):
        raise ConfigError(f"{key} looks like a secret; secrets travel in the environment: export WANDB_API_KEY=…")
    lowered = value.strip().lower()
    try:
        return key, json.loads(lowered if lowered in ("true", "false", "null") else value)
    except ValueError:
        return key, value


def parse_seeds(text: str) -> list[int]:
    """`1-5`, `3` or `1,2,8-10` as numbers, in the order given."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise ConfigError(f"--seeds takes numbers and ranges such as 1-5 or 1,2,7; not {text!r}")
        seeds += range(int(first), int(last or first) + 1)
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"--seeds {text} names a seed twice")
    return seeds


def list_algos(args: argparse.Namespace) -> int:
    """Print the algorithms of every worker, or the parameters of one."""
    from mosaic import tables

    workers, problems = discover_workers()
    for problem in problems:
        print(f"mosaic: {problem}", file=sys.stderr)
    algos = {
        name: {"worker": worker.worker_type, **entry}
        for worker in workers.values()
        for name, entry in worker.schema().items()
    }
    if args.name is not None and args.name not in algos:
        raise ConfigError(f"unknown algo {args.name!r}{nearest(args.name, algos) or '.'} List them with: mosaic algos")
    if args.json:
        print(json.dumps({"algos": algos} if args.name is None else {"name": args.name, **algos[args.name]}))
    elif args.name is None:
        tables.show_algos(algos)
    else:
        tables.show_algo(args.name, algos[args.name])
    return 0


def list_envs(args: argparse.Namespace) -> int:
    """Print the families, the ids of one family, or what the catalog knows of one environment."""
    from mosaic import tables

    if args.family is None:
        documents = [tables.family_document(family) for family in catalog.FAMILIES.values()]
        print(json.dumps({"families": documents})) if args.json else tables.show_families(documents)
        return 0
    groups = {group.name: family.name for family in catalog.FAMILIES.values() for group in family.groups}
    if args.family in catalog.FAMILIES:
        ids = catalog.ids(args.family)
    elif args.family in groups:
        ids = catalog.ids(groups[args.family], args.family)
    elif catalog.find(args.family):
        ids = (args.family,)
    else:
        near = nearest(args.family, [*catalog.FAMILIES, *groups, *catalog.ids()])
        raise ConfigError(f"unknown family or environment {args.family!r}{near or '.'} List families with: mosaic envs")
    found = [tables.environment_document(environment) for environment in map(catalog.find, ids) if environment]
    print(json.dumps({"environments": found})) if args.json else tables.show_environments(found)
    return 0


def watch_run(args: argparse.Namespace) -> int:
    """Show a run's live view; leaving it is no failure."""
    from mosaic.watch import watch

    try:
        return watch(args.run)
    except KeyboardInterrupt:
        return 0


def save_snapshot(args: argparse.Namespace) -> int:
    """Write one frame of a run's live view."""
    from mosaic.watch import snapshot

    print(snapshot(args.run, args.target))
    return 0


def timesteps(config: dict[str, Any]) -> int:
    """How far the progress bar reaches; a value that is no number is left for the worker to refuse."""
    total = config.get("total_timesteps", 0)
    return int(total) if isinstance(total, int | float) else 0


def reward_threshold(env_id: str) -> float | None:
    """The mean return at which the catalog calls an environment solved."""
    environment = catalog.find(env_id)
    return environment.reward_threshold if environment else None


def shortest(path: Path) -> str:
    """The path as one would type it here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    sys.exit(main())
