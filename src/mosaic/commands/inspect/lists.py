"""mosaic algos, envs and doctor: the algorithms, the environments, and the state of this machine."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from mosaic import catalog
from mosaic.commands.printing import add_json, print_json
from mosaic.contract.errors import ConfigError, nearest
from mosaic.contract.workers import discover_workers


def add_to(commands: Any) -> None:
    """Declare the commands."""
    one = commands.add_parser("algos", help="list the algorithms, or one algorithm's parameters")
    one.add_argument("name", nargs="?", metavar="ALGO", help="show the parameters of this algorithm")
    two = commands.add_parser("envs", help="list the environment families, or one family's environments")
    two.add_argument("family", nargs="?", metavar="FAMILY", help="list this family's environment ids")
    three = commands.add_parser(
        "doctor", help="check packages, drawing, shared memory, disk, GPUs, ports, the daemon, W&B"
    )
    for parser, command in ((one, list_algos), (two, list_envs), (three, examine)):
        add_json(parser)
        parser.set_defaults(command=command)


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
        print_json({"algos": algos} if args.name is None else {"name": args.name, **algos[args.name]})
    elif args.name is None:
        tables.show_algos(algos)
    else:
        tables.show_algo(args.name, algos[args.name])
    return 0


def list_envs(args: argparse.Namespace) -> int:
    """Print the families, the ids of one family, or the catalog's entry for one environment."""
    from mosaic import tables

    if args.family is None:
        documents = [tables.family_document(family) for family in catalog.FAMILIES.values()]
        print_json({"families": documents}) if args.json else tables.show_families(documents)
        return 0
    groups = {group.name: family.name for family in catalog.FAMILIES.values() for group in family.groups}
    if args.family in catalog.FAMILIES:
        ids = catalog.ids(args.family)
    elif args.family in groups:
        ids = catalog.ids(groups[args.family], args.family)
    elif catalog.find(args.family):
        ids = (args.family,)
    else:
        meant = catalog.meant(args.family, others=(*catalog.FAMILIES, *groups))
        near = f"; did you mean {meant!r}?" if meant else "."
        raise ConfigError(f"unknown family or environment {args.family!r}{near} List families with: mosaic envs")
    found = [tables.environment_document(environment) for environment in map(catalog.find, ids) if environment]
    print_json({"environments": found}) if args.json else tables.show_environments(found)
    return 0


def examine(args: argparse.Namespace) -> int:
    """Print the checks of this machine and a command for each missing part; return 1 if a run would fail."""
    from mosaic import doctor, tables

    report = doctor.document(doctor.examine())
    print_json(report) if args.json else tables.show_checks(report["checks"])
    return 0 if report["ok"] else 1
